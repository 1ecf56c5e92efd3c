package sqlitehold

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Counters go a day after their last use, in small steps, and nothing else goes.
func TestCollect(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	rebooted := newMachine()
	rebooted.bootID = "boot-0"
	old := openOn(t, path, rebooted)
	d := openOn(t, path, m)

	const n = 1000
	for i := range n {
		ref, _ := mustAcquire(t, d, fmt.Sprint("old ", i), time.Minute)
		check(t, d.Release(ctx, release(ref)))
	}
	mustAcquire(t, old, "of another boot", time.Minute)
	mustAcquire(t, d, "lapsed", time.Minute)
	rebooted.pass(2 * time.Hour)
	m.pass(2 * time.Hour)
	ref, _ := mustAcquire(t, d, "used later", time.Minute)
	check(t, d.Release(ctx, release(ref)))
	mustAcquire(t, old, "of another boot, used later", time.Minute)
	mustAcquire(t, d, "held all the time", 100*time.Hour)
	cooling, _ := mustAcquire(t, d, "cooling", time.Minute)
	check(t, d.Release(ctx, &driver.ReleaseRequest{Ref: cooling, KeepFor: 100 * time.Hour}))

	sweep := func() {
		t.Helper()
		d.collector.hand = 0
		for range (n+10)/rowsPerStep + 1 {
			before := count(t, path, "term")
			removed, err := d.collectStep(ctx)
			check(t, err)
			if got := before - count(t, path, "term"); int64(got) != removed || got > rowsPerStep {
				t.Errorf("a step of at most %d rows removed %d and said %d", rowsPerStep, got, removed)
			}
		}
		if d.collector.hand != 0 {
			t.Errorf("the hand stands at %d after a round", d.collector.hand)
		}
	}
	m.pass(driver.CounterTTL - 2*time.Hour - time.Second)
	sweep()
	if got := count(t, path, "term"); got != n+6 {
		t.Errorf("before a day is over there are %d rows, want all %d", got, n+6)
	}
	m.pass(2 * time.Minute)
	sweep()
	if got := count(t, path, "term"); got != 4 {
		t.Errorf("after a day there are %d rows, want the 4 that are in use or were used later", got)
	}
	m.pass(2 * time.Hour)
	sweep()
	terms, err := d.List(ctx, "", "", 10)
	check(t, err)
	if got := count(t, path, "term"); got != 2 || len(terms) != 2 {
		t.Errorf("in the end there are %d rows and terms %v, want those that are held or cooling", got, terms)
	}
}

// Nobody needs to ask for it: whoever takes new keys collects old ones.
func TestCollectAsWeGo(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	d := openOn(t, path, m)
	pair := func(key string) {
		ref, _ := mustAcquire(t, d, key, time.Minute)
		check(t, d.Release(ctx, release(ref)))
	}
	const n = 500
	for i := range n {
		pair(fmt.Sprint("old ", i))
	}
	m.pass(driver.CounterTTL + time.Hour)
	var old int
	for i := range 10 * n {
		pair(fmt.Sprint("new ", i))
		if i%newKeysPerStep != 0 {
			continue
		}
		_, err := d.writer.once(`SELECT count(*) FROM term WHERE key LIKE 'old %'`, &old)
		check(t, err)
		if old == 0 {
			t.Logf("gone after %d new keys", i)
			return
		}
	}
	t.Errorf("after %d new keys there are still %d of %d old ones", 10*n, old, n)
}

// Even without new keys a step is made from time to time.
func TestCollectInTime(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	d.collector.next = time.Duration(m.boot.Load()) + collectEvery
	d.collector.newKeys = 0
	for _, want := range []bool{false, true, false} {
		d.collector.acquired(false, time.Duration(m.boot.Load()))
		if got := d.collector.take(); got != want {
			t.Errorf("a step is due: %v, want %v", got, want)
		}
		if !want {
			m.pass(collectEvery)
		}
	}
}
