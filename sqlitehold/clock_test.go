package sqlitehold

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A reboot frees everything, and the successor hears that the term before it lapsed.
func TestRebootFrees(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	before := openOn(t, path, m)
	held, first := mustAcquire(t, before, "held", time.Hour)
	ref, _ := mustAcquire(t, before, "released", time.Hour)
	check(t, before.Release(ctx, release(ref)))
	ref, _ = mustAcquire(t, before, "cooling", time.Hour)
	check(t, before.Release(ctx, &driver.ReleaseRequest{Ref: ref, KeepFor: time.Hour}))

	// The clock since boot starts again, so the old expiries are far ahead of it.
	m.bootID = "boot-2"
	m.boot.Store(int64(time.Second))
	m.wall.Add(time.Minute.Microseconds())
	after := openOn(t, path, m)
	if terms, err := after.List(ctx, "", "", 10); err != nil || len(terms) != 0 {
		t.Errorf("after the reboot %v (%v) are listed", terms, err)
	}
	if _, ok, err := after.Inspect(ctx, "held"); ok || err != nil {
		t.Errorf("after the reboot Inspect says %v, %v", ok, err)
	}
	if _, err := after.Renew(ctx, &driver.RenewRequest{Ref: held, TTL: time.Hour}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew of a term of another boot: %v", err)
	}
	if err := after.Release(ctx, release(held)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Release of a term of another boot: %v", err)
	}
	_, g := mustAcquire(t, after, "held", time.Hour)
	if g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Token != first.Token || g.Prior.Holder.Host != "worker" {
		t.Errorf("the grant after a reboot says %+v, prior %+v", g, g.Prior)
	}
	if g.Token <= first.Token {
		t.Errorf("R3: token %d after %d", g.Token, first.Token)
	}
	for _, key := range []string{"released", "cooling"} {
		if _, g := mustAcquire(t, after, key, time.Hour); g.Previous != driver.Released || g.Prior != nil {
			t.Errorf("the grant of %q after a reboot says %+v", key, g)
		}
	}
}

// Suspend counts: a term that ran out while the machine slept is over when it wakes.
func TestSuspendCounts(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	held, _ := mustAcquire(t, d, "held", 30*time.Second)
	m.pass(30*time.Second - 1)
	if _, err := d.Acquire(ctx, acquire("held", time.Hour)); !isHeld(err) {
		t.Errorf("a nanosecond before the end: %v", err)
	}
	m.pass(time.Hour) // the lid was closed
	if _, err := d.Renew(ctx, &driver.RenewRequest{Ref: held, TTL: time.Hour}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew after the lapse: %v", err)
	}
	if err := d.Release(ctx, release(held)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Release after the lapse: %v", err)
	}
	if _, g := mustAcquire(t, d, "held", time.Hour); g.Previous != driver.Lapsed {
		t.Errorf("Previous = %v", g.Previous)
	}
}

// Steps of the wall clock end no term, keep none, and do not turn the tokens round.
func TestWallClockSteps(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	const year = 365 * 24 * time.Hour
	var last driver.Token
	for _, step := range []time.Duration{0, year, -2 * year, -60 * year, 3 * year} {
		m.wall.Add(step.Microseconds())
		ref, g := mustAcquire(t, d, "job", time.Minute)
		if g.Token <= last {
			t.Errorf("R3: token %d after %d, the wall clock having stepped by %v", g.Token, last, step)
		}
		last = g.Token
		m.wall.Add(-step.Microseconds())
		if _, err := d.Acquire(ctx, acquire("job", time.Minute)); !isHeld(err) {
			t.Errorf("a step of %v freed the key: %v", step, err)
		}
		term, ok, err := d.Inspect(ctx, "job")
		if err != nil || !ok || term.Remaining != time.Minute {
			t.Errorf("after a step of %v there are %v left (%v, %v)", step, term.Remaining, ok, err)
		}
		check(t, d.Release(ctx, release(ref)))
	}
}

// A call that was held up between reading the clock and its statement errs to the safe side: it finds a key held that is
// free by now, and what it grants is over sooner.
func TestOldMoment(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	d := openOn(t, path, m)
	mustAcquire(t, d, "job", time.Minute)
	late := m.env()
	then := m.boot.Load()
	late.now = func() time.Duration { return time.Duration(then) }
	m.pass(time.Hour)
	held, err := newDriver(path, nil, late)
	check(t, err)
	defer held.Close()
	if _, err := held.Acquire(ctx, acquire("job", time.Minute)); !isHeld(err) {
		t.Errorf("with an old clock a key was taken that was held then: %v", err)
	}
	mustAcquire(t, held, "another", time.Minute)
	if _, g := mustAcquire(t, d, "another", time.Minute); g.Previous != driver.Lapsed {
		t.Errorf("what was granted by an old clock still stood after its time: Previous = %v", g.Previous)
	}
}

// A request that comes again, late and after a renewal for longer, does not take that away.
func TestRetryNeverShortens(t *testing.T) {
	t.Parallel()
	d := openOn(t, tempFile(t), newMachine())
	req := acquire("job", time.Minute)
	_, err := d.Acquire(ctx, req)
	check(t, err)
	_, err = d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: time.Hour})
	check(t, err)
	_, err = d.Acquire(ctx, req)
	check(t, err)
	if term, ok, err := d.Inspect(ctx, "job"); !ok || err != nil || term.Remaining != time.Hour {
		t.Errorf("there are %v left (%v, %v), want an hour", term.Remaining, ok, err)
	}
}

func TestEndlessTTL(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	mustAcquire(t, d, "job", 1<<63-1)
	m.pass(100 * 365 * 24 * time.Hour)
	if _, err := d.Acquire(ctx, acquire("job", time.Minute)); !isHeld(err) {
		t.Errorf("after a hundred years: %v", err)
	}
}

// The last token there is. Behind it the key cannot be taken, whatever else is right.
func TestTokensExhausted(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	ref, _ := mustAcquire(t, d, "job", time.Hour)
	_, err := d.Renew(ctx, &driver.RenewRequest{Ref: ref, TTL: time.Hour, Floor: driver.MaxToken + 1})
	if !errors.Is(err, driver.ErrTokensExhausted) {
		t.Errorf("Renew beyond the last token: %v", err)
	}
	g, err := d.Renew(ctx, &driver.RenewRequest{Ref: ref, TTL: time.Hour, Floor: driver.MaxToken})
	if err != nil || g.Token != driver.MaxToken {
		t.Errorf("Renew to the last token: %v, %v", g, err)
	}
	check(t, d.Release(ctx, release(ref)))
	_, err = d.Acquire(ctx, acquire("job", time.Hour))
	if !errors.Is(err, driver.ErrTokensExhausted) || !errors.Is(err, driver.ErrNotApplied) || isHeld(err) {
		t.Errorf("Acquire after the last token: %v", err)
	}
	m.wall.Store(time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	_, err = d.Acquire(ctx, acquire("another", time.Hour))
	if !errors.Is(err, driver.ErrTokensExhausted) || !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("Acquire in the year 2300: %v", err)
	}
}

// Without a boot id the terms of others could not be told from those of an earlier boot. Every driver must have the same
// one, so it is no setting; a machine that does not tell is refused.
func TestDriversAgreeOnTheBoot(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	a, b := open(t, path), open(t, path)
	if a.boot != b.boot || (a.boot == "") == bootIDNeeded {
		t.Errorf("boots %q and %q", a.boot, b.boot)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mustAcquire(t, a, "job", time.Hour)
	if _, err := b.Acquire(ctx, acquire("job", time.Hour)); !isHeld(err) {
		t.Errorf("the second driver: %v", err)
	}
}
