package drivertest

import (
	"errors"
	"fmt"

	"github.com/holdlock/holdlock/driver"
)

// R8: nothing is left of a term that has ended but its token counter.
var residueCases = []testCase{
	{"R8/NothingIsLeft", func(r *rig) {
		d := r.open()
		var last term
		for i := range 5 {
			r.release(r.acquire(d, fmt.Sprintf("released %d", i), r.long))
			last = r.acquire(d, fmt.Sprintf("lapsed %d", i), r.short)
		}
		cooled := r.acquire(d, "cooled", r.long)
		if err := d.Release(r.ctx, &driver.ReleaseRequest{Ref: cooled.ref, KeepFor: r.short}); err != nil {
			r.Fatalf("Release with KeepFor: %v", err)
		}
		if op := r.breaker(d); op != nil {
			t := r.acquire(d, "broken", r.long)
			r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops", Now: true})
			last = r.acquire(d, "marked", r.short)
			err := op.Break(r.ctx, &driver.BreakRequest{Ref: last.ref, By: "ops"})
			if err != nil && !errors.Is(err, driver.ErrGone) { // a slow store may have come to its end already
				r.Fatalf("Break: %v", err)
			}
		}
		if canWait(d) {
			t := r.acquire(d, "watched", r.long)
			w := r.watch(d, "watched")
			r.release(t)
			r.hinted([]*watch{w})
			w.stop()
		}
		ref := driver.Ref{Key: "never", Nonce: newNonce()}
		r.gone("Release of what never was", d.Release(r.ctx, &driver.ReleaseRequest{Ref: ref}))
		r.lapse(last)

		if l, ok := driver.As[driver.Lister](d); ok {
			r.eventually("R8: no term is listed", func() bool {
				terms, err := l.List(r.ctx, "", "", 100)
				if err != nil {
					r.Fatalf("List: %v", err)
				}
				return len(terms) == 0
			})
		}
		if r.store.Leftovers == nil {
			return
		}
		var left []string
		defer func() {
			if len(left) > 0 {
				r.Logf("left: %q", left)
			}
		}()
		r.eventually("R8: nothing is left but token counters", func() bool {
			var err error
			if left, err = r.store.Leftovers(); err != nil {
				r.Fatalf("Leftovers: %v", err)
			}
			return len(left) == 0
		})
	}},
}
