package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal is a real one (a pseudo terminal), with a process in it that leads a session of its own.
type terminal struct {
	*proc
	master *os.File

	mu  sync.Mutex
	out []byte // all that was shown, with \r\n as the terminal makes it
}

// inTerminal starts cmd in a new terminal.
func (b *box) inTerminal(cmd *exec.Cmd) *terminal {
	b.t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	term := &terminal{master: os.NewFile(uintptr(fd), "ptmx")}
	b.t.Cleanup(func() { term.master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		b.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		b.t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	term.proc = b.launch(cmd)
	go term.watch()
	return term
}

func (term *terminal) watch() {
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		term.out = append(term.out, buf[:n]...)
		term.mu.Unlock()
		if err != nil { // nobody has the terminal open any more
			return
		}
	}
}

func (term *terminal) shown() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return string(term.out)
}

// types types text.
func (term *terminal) types(text string) {
	term.t.Helper()
	if _, err := io.WriteString(term.master, text); err != nil {
		term.t.Fatal(err)
	}
}

// shows waits until the terminal shows text, after what it showed at the last call, and returns what stands before it.
func (term *terminal) shows(text string) string {
	term.t.Helper()
	var before string
	if !poll(enough, func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		first, rest, ok := strings.Cut(string(term.out), text)
		if ok {
			before, term.out = first, []byte(rest)
		}
		return ok
	}) {
		term.t.Fatalf("the terminal does not show %q: %q", text, term.shown())
	}
	return before
}
