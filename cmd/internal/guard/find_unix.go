//go:build unix

package guard

import "strings"

// Find reports, without starting anything, whether a command would be found and may be executed. The error is the
// *StartError that starting it would give; the kernel may still refuse it then, for other reasons.
func Find(name string, env []string) error {
	path, err := lookPath(name, "", env)
	if err == nil && strings.Contains(name, "/") {
		err = executable(path)
	}
	if err != nil {
		return startError(name, err)
	}
	return nil
}
