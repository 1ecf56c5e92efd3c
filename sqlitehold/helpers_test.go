package sqlitehold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

var ctx = context.Background()

// acquire returns a request with a nonce of its own.
func acquire(key string, ttl time.Duration) *driver.AcquireRequest {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return &driver.AcquireRequest{
		Ref: driver.Ref{Key: key, Nonce: hex.EncodeToString(b[:])},
		TTL: ttl, Holder: driver.Holder{Host: "worker", PID: 4711, Purpose: "calls the payments API"},
	}
}

func release(ref driver.Ref) *driver.ReleaseRequest { return &driver.ReleaseRequest{Ref: ref} }

// A machineClock is what a test sets the clocks of a machine to.
type machineClock struct {
	boot    atomic.Int64 // ns since boot
	wall    atomic.Int64 // µs since 1970
	bootID  string
	netName string
}

func newMachine() *machineClock {
	m := &machineClock{bootID: "boot-1", netName: "net-1"}
	m.boot.Store(int64(1000 * time.Hour))
	m.wall.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro())
	return m
}

// pass lets time go by on both clocks.
func (m *machineClock) pass(d time.Duration) {
	m.boot.Add(int64(d))
	m.wall.Add(d.Microseconds())
}

func (m *machineClock) env() env {
	return env{
		now:        func() time.Duration { return time.Duration(m.boot.Load()) },
		wall:       func() time.Time { return time.UnixMicro(m.wall.Load()) },
		boot:       m.bootID,
		net:        m.netName,
		openBudget: patience,
	}
}

// openOn opens path with the clocks of m.
func openOn(tb testing.TB, path string, m *machineClock) *Driver {
	tb.Helper()
	d, err := newDriver(path, nil, m.env())
	check(tb, err)
	tb.Cleanup(func() { d.Close() })
	return d
}

// open opens path as every process does.
func open(tb testing.TB, path string) *Driver {
	tb.Helper()
	d, err := NewDriver(path, nil)
	check(tb, err)
	tb.Cleanup(func() { d.Close() })
	return d
}

func tempFile(tb testing.TB) string { return filepath.Join(tb.TempDir(), "locks.db") }

func mustAcquire(tb testing.TB, d *Driver, key string, ttl time.Duration) (driver.Ref, driver.Grant) {
	tb.Helper()
	req := acquire(key, ttl)
	g, err := d.Acquire(ctx, req)
	check(tb, err)
	return req.Ref, g
}

func isHeld(err error) bool {
	var held *driver.HeldError
	return errors.As(err, &held)
}

// count returns the number of rows of a table, as a further process sees it.
func count(tb testing.TB, path, table string) (n int) {
	tb.Helper()
	w, err := connect(path, "ro", false)
	check(tb, err)
	defer w.close()
	_, err = w.once("SELECT count(*) FROM "+table, &n)
	check(tb, err)
	return n
}
