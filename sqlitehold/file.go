package sqlitehold

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// smallestFile is the size of one page of the smallest kind. The engine takes a file of one byte for an empty one.
const smallestFile = 512

// A fileSystem is what matters of the file system of a file.
type fileSystem struct {
	shared string // its name, if other machines may reach the file too
	memory string // its name, if it is lost on reboot
}

func (f fileSystem) check(path string, durable bool) error {
	switch {
	case f.shared != "":
		return fmt.Errorf("sqlitehold: %s is on a network file system (%s), where file locks cannot be relied on; "+
			"name a file on a local disk for the locks of one machine, or use a server store for those of several", path, f.shared)
	case f.memory != "" && durable:
		return fmt.Errorf("sqlitehold: %s is on %s, which a reboot empties; name a file on a disk, or do without Options.Durable",
			path, f.memory)
	}
	return nil
}

// prepareFile makes sure that there is a regular file at path, empty if it is new, on a file system that will do, and
// returns its path without symbolic links: the log beside the file is found by that name, so all processes must agree on it.
// missing says that the file could not be made and is left to the engine.
func prepareFile(path string, durable bool, e *env) (real string, missing bool, err error) {
	if path == "" {
		return "", false, errors.New("sqlitehold: the file has no name")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", false, fmt.Errorf("sqlitehold: %w", err)
	}
	info, err := os.Stat(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return createFile(abs, durable, e)
	}
	switch {
	case err != nil:
		return "", false, fmt.Errorf("sqlitehold: %w", err)
	case info.IsDir():
		return "", false, fmt.Errorf("sqlitehold: %s is a directory; name a file in it", abs)
	case !info.Mode().IsRegular():
		return "", false, fmt.Errorf("sqlitehold: %s is not a regular file (%v)", abs, info.Mode().Type())
	case info.Size() > 0 && info.Size() < smallestFile:
		return "", false, fmt.Errorf("sqlitehold: the file %s is not a database; name another one, or move it away", abs)
	}
	real, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return "", false, fmt.Errorf("sqlitehold: %w", err)
	}
	if err := e.checkFileSystem(real, durable); err != nil {
		return "", false, err
	}
	return real, false, checkNames(real)
}

func (e *env) checkFileSystem(path string, durable bool) error {
	if e.fileSystem == nil {
		return nil
	}
	kind, err := e.fileSystem(path)
	if err != nil {
		return fmt.Errorf("sqlitehold: %w", err)
	}
	return kind.check(path, durable)
}

// isVolatile says whether a reboot empties the file system of a file.
func (e *env) isVolatile(path string) bool {
	if e.fileSystem == nil {
		return false
	}
	kind, err := e.fileSystem(filepath.Dir(path)) // the file itself may not be there yet
	return err == nil && kind.memory != ""
}

// createFile makes an empty file of mode 0600, and its directory, of mode 0700, if that is missing. Further directories are made
// for the default file only: in a path that somebody has written they are most likely a slip.
func createFile(path string, durable bool, e *env) (real string, missing bool, err error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return "", false, fmt.Errorf("sqlitehold: %s is a symbolic link to a file that does not exist", path)
	}
	// The file system is judged before anything is made on it.
	dir := filepath.Dir(path)
	exists := dir
	for {
		_, err := os.Stat(exists)
		if err == nil {
			break
		}
		up := filepath.Dir(exists)
		if !errors.Is(err, fs.ErrNotExist) || up == exists {
			return "", false, fmt.Errorf("sqlitehold: %w", err)
		}
		exists = up
	}
	if err := e.checkFileSystem(exists, durable); err != nil {
		return "", false, err
	}
	if own, err := DefaultPath(); exists != dir && exists != filepath.Dir(dir) && (err != nil || path != own) {
		return "", false, fmt.Errorf("sqlitehold: cannot make %s: there is no directory %s; make it, or correct the path", path, filepath.Dir(dir))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", false, fmt.Errorf("sqlitehold: %w", err)
	}
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return "", false, fmt.Errorf("sqlitehold: %w", err)
	}
	path = filepath.Join(dir, filepath.Base(path))

	// It is made ready under another name, so that nobody sees it half ready, and many may do so at once: the first one
	// wins. Besides, we must not open the file itself to set its mode: when one descriptor of a file is closed, the kernel
	// drops all the locks that the process has on it, and another driver of this process may have some by then.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.new") // mode 0600
	if err != nil {
		return "", false, fmt.Errorf("sqlitehold: cannot make %s: %w", path, err)
	}
	defer os.Remove(tmp.Name())
	if err := tmp.Close(); err != nil {
		return "", false, fmt.Errorf("sqlitehold: cannot make %s: %w", path, err)
	}
	if err := initialiseFile(tmp.Name(), durable); err != nil {
		advice, _ := diagnose(err)
		return "", false, fmt.Errorf("sqlitehold: cannot make %s: %s%w", path, advice, err)
	}
	// Where there are no links (FAT) there are no modes either. The engine makes the file when it opens it.
	err = os.Link(tmp.Name(), path)
	return path, err != nil && !errors.Is(err, fs.ErrExist), nil
}

// initialiseFile makes an empty file that nobody else knows ours.
func initialiseFile(path string, durable bool) error {
	w, err := connect(path, "rw", durable)
	if err != nil {
		return err
	}
	return errors.Join(w.setUp(path), w.close())
}
