package sqlitehold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

func (o *Options) check() error {
	switch ns := o.Namespace; {
	case len(ns) > 255:
		return fmt.Errorf("sqlitehold: the namespace has %d bytes; at most 255 are allowed", len(ns))
	case !utf8.ValidString(ns) || strings.ContainsRune(ns, 0):
		return fmt.Errorf("sqlitehold: namespace %q is not UTF-8 without NUL", ns)
	}
	return nil
}

// DefaultPath returns the file that programs use which are not told another one: holdlock/locks.db under $XDG_STATE_HOME,
// or under $HOME/.local/state if that is not set, and /var/lib/holdlock/locks.db for root, whatever the environment says.
// So each user has a file of their own, and jobs of different users do not exclude each other unless they are given the
// same file. It is an error if $HOME is needed and not set.
func DefaultPath() (string, error) {
	return defaultPath(os.Getuid(), os.Getenv)
}

func defaultPath(uid int, getenv func(string) string) (string, error) {
	const dir, name = "holdlock", "locks.db"
	if uid == 0 {
		return filepath.Join("/var/lib", dir, name), nil
	}
	// A relative path is to be ignored, says the XDG Base Directory Specification.
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, dir, name), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", errors.New("sqlitehold: no place for the lock file: neither HOME nor XDG_STATE_HOME is set; " +
			"set one of them or name the file")
	}
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("sqlitehold: no place for the lock file: HOME is %q, which is not an absolute path", home)
	}
	return filepath.Join(home, ".local", "state", dir, name), nil
}
