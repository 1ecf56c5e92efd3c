//go:build unix

package testenv

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/pguser"
)

const installPostgres = "apt-get install postgresql"

// A Postgres is one PostgreSQL server with a data directory of its own. It listens on a loopback port and on a unix
// socket, and trusts everybody; its superuser is called postgres.
type Postgres struct {
	*Process
	Addr   string // host:port
	Socket string // the directory of the socket
	Data   string // the data directory

	settings []string
	env      []string
}

// StartPostgres starts a server until the test ends. Settings have the form name=value, as in postgresql.conf. Without
// any it does not sync its files, so it survives a kill of the server but not one of the machine.
func StartPostgres(tb testing.TB, settings ...string) *Postgres {
	tb.Helper()
	p := newPostgres(tb, nil, settings...)
	tb.Cleanup(func() {
		p.Kill()
		_ = os.RemoveAll(filepath.Dir(p.Data))
	})
	return p
}

// newPostgres starts a server that the caller removes.
func newPostgres(tb testing.TB, env []string, settings ...string) *Postgres {
	tb.Helper()
	dir := postgresDir(tb)
	p := &Postgres{Socket: dir, Data: filepath.Join(dir, "data"), settings: settings, env: env}
	template := postgresTemplate(tb)
	if out, err := pguser.As(exec.Command("cp", "-R", template, p.Data)).CombinedOutput(); err != nil {
		tb.Fatalf("copying the data directory: %v\n%s", err, out)
	}
	var err error
	for range 5 { // the port may have been taken meanwhile
		p.Addr = fmt.Sprintf("127.0.0.1:%d", freePort(tb))
		if err = p.start(tb); err == nil {
			return p
		}
	}
	tb.Fatalf("postgres does not start: %v", err)
	return nil
}

func (p *Postgres) start(tb testing.TB) error {
	tb.Helper()
	args := []string{
		"-D", p.Data, "-k", p.Socket, "-p", strconv.Itoa(p.Port()), "-c", "listen_addresses=127.0.0.1",
		"-c", "fsync=off", "-c", "shared_buffers=32MB", "-c", "max_connections=200", "-c", "log_timezone=UTC",
	}
	for _, s := range p.settings {
		args = append(args, "-c", s)
	}
	cmd := pguser.As(exec.Command(postgresProgram(tb, "postgres"), args...))
	cmd.Env = append(os.Environ(), append([]string{"LC_ALL=C"}, p.env...)...)
	p.Process = startUntilEnd(tb, cmd)
	for give := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := p.Process.ended(); err != nil {
			return err
		}
		if _, err := p.psql("SELECT 1"); err == nil {
			return nil
		} else if time.Now().After(give) {
			p.Kill()
			return err
		}
	}
}

// Kill ends the server and all its backends at once, as kill -9 does. It may be called again.
func (p *Postgres) Kill() {
	select {
	case <-p.done: // its number may be another process's by now
		return
	default:
	}
	// The children first: those of a dead parent cannot be found any more. None may be born meanwhile.
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	for _, pid := range childrenOf(p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	p.Process.Kill()
}

// Stop ends the server as an administrator does who does not wait for clients ("fast"): they are told.
func (p *Postgres) Stop(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGINT)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		tb.Fatalf("postgres does not stop: %s", p.out.String())
	}
}

// Start starts a server again that has ended, on the same port and with the files it has.
func (p *Postgres) Start(tb testing.TB) {
	tb.Helper()
	Eventually(tb, "postgres starts again on "+p.Addr, func() bool { return p.start(tb) == nil })
}

// Restart kills the server and starts it again.
func (p *Postgres) Restart(tb testing.TB) {
	tb.Helper()
	p.Kill()
	p.Start(tb)
}

// Freeze stops the server and all its backends where they are. Their sockets stay open and take what is sent to them.
func (p *Postgres) Freeze(tb testing.TB) {
	tb.Helper()
	p.Process.Freeze(tb)
	for _, pid := range childrenOf(p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
}

// Thaw lets them go on.
func (p *Postgres) Thaw(tb testing.TB) {
	tb.Helper()
	for _, pid := range childrenOf(p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	p.Process.Thaw(tb)
}

// Port returns the port alone.
func (p *Postgres) Port() int { return portOf(p.Addr) }

// URL returns where the database postgres is, with further parameters in the form name=value.
func (p *Postgres) URL(params ...string) string { return PostgresURL(p.Addr, params...) }

// Do runs SQL on a connection of its own and returns the rows, with columns separated by |. Errors fail the test.
func (p *Postgres) Do(tb testing.TB, sql string) string {
	tb.Helper()
	out, err := p.psql(sql)
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return out
}

func (p *Postgres) psql(sql string) (string, error) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		psql = postgresBin("psql")
	}
	cmd := exec.Command(psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", p.URL("connect_timeout=10"), "-c", sql)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}

// PostgresURL returns where the database postgres of a server or proxy is.
func PostgresURL(addr string, params ...string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: addr, Path: "/postgres"}
	q := url.Values{"sslmode": {"disable"}}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		q.Set(name, value)
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // as libpq reads it, + is no space
	return u.String()
}

func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return n
}

// postgresProgram finds a program of the server. Debian keeps them out of PATH, one folder for each version.
func postgresProgram(tb testing.TB, name string) string {
	tb.Helper()
	if path := postgresBin(name); path != "" {
		return path
	}
	return need(tb, name, installPostgres)
}

// postgresBin returns the program of the newest version there is, or "".
func postgresBin(name string) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	best, newest := "", -1
	for _, path := range found {
		version, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if version > newest {
			best, newest = path, version
		}
	}
	return best
}

// postgresDir makes a directory that the server may use. tb.TempDir does not do: the server may have to run as a user who
// cannot enter it, and the path of a unix socket must be short.
func postgresDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "holdlock-pg-")
	if err == nil {
		err = pguser.Own(dir)
	}
	if err != nil {
		tb.Fatalf("a directory for postgres: %v", err)
	}
	return dir
}

// The data directory that all servers of the test binary start from: making one takes a second.
var postgresOnce struct {
	sync.Mutex
	dir    string // of the template, once it is made
	shared *Postgres
}

func postgresTemplate(tb testing.TB) string {
	tb.Helper()
	initdb := postgresProgram(tb, "initdb")
	postgresOnce.Lock()
	defer postgresOnce.Unlock()
	if postgresOnce.dir == "" {
		dir := postgresDir(tb)
		cmd := pguser.As(exec.Command(initdb, "-D", filepath.Join(dir, "data"), "-U", "postgres", "-A", "trust",
			"-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"))
		if out, err := cmd.CombinedOutput(); err != nil {
			_ = os.RemoveAll(dir)
			tb.Fatalf("initdb: %v\n%s", err, out)
		}
		postgresOnce.dir = dir
	}
	return filepath.Join(postgresOnce.dir, "data")
}

// SharedPostgres returns a server that all tests of the binary use, each with schemas or databases of its own. It lives
// until End.
func SharedPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	postgresTemplate(tb)
	postgresOnce.Lock()
	shared := postgresOnce.shared
	postgresOnce.Unlock()
	if shared != nil {
		return shared
	}
	p := newPostgres(tb, nil)
	postgresOnce.Lock()
	defer postgresOnce.Unlock()
	if postgresOnce.shared == nil {
		postgresOnce.shared = p
	} else {
		p.Kill()
		_ = os.RemoveAll(filepath.Dir(p.Data))
	}
	return postgresOnce.shared
}

// End removes what outlives single tests: the shared server and the template. TestMain calls it at the end.
func End() {
	postgresOnce.Lock()
	defer postgresOnce.Unlock()
	if p := postgresOnce.shared; p != nil {
		p.Kill()
		_ = os.RemoveAll(filepath.Dir(p.Data))
		postgresOnce.shared = nil
	}
	if postgresOnce.dir != "" {
		_ = os.RemoveAll(postgresOnce.dir)
		postgresOnce.dir = ""
	}
}

// Rows runs SQL on a connection of its own and returns the lines it gives.
func (p *Postgres) Rows(sql string) ([]string, error) {
	out, err := p.psql(sql)
	if out == "" || err != nil {
		return nil, err
	}
	return strings.Split(out, "\n"), nil
}

// StartReplica starts a hot standby of p until the test ends.
func (p *Postgres) StartReplica(tb testing.TB) *Postgres {
	tb.Helper()
	dir := postgresDir(tb)
	r := &Postgres{Socket: dir, Data: filepath.Join(dir, "data")}
	cmd := pguser.As(exec.Command(postgresProgram(tb, "pg_basebackup"), "-R", "-X", "stream", "--no-sync", "-c", "fast",
		"-D", r.Data, "-d", p.URL()))
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	r.Addr = fmt.Sprintf("127.0.0.1:%d", freePort(tb))
	if err := r.start(tb); err != nil {
		tb.Fatalf("the replica does not start: %v", err)
	}
	tb.Cleanup(func() {
		r.Kill()
		_ = os.RemoveAll(dir)
	})
	return r
}
