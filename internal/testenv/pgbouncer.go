//go:build unix

package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/pguser"
)

// A Pgbouncer is a pooler in front of a server.
type Pgbouncer struct {
	*Process
	Addr string // host:port

	server *Postgres
	mode   string
	extra  []string
}

// StartPgbouncer starts a pooler in front of p until the test ends. The mode is transaction, session or statement;
// settings have the form name=value, as in pgbouncer.ini.
func StartPgbouncer(tb testing.TB, p *Postgres, mode string, settings ...string) *Pgbouncer {
	tb.Helper()
	need(tb, "pgbouncer", "apt-get install pgbouncer")
	var err error
	for range 5 { // the port may have been taken meanwhile
		b := &Pgbouncer{Addr: fmt.Sprintf("127.0.0.1:%d", freePort(tb)), server: p, mode: mode, extra: settings}
		if err = b.start(tb); err == nil {
			tb.Cleanup(func() { b.Kill() })
			return b
		}
	}
	tb.Fatalf("pgbouncer does not start: %v", err)
	return nil
}

func (b *Pgbouncer) start(tb testing.TB) error {
	tb.Helper()
	dir := postgresDir(tb)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	users, ini := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	conf := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\n"+
		"unix_socket_dir =\nauth_type = trust\nauth_file = %s\npool_mode = %s\nmax_client_conn = 1000\ndefault_pool_size = 20\n",
		b.server.Port(), portOf(b.Addr), users, b.mode)
	for _, s := range b.extra {
		conf += s + "\n"
	}
	err := errors.Join(os.WriteFile(users, []byte("\"postgres\" \"\"\n"), 0o644), os.WriteFile(ini, []byte(conf), 0o644))
	if err != nil {
		return err
	}
	b.Process = startUntilEnd(tb, pguser.As(exec.Command(need(tb, "pgbouncer", "apt-get install pgbouncer"), ini)))
	for give := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err := b.ended(); err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", b.Addr, 5*time.Second)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(give) {
			b.Kill()
			return err
		}
	}
}

// Restart kills the pooler and starts it again, on the same port.
func (b *Pgbouncer) Restart(tb testing.TB) {
	tb.Helper()
	b.Kill()
	Eventually(tb, "pgbouncer starts again on "+b.Addr, func() bool { return b.start(tb) == nil })
}

// URL returns where the database postgres is, by way of the pooler.
func (b *Pgbouncer) URL(params ...string) string { return PostgresURL(b.Addr, params...) }
