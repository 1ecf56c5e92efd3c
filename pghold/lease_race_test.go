//go:build unix

package pghold

import (
	"context"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A waiter takes its place while a release is on its way to the disk: neither sees what the other writes. It is woken all the
// same.
func TestAWaiterMeetsARelease(t *testing.T) {
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d, err := NewLeaseDriver(t.Context(), p.URL(), &LeaseOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The process listens already, as one that has waited before.
	_, stop, err := d.Watch(ctx, "other")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	req := leaseRequest("k", time.Minute)
	mustGrant(t, d, req)
	conn := connect(t, p.URL())
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var answer string
	if err := tx.QueryRow(ctx, inSchema(`SELECT "holdlock".release('', 'k', $1, 0, false)`, schema), execMode, req.Ref.Nonce).Scan(&answer); err != nil || answer != "released" {
		t.Fatalf("%q, %v", answer, err)
	}
	type watching struct {
		hints <-chan struct{}
		stop  func()
		err   error
	}
	done := make(chan watching, 1)
	go func() {
		var w watching
		w.hints, w.stop, w.err = d.Watch(ctx, "k")
		done <- w
	}()
	// Either it stands in line by now, or it waits for the release to be over.
	var w watching
	for over := false; !over; {
		select {
		case w = <-done:
			over = true
		case <-time.After(10 * time.Millisecond):
			over = p.Do(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'") != "0"
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if w.stop == nil {
		w = <-done
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	defer w.stop()
	select {
	case <-w.hints:
	case <-time.After(patience):
		t.Error("nobody has woken the waiter")
	}
	if _, err := d.Acquire(ctx, &driver.AcquireRequest{Ref: leaseRequest("k", time.Minute).Ref, TTL: time.Minute}); err != nil {
		t.Error(err)
	}
}
