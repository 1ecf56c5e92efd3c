package e2e

import (
	"net"
	"strings"
	"syscall"
	"testing"
)

// A signal ends a command whose store has taken the connection and says nothing, also while the store is being opened, and however long
// a call may take.
func TestSignalToASilentStore(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"rows":     {"--store", "postgres://app@ADDR/app"},
		"sessions": {"--store", "postgres+advisory://app@ADDR/app"},
		"waits":    {"--store", "postgres://app@ADDR/app", "--wait", "forever"},
		"ledger":   {"--ledger", "postgres://app@ADDR/app"},
		"redis":    {"--store", "redis://ADDR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			taken := make(chan net.Conn, 100)
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						close(taken)
						return
					}
					taken <- conn
				}
			}()
			b := newBox(t)
			all := append([]string{"run", "job", "--timeout", "1h"}, args...)
			for i := range all {
				all[i] = strings.ReplaceAll(all[i], "ADDR", l.Addr().String())
			}
			p := b.start(append(all, "--", "echo", "ran")...)
			var conn net.Conn
			eventually(t, "it has a connection", func() bool {
				select {
				case conn = <-taken:
				default:
				}
				return conn != nil
			})
			defer conn.Close()
			p.signal(syscall.SIGTERM)
			out := p.wait()
			if out.code != 128+15 || out.out != "" {
				t.Errorf("%+v, want 143", out)
			}
			contains(t, "stderr", out.err, "ended by signal terminated", "nothing was run")
		})
	}
}
