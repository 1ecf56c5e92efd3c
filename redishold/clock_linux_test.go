package redishold

import (
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The server's clock is stepped forward over the TTL: exclusion is lost, which no client can prevent. It is told to both
// sides, and tokens rise.
func TestClockForward(t *testing.T) {
	t.Parallel()
	r, clock := testenv.StartRedisWithClock(t)
	d := openDriver(t, r.Addr, nil)
	lease := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", 3*time.Second))
	clock.Set(t, 2*time.Second) // the control: a step within the TTL frees nothing
	if _, err := d.Acquire(t.Context(), request("k", time.Minute)); err == nil {
		t.Fatal("the key is free too early")
	}
	clock.Set(t, time.Hour)
	g := grant(t, d, request("k", time.Minute))
	if lease.Err() != nil {
		t.Fatalf("no overlap to be told: %v", lease.Err())
	}
	if g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Token != lease.Token() {
		t.Errorf("the successor is told %v, %+v", g.Previous, g.Prior)
	}
	if g.Token <= lease.Token() {
		t.Errorf("token %d after %d", g.Token, lease.Token())
	}
	lost(t, lease, holdlock.LossGone)
	// And back: the next token does not fall.
	clock.Set(t, 0)
	term, _ := present(t, d, "k")
	if err := d.Break(t.Context(), &driver.BreakRequest{Ref: driver.Ref{Key: "k", Nonce: term.Nonce}, By: "test", Now: true}); err != nil {
		t.Fatal(err)
	}
	if next := grant(t, d, request("k", time.Minute)); next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

// The clock is stepped back: the key of a dead holder is blocked for the step and no longer, and can be broken.
func TestClockBack(t *testing.T) {
	t.Parallel()
	r, clock := testenv.StartRedisWithClock(t)
	d := openDriver(t, r.Addr, nil)
	const step, ttl = 10 * time.Minute, time.Second
	first := grant(t, d, request("k", ttl))
	clock.Set(t, -step)
	term, ok := present(t, d, "k")
	if !ok || term.Remaining > step+ttl || term.Remaining < step-ttl {
		t.Fatalf("after a step of %v the term is %+v, %v", -step, term, ok)
	}
	if err := d.Break(t.Context(), &driver.BreakRequest{Ref: driver.Ref{Key: "k", Nonce: term.Nonce}, By: "test", Now: true}); err != nil {
		t.Fatal(err)
	}
	second := grant(t, d, request("k", ttl))
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	// Without a break it ends by itself when the clock has come to where it was.
	clock.Set(t, 0)
	testenv.Eventually(t, "the key is free", func() bool { _, ok := present(t, d, "k"); return !ok })
}
