//go:build !linux && !darwin && !freebsd

package sqlitehold

import "errors"

func freeSpace(string) (uint64, error) { return 0, errors.New("it cannot be asked for on this system") }
