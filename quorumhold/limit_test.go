package quorumhold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A limit ends when its context does, not before, and whatever its timer was used for until then.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Driver{}
		over := func(l limit) bool {
			synctest.Wait()
			select {
			case <-l.late:
			case <-l.done:
			default:
				return false
			}
			return true
		}
		budget := func(length time.Duration) context.Context {
			ctx, cancel := driver.WithBudget(context.Background(), length)
			t.Cleanup(cancel)
			return ctx
		}
		for range 3 {
			short, long := d.limit(budget(time.Second)), d.limit(budget(time.Minute))
			if short.timer == nil || long.timer == nil {
				t.Fatal("no timer of the driver was used")
			}
			time.Sleep(time.Second - 1)
			if over(short) || over(long) {
				t.Error("it ended before its time")
			}
			time.Sleep(time.Nanosecond)
			if over(long) || !over(short) {
				t.Error("the short one and only that should have ended")
			}
			d.spare(short) // it has fired: it must not be used again
			d.spare(long)  // it has not: the next one has it, for another time
			next := d.limit(budget(time.Second))
			time.Sleep(time.Second)
			if !over(next) {
				t.Error("it did not end when it was used again")
			}
			d.spare(next)
			missed := d.limit(budget(time.Second))
			time.Sleep(2 * time.Second)
			d.spare(missed) // it has fired, and nobody has heard
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := d.limit(ctx)
		if over(l) {
			t.Error("it ended before it was cancelled")
		}
		if cancel(); !over(l) {
			t.Error("it did not end when it was cancelled")
		}
		d.spare(l)
	})
}
