package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/sqlitehold"
)

// openStore opens the driver that a URL names. Nothing of a URL but its scheme is ever printed here: the rest may hold a
// password.
func openStore(url, namespace string) (driver.Driver, error) {
	return openStoreIn(url, namespace, 5*time.Second)
}

// openStoreIn is openStore for a store that connects when it is opened, and may take so long for it.
func openStoreIn(url, namespace string, timeout time.Duration) (driver.Driver, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	switch {
	case url == "":
		path, err := sqlitehold.DefaultPath()
		if err != nil {
			return nil, fmt.Errorf("no --store is given and there is no default: %w", err)
		}
		return openSQLite(path, namespace)
	case !ok || !isScheme(scheme):
		return nil, usage("--store is not a URL; known: sqlite:PATH, redis://HOST, redis+sentinel://…, redis+cluster://…, postgres://HOST/DB, postgres+advisory://…")
	case scheme == "sqlite" && rest == "":
		return nil, usage("--store sqlite: names no file; write sqlite:PATH")
	case scheme == "sqlite" && strings.HasPrefix(rest, "//") && !strings.HasPrefix(rest, "///"):
		return nil, usage("--store sqlite: has a host; write sqlite:PATH, or sqlite:///PATH for an absolute one")
	case scheme == "sqlite":
		return openSQLite(rest, namespace)
	case isRedis(scheme):
		return openRedis(scheme, rest, namespace, timeout)
	}
	if _, ok := postgresKind(scheme); ok {
		return openPostgres(scheme, rest, namespace, timeout)
	}
	return nil, usage(fmt.Sprintf("--store has the unknown scheme %q; known: sqlite:PATH, redis://, rediss://, "+
		"redis+sentinel://, redis+cluster://, postgres://, postgres+advisory://", scheme))
}

// isScheme tells a scheme from a user, a password or a host that stands first in what is not a URL.
func isScheme(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// existing refuses a file that is not there, for a command that judges what is in it: it would make it, and say that all is well. The file
// of this user need not be there, since nobody has written its path.
func existing(urls ...string) error {
	for _, url := range urls {
		scheme, path, _ := strings.Cut(url, ":")
		if scheme != "sqlite" || path == "" {
			continue
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return usage(fmt.Sprintf("there is no file %s: the path is wrong, or no lock has been used in it yet", path))
		}
	}
	return nil
}

func openSQLite(path, namespace string) (driver.Driver, error) {
	if len(namespace) > 255 || strings.ContainsRune(namespace, 0) {
		return nil, usage(fmt.Sprintf("--namespace %.60q is not allowed: at most 255 bytes without NUL", namespace))
	}
	d, err := sqlitehold.NewDriver(path, &sqlitehold.Options{Namespace: namespace})
	if err != nil {
		return nil, err // not d: a nil *Driver is not a nil Driver
	}
	return d, nil
}
