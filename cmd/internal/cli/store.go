package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/sqlitehold"
)

// openStore opens the driver that a URL names. Nothing of a URL but its scheme is ever printed here: the rest may hold a
// password.
func openStore(url, namespace string) (driver.Driver, error) {
	return openStoreIn(context.Background(), url, namespace, 5*time.Second)
}

// openStoreIn is openStore for a store that connects when it is opened, and may take so long for it, until ctx ends.
func openStoreIn(ctx context.Context, url, namespace string, timeout time.Duration) (driver.Driver, error) {
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
		path, err := sqlitePath(rest)
		if err != nil {
			return nil, err
		}
		return openSQLite(path, namespace)
	case isRedis(scheme):
		return openRedis(scheme, rest, namespace, timeout)
	}
	if _, ok := postgresKind(scheme); ok {
		return openPostgres(ctx, scheme, rest, namespace, timeout)
	}
	return nil, usage(fmt.Sprintf("--store has the unknown scheme %q; known: sqlite:PATH, redis://, rediss://, "+
		"redis+sentinel://, redis+cluster://, postgres://, postgres+advisory://", scheme))
}

// isScheme tells a scheme from a user, a password or a host that stands first in what is not a URL.
func isScheme(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// sqlitePath is the path in a URL, which may have three slashes before an absolute one. A shell leaves a ~ as it is behind a colon: it would name
// a directory in the working directory, so that each of those had locks of its own.
func sqlitePath(rest string) (string, error) {
	if strings.HasPrefix(rest, "~") {
		return "", usage("sqlite:~ names no home directory: write $HOME or the whole path, or sqlite:./~ for a file of that name")
	}
	if strings.HasPrefix(rest, "///") {
		return rest[2:], nil
	}
	return rest, nil
}

// wandering says whether a URL names a file that depends on the working directory. In the environment that is not what anybody wants: it goes
// along into each.
func wandering(url string) bool {
	scheme, rest, _ := strings.Cut(url, ":")
	return scheme == "sqlite" && rest != "" && !strings.HasPrefix(rest, "~") && !strings.HasPrefix(rest, "//") && !filepath.IsAbs(rest)
}

// existing refuses a file that is not there, for a command that only looks at what is in it: it would make it, and say that all is well. The file
// of this user need not be there, since nobody has written its path.
func existing(urls ...string) error {
	for _, url := range urls {
		scheme, rest, _ := strings.Cut(url, ":")
		if scheme != "sqlite" || rest == "" {
			continue
		}
		path, err := sqlitePath(rest)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return usage(fmt.Sprintf("there is no file %s: the path is wrong, or no lock has been used in it yet", path))
		}
	}
	return nil
}

// openToLook is openDriver for a command that only looks at what there is. It makes no file: that of this user is empty before it is made.
func (g *globals) openToLook() (driver.Driver, error) {
	s := g.stores()
	if err := existing(s.URLs...); err != nil {
		return nil, err
	}
	if path, err := sqlitehold.DefaultPath(); err == nil && len(s.URLs) == 0 && !s.blank {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nothing{memhold.NewDriver(nil), "sqlite:" + path}, nil
		}
	}
	return g.openDriver()
}

// nothing stands for a file that has not been made yet.
type nothing struct {
	*memhold.Driver
	location string
}

// Traits implements driver.Driver.
func (n nothing) Traits() driver.Traits {
	t := n.Driver.Traits()
	t.Name, t.Location = "sqlite", n.location
	return t
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
