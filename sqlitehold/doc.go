package sqlitehold

import (
	_ "golang.org/x/sys/unix"
	_ "modernc.org/sqlite"
)
