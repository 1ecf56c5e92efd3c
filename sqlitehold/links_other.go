//go:build !unix

package sqlitehold

import "os"

// linksOf returns 1: other names are not looked for on this system.
func linksOf(os.FileInfo) int { return 1 }
