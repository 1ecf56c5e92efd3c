//go:build unix

package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const installRedis = "apt-get install redis-server"

// anyPort stands in the settings of a server for one more port, which is chosen when it starts.
const anyPort = "any port"

// A Redis is one redis-server.
type Redis struct {
	*Process
	Addr string // host:port
	Dir  string

	args []string
	env  []string
}

// StartRedis starts a redis-server that keeps nothing on disk. args are further settings in the form of its command
// line, and may override that.
func StartRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	return startRedis(tb, nil, args...)
}

func startRedis(tb testing.TB, env []string, args ...string) *Redis {
	tb.Helper()
	need(tb, "redis-server", installRedis)
	var err error
	for range 5 { // a port may have been taken meanwhile
		r := &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", freePort(tb)), Dir: tb.TempDir(), args: slices.Clone(args), env: env}
		if i := slices.Index(args, anyPort); i >= 0 {
			r.args[i] = strconv.Itoa(freePort(tb))
		}
		if err = r.start(tb); err == nil {
			return r
		}
	}
	tb.Fatalf("redis-server does not start: %v", err)
	return nil
}

func (r *Redis) start(tb testing.TB) error {
	tb.Helper()
	_, port, _ := net.SplitHostPort(r.Addr)
	args := append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", r.Dir, "--save", "", "--appendonly", "no",
		"--daemonize", "no", "--enable-debug-command", "yes", "--logfile", "",
	}, r.args...)
	cmd := exec.Command(need(tb, "redis-server", installRedis), args...)
	cmd.Env = append(os.Environ(), r.env...)
	r.Process = start(tb, cmd)
	for give := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if err := r.Process.ended(); err != nil {
			return err
		}
		_, err := r.ask("PING")
		var refused *ServerError
		if err == nil || errors.As(err, &refused) { // NOAUTH and LOADING are answers too
			// They could be those of another server that took the port. This one then says so and ends.
			if strings.Contains(r.out.String(), "Ready to accept connections") {
				return nil
			}
			err = errors.New("it is not ready")
		}
		if time.Now().After(give) {
			return err
		}
	}
}

// Restart kills the server and starts it again, on the same port and with the files it has.
func (r *Redis) Restart(tb testing.TB) {
	tb.Helper()
	r.Kill()
	Eventually(tb, "redis-server starts again on "+r.Addr, func() bool { return r.start(tb) == nil })
}

// Port returns the port alone.
func (r *Redis) Port() int {
	_, port, _ := net.SplitHostPort(r.Addr)
	n, _ := strconv.Atoi(port)
	return n
}

// Do runs one command on a connection of its own and returns its reply as text. Errors fail the test.
func (r *Redis) Do(tb testing.TB, args ...string) string {
	tb.Helper()
	reply, err := r.ask(args...)
	if err != nil {
		tb.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return reply
}

// Try is Do for commands that may fail.
func (r *Redis) Try(args ...string) (string, error) { return r.ask(args...) }

// A ServerError is an error reply.
type ServerError struct{ Text string }

// Error returns the server's words.
func (e *ServerError) Error() string { return e.Text }

func (r *Redis) ask(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.Addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	fmt.Fprintf(conn, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(a), a)
	}
	return readReply(bufio.NewReader(conn))
}

// readReply reads one reply of the protocol, with the parts of arrays on lines of their own.
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, rest := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '-':
		return "", &ServerError{rest}
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		b := make([]byte, n+2)
		_, err = io.ReadFull(r, b)
		return string(b[:n]), err
	case '*':
		n, err := strconv.Atoi(rest)
		parts := make([]string, max(0, n))
		for i := range parts {
			if parts[i], err = readReply(r); err != nil {
				return "", err
			}
		}
		return strings.Join(parts, "\n"), err
	default:
		return rest, nil
	}
}
