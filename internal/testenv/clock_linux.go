package testenv

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/pguser"
)

//go:embed testdata/clock.c
var clockSource []byte

// A Clock is the wall clock of a server, which the test can step.
type Clock struct {
	file *os.File
}

// StartRedisWithClock starts a redis-server whose clock can be stepped. Only its wall clock is: timeouts by the monotonic
// clock go on. It needs gcc.
func StartRedisWithClock(tb testing.TB, args ...string) (*Redis, *Clock) {
	tb.Helper()
	c, env := newClock(tb, tb.TempDir())
	return startRedis(tb, env, args...), c
}

// StartPostgresWithClock is StartPostgres of a server whose wall clock can be stepped. It needs gcc.
func StartPostgresWithClock(tb testing.TB, settings ...string) (*Postgres, *Clock) {
	tb.Helper()
	dir := postgresDir(tb)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	c, env := newClock(tb, dir)
	p := newPostgres(tb, env, settings...)
	tb.Cleanup(func() {
		p.Kill()
		_ = os.RemoveAll(filepath.Dir(p.Data))
	})
	return p, c
}

// newClock makes a clock in dir, and returns the environment of the program that is to go by it.
func newClock(tb testing.TB, dir string) (c *Clock, env []string) {
	tb.Helper()
	gcc := need(tb, "gcc", "apt-get install gcc")
	source, lib, offset := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "offset")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-O2", "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		tb.Fatalf("building the clock: %v\n%s", err, out)
	}
	if err := os.WriteFile(offset, make([]byte, 4096), 0o600); err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{lib, offset} { // the server may run as another user
		if err := pguser.Own(name); err != nil {
			tb.Fatal(err)
		}
	}
	f, err := os.OpenFile(offset, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	return &Clock{f}, []string{"LD_PRELOAD=" + lib, "CLOCK_SHIM=" + offset}
}

// Set makes the clock differ from the true time by d.
func (c *Clock) Set(tb testing.TB, d time.Duration) {
	tb.Helper()
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(d.Microseconds()))
	if _, err := c.file.WriteAt(b[:], 0); err != nil {
		tb.Fatal(err)
	}
}
