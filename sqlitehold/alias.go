package sqlitehold

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The log of a file and its index are found by its name. Whoever opens one file by two names has two logs and two sets of
// locks: they do not exclude each other, and the file is damaged in the end. Symbolic links, and mounts of the directory, do no
// harm, since the path is resolved and the log stands beside the file. Two things do, and are refused: a hard link, and the
// file mounted alone.

// checkNames says why the file at path, which has no symbolic links in it, may be known to others by another name.
func checkNames(path string) error {
	if alone, _ := mountedAlone(path); alone {
		return fmt.Errorf("sqlitehold: %s is mounted alone, so its log beside it is not that of the programs outside, and locks would not exclude them; "+
			"mount its directory instead (docker: -v DIR:DIR, not -v FILE:FILE)", path)
	}
	n, err := otherNames(path)
	if err != nil {
		return fmt.Errorf("sqlitehold: %w", err)
	}
	if n > 0 {
		return fmt.Errorf("sqlitehold: %s has %d hard links, and programs that open it by another name have a log of their own and would not be excluded; "+
			"remove the others (find them: find DIR -samefile %s)", path, n+1, path)
	}
	return nil
}

// otherNames counts the hard links of a file beside path. Those that are left of its making are removed first: see
// createFile, where the file has two names for a moment, and for ever if the process is killed in it.
func otherNames(path string) (int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if linksOf(info) <= 1 {
		return 0, nil
	}
	dir, base := filepath.Split(path)
	beside, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range beside {
		if !strings.HasPrefix(e.Name(), "."+base+".") || !strings.HasSuffix(e.Name(), ".new") {
			continue
		}
		if other, err := e.Info(); err == nil && os.SameFile(info, other) {
			_ = os.Remove(dir + e.Name()) // or its maker has
		}
	}
	if info, err = os.Stat(path); err != nil {
		return 0, err
	}
	return max(linksOf(info), 1) - 1, nil
}
