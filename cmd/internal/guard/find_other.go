//go:build !unix

package guard

import (
	"errors"
	"os/exec"
)

// Find reports, without starting anything, whether a command would be found. The error is a *StartError.
func Find(name string, _ []string) error {
	if _, err := exec.LookPath(name); err != nil && !errors.Is(err, exec.ErrDot) {
		return &StartError{Kind: NotFound, Command: name, Err: err}
	}
	return nil
}
