// Package child starts processes that are certain to end with the one that started them: when it ends them, and on Linux
// also when it is killed.
package child

import "errors"

// ErrUnsupported is what everything here returns on a system without SIGSTOP.
var ErrUnsupported = errors.New("this needs a system with SIGSTOP: Linux, macOS, BSD")
