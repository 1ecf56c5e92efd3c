//go:build unix

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultPath is searched if the environment has no PATH, as execvp(3) does.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// startCommand starts the command with this process's descriptors 0, 1 and 2.
func startCommand(argv, env []string, dir string, sys *syscall.SysProcAttr) (pid int, failed *StartError) {
	name := argv[0]
	if dir != "" {
		if st, err := os.Stat(dir); err != nil {
			return 0, &StartError{Kind: NotStarted, Command: name, Err: fmt.Errorf("working directory: %w", err)}
		} else if !st.IsDir() {
			return 0, &StartError{Kind: NotStarted, Command: name, Err: fmt.Errorf("working directory: %s: %w", dir, syscall.ENOTDIR)}
		}
	}
	path, err := lookPath(name, dir, env)
	if err != nil {
		return 0, startError(name, err)
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: []uintptr{0, 1, 2}, Sys: sys}
	pid, err = syscall.ForkExec(path, argv, attr)
	if errors.Is(err, syscall.ENOEXEC) && isText(inDir(dir, path)) {
		// A script without a #! line: shells, env, nice and flock run it with sh, so its owner has never noticed.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, argv[1:]...), attr)
	}
	if err == syscall.ENOENT {
		if _, serr := os.Stat(inDir(dir, path)); serr == nil {
			err = fmt.Errorf("its interpreter (the #! line, or the dynamic loader) does not exist: %w", err)
		}
	}
	if err != nil {
		return 0, startError(name, err)
	}
	return pid, nil
}

// lookPath finds the executable as execvp(3) does. Package os/exec differs in two ways: it finds nothing in the current
// directory even if PATH names it, and it does not tell "not executable" from "not found".
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // the kernel will tell
	}
	if name == "" {
		return "", syscall.ENOENT
	}
	result := error(syscall.ENOENT)
	path, ok := getenv(env, "PATH")
	if !ok {
		path = defaultPath
	}
	for _, d := range strings.Split(path, ":") {
		if d == "" {
			d = "."
		}
		p := d + "/" + name
		err := executable(inDir(dir, p))
		if err == nil {
			return p, nil
		}
		if errors.Is(err, syscall.EACCES) {
			result = err // it was found after all; go on as execvp does
		}
	}
	return "", result
}

func executable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return syscall.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// isText guesses, as bash does, whether a file that the kernel would not execute is a script.
func isText(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	buf := make([]byte, 128)
	n, _ := f.Read(buf)
	return bytes.IndexByte(buf[:n], 0) < 0
}

// inDir returns path as seen from dir.
func inDir(dir, path string) string {
	if dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// getenv returns the last setting, which is the one that counts.
func getenv(env []string, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// setenv returns env with exactly one setting of name, or none if value is empty.
func setenv(env []string, name, value string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	if value != "" {
		out = append(out, name+"="+value)
	}
	return out
}
