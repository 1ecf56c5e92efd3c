//go:build unix

package testenv

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	code := m.Run()
	End()
	os.Exit(code)
}

func TestPostgresKeepsItsDataOverKill(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t, "synchronous_commit=on")
	p.Do(t, "CREATE TABLE t (x int); INSERT INTO t VALUES (7)")
	p.Restart(t)
	if got := p.Do(t, "SELECT x FROM t"); got != "7" {
		t.Errorf("after kill -9 the table has %q", got)
	}
	p.Stop(t)
	p.Start(t)
	if got := p.Do(t, "SHOW synchronous_commit"); got != "on" {
		t.Errorf("synchronous_commit is %q", got)
	}
}

// Freezing the server freezes the backend of a client that is connected already.
func TestPostgresFreezes(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t)
	cmd := exec.Command("psql", "-XAtq", p.URL(), "-c", "SELECT pg_sleep(2)")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the client is connected", func() bool {
		return p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(2)' AND pid <> pg_backend_pid()") == "1"
	})
	p.Freeze(t)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Errorf("a frozen server has answered (%v)", err)
	case <-time.After(3 * time.Second):
	}
	p.Thaw(t)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the server does not answer after it was thawed")
	}
}

func TestPgbouncerShares(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t)
	b := StartPgbouncer(t, p, "transaction", "default_pool_size=1")
	ask := func() string {
		out, err := exec.Command("psql", "-XAtq", b.URL(), "-c", "SELECT pg_backend_pid()").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if first, second := ask(), ask(); first != second {
		t.Errorf("two clients got backends %q and %q", first, second)
	}
	b.Restart(t)
	ask()
}
