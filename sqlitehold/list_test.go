package sqlitehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A thousand keys of all kinds are told apart, listed once each, in order, and found again by their names.
func TestOddKeys(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	var keys []string
	for i := range 100 {
		for _, form := range []string{
			"key %d", "KEY %d", "a/b/%d", "{tag}%d", "%d{", "job🔒%d", "'%d", "100%%_%d", "%d " + strings.Repeat("é", 254), " %d\n",
		} {
			keys = append(keys, fmt.Sprintf(form, i))
		}
	}
	for _, key := range keys {
		mustAcquire(t, d, key, time.Hour)
	}
	slices.Sort(keys)
	other := open(t, path)
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		terms, err := other.List(ctx, "", after, 77)
		check(t, err)
		for _, term := range terms {
			got = append(got, term.Key)
		}
		if len(terms) < 77 {
			break
		}
	}
	if !slices.Equal(got, keys) {
		t.Errorf("listed are %d keys, held %d:\n%q\n%q", len(got), len(keys), got, keys)
	}
	for _, key := range keys {
		if term, ok, err := other.Inspect(ctx, key); !ok || err != nil || term.Key != key {
			t.Fatalf("Inspect of %q: %+v, %v, %v", key, term, ok, err)
		}
		if _, err := other.Acquire(ctx, acquire(key, time.Hour)); !isHeld(err) {
			t.Fatalf("Acquire of the held key %q: %v", key, err)
		}
	}
	if terms, err := other.List(ctx, "{tag}", "", 1000); err != nil || len(terms) != 100 {
		t.Errorf("with the prefix {tag} there are %d (%v), want 100", len(terms), err)
	}
}

// Few terms among many keys that are free are found, in steps of listStep rows.
func TestListSkipsCounters(t *testing.T) {
	t.Parallel()
	d := open(t, tempFile(t))
	n := 2*listStep + 500
	check(t, d.writer.transaction("BEGIN", func() error {
		for i := range n {
			req := acquire(fmt.Sprintf("key %06d", i), time.Hour)
			if _, err := d.tryAcquire(d.writer, req, "{}", d.moment()); err != nil {
				return err
			}
			if i%listStep == 7 || i == n-1 || i == listStep || i == listStep-1 {
				continue
			}
			m := d.moment()
			_, err := d.writer.row(releaseStatement, []any{
				"", req.Ref.Key, req.Ref.Nonce, d.boot, m.now, stateOver, m.now, m.micro(), d.net, false,
			}, new(any))
			if err != nil {
				return err
			}
		}
		return nil
	}))
	terms, err := d.List(ctx, "key", "", 100)
	check(t, err)
	var got []string
	for _, term := range terms {
		got = append(got, term.Key)
	}
	want := []string{"key 000007", "key 001999", "key 002000", "key 002007", "key 004007", "key 004499"}
	if !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
	for _, limit := range []int{0, 1, 3} {
		if terms, err := d.List(ctx, "key", "key 000007", limit); err != nil || len(terms) != limit {
			t.Errorf("limit %d gives %d terms (%v)", limit, len(terms), err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := d.List(ended, "", "", 10); !errors.Is(err, context.Canceled) {
		t.Errorf("List with an ended context: %v", err)
	}
}

// A page is read beside those who write, and stops none of them.
func TestListBesideWriters(t *testing.T) {
	t.Parallel()
	d := open(t, tempFile(t))
	mustAcquire(t, d, "held", time.Hour)
	check(t, d.gate.enter(ctx)) // a call that does not return
	defer d.gate.leave()
	if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 1 {
		t.Errorf("List: %v, %v", terms, err)
	}
	if _, ok, err := d.Inspect(ctx, "held"); !ok || err != nil {
		t.Errorf("Inspect: %v, %v", ok, err)
	}
}

// How the term before ended is told to its successor, and told again if the first answer was lost.
func TestPreviousEnding(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	expect := func(how driver.Ending, prior *driver.Term) driver.Ref {
		t.Helper()
		m.pass(time.Second)
		req := acquire("job", time.Minute)
		for range 2 {
			g, err := d.Acquire(ctx, req)
			check(t, err)
			if g.Previous != how || (g.Prior == nil) != (prior == nil) {
				t.Fatalf("Previous = %v, Prior = %+v; want %v, %+v", g.Previous, g.Prior, how, prior)
			}
			if prior != nil {
				got, want := *g.Prior, *prior
				got.Acquired, want.Acquired = got.Acquired.UTC(), want.Acquired.UTC()
				if got != want {
					t.Fatalf("Prior =\n%+v, want\n%+v", got, want)
				}
			}
		}
		return req.Ref
	}
	see := func() *driver.Term {
		t.Helper()
		term, ok, err := d.Inspect(ctx, "job")
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		term.Remaining = 0
		return &term
	}

	ref := expect(driver.None, nil)
	check(t, d.Release(ctx, release(ref)))
	expect(driver.Released, nil)
	prior := see()
	m.pass(time.Minute)
	ref = expect(driver.Lapsed, prior)
	check(t, d.Release(ctx, &driver.ReleaseRequest{Ref: ref, KeepFor: time.Minute}))
	m.pass(time.Minute)
	ref = expect(driver.Released, nil)

	check(t, d.Break(ctx, &driver.BreakRequest{Ref: ref, By: "ops: stuck"}))
	prior = see()
	if prior.Broken != "ops: stuck" {
		t.Errorf("Broken = %q", prior.Broken)
	}
	m.pass(time.Minute)
	ref = expect(driver.Broken, prior)

	prior = see()
	check(t, d.Break(ctx, &driver.BreakRequest{Ref: ref, By: "ops: now", Now: true}))
	prior.Broken = "ops: now"
	next := expect(driver.Broken, prior)
	if _, err := d.Renew(ctx, &driver.RenewRequest{Ref: ref, TTL: time.Hour}); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("Renew of a broken term that has a successor: %v", err)
	}

	check(t, d.Break(ctx, &driver.BreakRequest{Ref: next})) // nobody says who
	if see().Broken == "" {
		t.Error("a term that nobody in particular has broken is not shown as broken")
	}
	check(t, d.Release(ctx, release(next)))
	expect(driver.Released, nil)
}

// A holder that cannot be read is shown without its holder, and stops nobody.
func TestUnreadableHolder(t *testing.T) {
	t.Parallel()
	m := newMachine()
	d := openOn(t, tempFile(t), m)
	mustAcquire(t, d, "job", time.Minute)
	_, err := d.writer.exec(`UPDATE term SET holder = '{"host'`)
	check(t, err)
	if _, err := d.Acquire(ctx, acquire("job", time.Minute)); !isHeld(err) {
		t.Errorf("Acquire: %v", err)
	}
	m.pass(time.Minute)
	if _, g := mustAcquire(t, d, "job", time.Minute); g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Holder != (driver.Holder{}) {
		t.Errorf("the next grant: %+v", g)
	}
}
