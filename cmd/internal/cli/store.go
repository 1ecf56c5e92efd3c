package cli

import (
	"fmt"
	"strings"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/sqlitehold"
)

// openStore opens the driver that a URL names. Nothing of a URL but its scheme is ever printed here: the rest may hold a
// password.
func openStore(url, namespace string) (driver.Driver, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	switch {
	case url == "":
		path, err := sqlitehold.DefaultPath()
		if err != nil {
			return nil, fmt.Errorf("no --store is given and there is no default: %w", err)
		}
		return openSQLite(path, namespace)
	case !ok:
		return nil, usage("--store is not a URL; known: sqlite:PATH")
	case scheme == "sqlite" && rest == "":
		return nil, usage("--store sqlite: names no file; write sqlite:PATH")
	case scheme == "sqlite":
		return openSQLite(rest, namespace)
	case isRedis(scheme):
		return openRedis(scheme, rest, namespace)
	}
	return nil, usage(fmt.Sprintf("--store has the unknown scheme %q; known: sqlite:PATH, redis://, rediss://, "+
		"redis+sentinel://, redis+cluster://", scheme))
}

func openSQLite(path, namespace string) (driver.Driver, error) {
	d, err := sqlitehold.NewDriver(path, &sqlitehold.Options{Namespace: namespace})
	if err != nil {
		return nil, err // not d: a nil *Driver is not a nil Driver
	}
	return d, nil
}
