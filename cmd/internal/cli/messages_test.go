//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// What servers and libraries say is told in one line, with what matters in front.
func TestMessagesOfServers(t *testing.T) {
	p := testenv.SharedPostgres(t)
	r := testenv.StartRedis(t)
	nowhere := "postgres://postgres@" + p.Addr + "/nowhere" // TLS is tried first, which this server has not
	for name, c := range map[string]struct {
		args      []string
		want, not string
	}{
		"a database that is not there": {
			args: []string{"ls", "--store", nowhere}, want: `the server refused the connection: FATAL: database "nowhere" does not exist`, not: `\t`,
		},
		"the same for session locks": {
			args: []string{"ls", "--store", strings.Replace(nowhere, ":", "+advisory:", 1)}, want: `FATAL: database "nowhere" does not exist`, not: "TLS",
		},
		"the same for migrate": {args: []string{"migrate", "--store", nowhere}, want: `FATAL: database "nowhere" does not exist`, not: "TLS"},
		"no server":            {args: []string{"ls", "--store", "postgres://127.0.0.1:1/x"}, want: "connection refused", not: `\t`},
		"TLS to a server without": {
			args: []string{"ls", "--timeout", "1s", "--store", "rediss://" + r.Addr}, want: "use redis:// or its TLS port", not: "\n\t",
		},
		"TLS to a server without, run": {
			args: []string{"run", "x", "--timeout", "1s", "--store", "rediss://" + r.Addr, "--", "true"}, want: "use redis:// or its TLS port", not: "\n\t",
		},
	} {
		code, stdout, stderr := invoke(c.args...)
		if code != exitUnavailable || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.want) || strings.Contains(stderr, c.not) {
			t.Errorf("%s: %d %s%s", name, code, stdout, stderr)
		}
	}
}

// A role that is not there is noticed before anything is made.
func TestMigrateForNobody(t *testing.T) {
	p := testenv.SharedPostgres(t)
	code, _, stderr := invoke("migrate", "--store", p.URL("schema=for_nobody"), "--grant", "nobody at all")
	if code != exitUsage || !strings.Contains(stderr, "no such role; nothing was made") {
		t.Errorf("%d %s", code, stderr)
	}
	if made := p.Do(t, "SELECT count(*) FROM pg_namespace WHERE nspname = 'for_nobody'"); made != "0" {
		t.Error("the schema was made all the same")
	}
}

// Session locks and lease rows are told apart.
func TestPostgresLocations(t *testing.T) {
	p := testenv.SharedPostgres(t)
	url := p.URL("schema=locations")
	if code, _, stderr := invoke("migrate", "--store", url); code != exitOK {
		t.Fatalf("migrate: %d %s", code, stderr)
	}
	_, _, rows := invoke("ls", "--store", url)
	_, _, sessions := invoke("ls", "--store", strings.Replace(url, ":", "+advisory:", 1))
	if rows == sessions || !strings.Contains(sessions, "session locks") {
		t.Errorf("%s%s", rows, sessions)
	}
}
