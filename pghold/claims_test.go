//go:build unix

package pghold

import (
	"slices"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Operators see by name who has a lock in a transaction, who waits for it and because of whom, and who stands in line.
func TestClaims(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	c := leaseClient(t, p.URL(), schema)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	settle, err := c.NewLock("settle", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	first, second := connect(t, p.URL("application_name=first")), connect(t, p.URL("application_name=second"))
	tx, err := first.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := Lock(ctx, tx, settle.For("monday")); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		tx, err := second.Begin(ctx)
		if err == nil {
			if err = Lock(ctx, tx, settle.For("monday")); err == nil {
				err = tx.Commit(ctx)
			}
		}
		waited <- err
	}()
	held := leaseRequest("nightly", time.Minute)
	mustGrant(t, d, held)
	_, stop, err := d.Watch(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	var got []Claim
	testenv.Eventually(t, "all are shown", func() bool {
		if got, err = d.Claims(ctx, "", 100); err != nil {
			t.Fatal(err)
		}
		return len(got) == 3
	})
	pid := int32(first.PgConn().PID())
	if c := got[1]; c.Key != "settle/monday" || !c.Held || c.Program != "first" || c.PID != pid || time.Since(c.Since) > time.Hour {
		t.Errorf("the holder is %+v", c)
	}
	if c := got[2]; c.Key != "settle/monday" || c.Held || c.Line || c.Program != "second" || !slices.Contains(c.By, pid) || c.Client != "127.0.0.1" {
		t.Errorf("the waiter is %+v", c)
	}
	if c := got[0]; c.Key != "nightly" || c.Held || !c.Line || c.PID == 0 || c.Program != "holdlock" {
		t.Errorf("the one in line is %+v", c)
	}
	if some, err := d.Claims(ctx, "settle/", 100); err != nil || len(some) != 2 {
		t.Errorf("with a prefix: %+v, %v", some, err)
	}
	stop()
	if err := tx.Commit(ctx); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if got, err = d.Claims(ctx, "", 100); err != nil || len(got) != 0 {
		t.Errorf("afterwards: %+v, %v", got, err)
	}
	if err := d.Release(ctx, &driver.ReleaseRequest{Ref: held.Ref}); err != nil {
		t.Error(err)
	}
}
