// Package servers starts private real servers for the lab: on loopback ports, with their files in a directory that the lab
// removes. They end when the lab ends them, and on Linux also when it is killed.
package servers

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// A MissingError says that a program is not installed.
type MissingError struct{ Program, Install string }

// Error says how to install it.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%s was not found; on Debian: %s", e.Program, e.Install)
}

// find returns the path of a program.
func find(program, install string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", &MissingError{program, install}
	}
	return path, nil
}

// freePort returns a loopback port that nobody listens on. Another process can take it before the server does; whoever
// starts one tries again then.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// attempts is how often a server is started anew because its port may have been taken.
const attempts = 5

// A Dir is where all servers of the lab have their files.
type Dir struct {
	path string
	mu   sync.Mutex
	n    int
}

// NewDir makes one in the system's directory for temporary files.
func NewDir() (*Dir, error) {
	path, err := os.MkdirTemp("", "holdlock-lab-")
	if err != nil {
		return nil, err
	}
	// PostgreSQL runs as another user if this is root. What is in it is not listed to others.
	return &Dir{path: path}, errors.Join(os.Chmod(path, 0o711), nil)
}

// Path returns the path of a new file or directory in it.
func (d *Dir) Path(kind string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	return filepath.Join(d.path, fmt.Sprintf("%s-%d", kind, d.n))
}

// Remove removes it. All servers must have ended.
func (d *Dir) Remove() error { return os.RemoveAll(d.path) }

// output is what a server has written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) contains(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Contains(o.buf.String(), text)
}

// last returns its last lines, for an error message.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.TrimSpace(o.buf.String())
	if cut := len(text) - 500; cut > 0 {
		text = "… " + text[cut:]
	}
	return text
}
