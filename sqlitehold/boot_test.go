package sqlitehold

import (
	"errors"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// bootNames are the boots of two processes on one machine, of which at least one cannot tell which boot it is.
var bootNames = map[string][2]string{
	"in containers":               {someBoot, someBoot},
	"in a container and outside":  {someBoot, "boot-1"},
	"outside and in a container":  {"boot-1", someBoot},
	"of an earlier boot, outside": {"boot-0", someBoot},
}

// R1: a boot that has another name, or none, is no proof of a reboot. A clock that was read too early is none either.
func TestBootsWithoutNames(t *testing.T) {
	t.Parallel()
	for name, boots := range bootNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tempFile(t)
			m := newMachine()
			m.bootID = boots[0]
			a := openOn(t, path, m)
			early := time.Duration(m.boot.Load())
			m.pass(time.Second)
			ref, first := mustAcquire(t, a, "job", time.Hour)
			job := mustClaim(t, a, "once", driver.Rerun)

			m.bootID = boots[1]
			e := m.env()
			b, err := newDriver(path, nil, e)
			check(t, err)
			defer b.Close()
			for _, late := range []bool{false, true} {
				if late { // the process stood still between its look at the clock and its statement
					b.now = func() time.Duration { b.now = e.now; return early }
				}
				if _, err := b.Acquire(ctx, acquire("job", time.Hour)); !isHeld(err) {
					t.Fatalf("late %v: the other process: %v, want held", late, err)
				}
				if late {
					b.now = func() time.Duration { b.now = e.now; return early }
				}
				if _, err := b.Acquire(ctx, claim("once", time.Hour, driver.Rerun)); !isHeld(err) {
					t.Fatalf("late %v: the other process, a job: %v, want held", late, err)
				}
				if late {
					b.now = func() time.Duration { b.now = e.now; return early }
				}
				if terms, err := b.List(ctx, "", "", 10); err != nil || len(terms) != 2 {
					t.Errorf("late %v: %d terms are listed (%v), want 2", late, len(terms), err)
				}
			}
			if _, ok, err := b.Inspect(ctx, "job"); !ok || err != nil {
				t.Errorf("Inspect says %v, %v", ok, err)
			}
			// The verbs of one hold for the terms of the other: a guard, or an operator, may be elsewhere than the holder.
			_, err = b.Renew(ctx, &driver.RenewRequest{Ref: ref, TTL: 2 * time.Hour})
			check(t, err)
			check(t, b.Break(ctx, &driver.BreakRequest{Ref: ref, Now: true}))
			if _, g := mustAcquire(t, b, "job", time.Hour); g.Previous != driver.Broken || g.Token <= first.Token {
				t.Errorf("after a break: %+v, after token %d", g, first.Token)
			}
			check(t, b.Release(ctx, finish(job, "done")))
			if j, ok, err := a.Job(ctx, "once"); err != nil || !ok || j.State != driver.JobDone {
				t.Errorf("the job is %+v, %v, %v; want done", j, ok, err)
			}
		})
	}
}

// The clock since boot proves a reboot where no name does: what was written at a time that has not come yet is free, with
// all that a successor is to be told.
func TestRebootByTheClock(t *testing.T) {
	t.Parallel()
	for name, boots := range bootNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tempFile(t)
			m := newMachine()
			m.bootID = boots[0]
			before := openOn(t, path, m)
			_, first := mustAcquire(t, before, "held", time.Hour)
			ref, _ := mustAcquire(t, before, "released", time.Hour)
			check(t, before.Release(ctx, release(ref)))
			ref, _ = mustAcquire(t, before, "cooling", time.Hour)
			check(t, before.Release(ctx, &driver.ReleaseRequest{Ref: ref, KeepFor: time.Hour}))
			mustClaim(t, before, "once", driver.Rerun)

			m.bootID = boots[1]
			m.boot.Store(int64(time.Second))
			m.wall.Add(time.Minute.Microseconds())
			after := openOn(t, path, m)
			if terms, err := after.List(ctx, "", "", 10); err != nil || len(terms) != 0 {
				t.Errorf("after the reboot %v (%v) are listed", terms, err)
			}
			if _, ok, err := after.Inspect(ctx, "held"); ok || err != nil {
				t.Errorf("after the reboot Inspect says %v, %v", ok, err)
			}
			if j, ok, err := after.Job(ctx, "once"); err != nil || !ok || j.State != driver.JobLapsed {
				t.Errorf("after the reboot the job is %+v, %v, %v; want lapsed", j, ok, err)
			}
			_, g := mustAcquire(t, after, "held", time.Hour)
			if g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Token != first.Token || g.Token <= first.Token {
				t.Errorf("the grant after a reboot says %+v, prior %+v, after token %d", g, g.Prior, first.Token)
			}
			for _, key := range []string{"released", "cooling"} {
				if _, g := mustAcquire(t, after, key, time.Hour); g.Previous != driver.Released || g.Prior != nil {
					t.Errorf("the grant of %q after a reboot says %+v", key, g)
				}
			}
			if g, err := after.Acquire(ctx, claim("once", time.Hour, driver.Rerun)); err != nil || g.Job == nil || g.Job.Runs != 2 {
				t.Errorf("a job to be run again: %+v, %v", g.Job, err)
			}
		})
	}
}

// A machine that has been up for longer than the one before it is not seen to have been rebooted. That costs a wait, of at most the
// TTL.
func TestRebootUnseen(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	m.bootID = someBoot
	before := openOn(t, path, m)
	mustAcquire(t, before, "job", time.Minute)
	m.pass(time.Second) // it is rebooted, and then up for a second longer than it was
	after := openOn(t, path, m)
	var held *driver.HeldError
	if _, err := after.Acquire(ctx, acquire("job", time.Minute)); !errors.As(err, &held) || held.Term.Remaining > time.Minute {
		t.Errorf("%v; want held, for a minute at most", err)
	}
	m.pass(time.Minute)
	mustAcquire(t, after, "job", time.Minute)
}

// A boot that has no name keeps no rows for ever, and loses none that are in use.
func TestCollectWithoutABootName(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	m.bootID = someBoot
	d := openOn(t, path, m)
	ref, _ := mustAcquire(t, d, "over", time.Minute)
	check(t, d.Release(ctx, release(ref)))
	mustAcquire(t, d, "held", 100*time.Hour)
	m.pass(driver.CounterTTL + time.Hour)
	d.collector.hand = 0
	_, err := d.collectStep(ctx)
	check(t, err)
	if got := count(t, path, "term"); got != 1 {
		t.Errorf("%d rows are left, want that of the key that is held", got)
	}
}

// renew2 is how programs of layouts 1 and 2 renew a term.
const renew2 = `
UPDATE term SET expiry = max(expiry, ?6), used = ?7
WHERE namespace = ?1 AND key = ?2 AND nonce = ?3 AND state = 1 AND expiry > ?5 AND boot = ?4 AND broken IS NULL
RETURNING token`

// An olderHolder is a program of layout 1 or 2 that has the file open.
type olderHolder struct {
	t       *testing.T
	w       *writer
	machine *machineClock
	boot    string // as it is named where this one runs
}

func (o olderHolder) acquire(key string, ttl time.Duration) (token int64) {
	o.t.Helper()
	var previous int
	var prior any
	now, wall := o.machine.boot.Load(), o.machine.wall.Load()
	got, err := o.w.row(acquire2, []any{"", key, "aa", int64(driver.TokenAt(time.UnixMicro(wall))), o.boot, now, now + int64(ttl), wall, `{}`},
		&token, &previous, &prior)
	check(o.t, err)
	if !got {
		o.t.Fatal("the program of the release before did not get the key")
	}
	return token
}

func (o olderHolder) renew(key string, ttl time.Duration) bool {
	o.t.Helper()
	var token int64
	now := o.machine.boot.Load()
	got, err := o.w.row(renew2, []any{"", key, "aa", o.boot, now, now + int64(ttl), o.machine.wall.Load()}, &token)
	check(o.t, err)
	return got
}

// older returns one, and a driver of the present layout in another container.
func older(t *testing.T) (olderHolder, *Driver) {
	t.Helper()
	path := tempFile(t)
	m := newMachine()
	m.bootID = someBoot
	d := openOn(t, path, m)
	w, err := connect(path, "rw", false)
	check(t, err)
	t.Cleanup(func() { w.close() })
	return olderHolder{t, w, m, "boot-of-a-container"}, d
}

// What a program of layout 1 or 2 held before a reboot does not say when it was written, and blocks its key for a while only, however
// long the machine had been up.
func TestRebootUnderAnOlderRelease(t *testing.T) {
	t.Parallel()
	old, d := older(t)
	token := old.acquire("job", time.Minute)
	d.Close()
	m := old.machine
	m.boot.Store(int64(10 * time.Minute))
	m.wall.Add((12 * time.Minute).Microseconds())
	d = openOn(t, d.path, m)
	for _, again := range []bool{false, true} {
		if term, ok, err := d.Inspect(ctx, "job"); err != nil || !ok || term.Remaining > unsureFor {
			t.Errorf("again %v: Inspect says %v, %v, %v; want held, for %v at most", again, term.Remaining, ok, err, unsureFor)
		}
		if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 1 || terms[0].Remaining > unsureFor {
			t.Errorf("again %v: List says %+v, %v; want held, for %v at most", again, terms, err, unsureFor)
		}
		var held *driver.HeldError
		if _, err := d.Acquire(ctx, acquire("job", time.Minute)); !errors.As(err, &held) || held.Term.Remaining > unsureFor {
			t.Errorf("again %v: %v; want held, for %v at most", again, err, unsureFor)
		}
		m.pass(unsureFor / 2)
	}
	if _, g := mustAcquire(t, d, "job", time.Minute); g.Previous != driver.Lapsed || int64(g.Token) <= token {
		t.Errorf("%+v, after token %d", g, token)
	}
}

// R1: that is no reason to take a key from a program of these layouts that is alive, also if the wall clock was set since it was booted.
func TestOlderReleasesKeepTheirKeys(t *testing.T) {
	t.Parallel()
	t.Run("the wall clock is right", func(t *testing.T) {
		old, d := older(t)
		old.acquire("job", 3*unsureFor)
		old.machine.pass(2 * unsureFor)
		var held *driver.HeldError
		if _, err := d.Acquire(ctx, acquire("job", time.Minute)); !errors.As(err, &held) || held.Term.Remaining != unsureFor {
			t.Errorf("%v; want held for %v", err, unsureFor)
		}
		old.machine.pass(unsureFor - 1)
		if _, err := d.Acquire(ctx, acquire("job", time.Minute)); !isHeld(err) {
			t.Errorf("a moment before its end: %v", err)
		}
	})
	for what, renews := range map[string]bool{"it was set ahead": true, "it was set ahead, and the program has died": false} {
		t.Run(what, func(t *testing.T) {
			old, d := older(t)
			old.acquire("job", 3*unsureFor)
			old.machine.wall.Add((10 * 365 * 24 * time.Hour).Microseconds())
			for i := range 20 {
				_, err := d.Acquire(ctx, acquire("job", time.Minute))
				if got := !isHeld(err); got != (!renews && i == 2) {
					t.Fatalf("%v later a rival gets %v", time.Duration(i)*unsureFor/2, err)
				}
				if err == nil {
					return
				}
				old.machine.pass(unsureFor / 2)
				if renews && !old.renew("job", 3*unsureFor) {
					t.Fatal("it lost its key")
				}
			}
		})
	}
}
