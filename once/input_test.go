package once_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/once"
)

// One key for two things is an error, whatever state the job is in.
func TestInput(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		ten, eleven := &once.Options{Input: []byte("10 EUR")}, &once.Options{Input: []byte("11 EUR")}
		out, err := once.Do(ctx, a.job("17"), ten, func(context.Context, *once.Run) ([]byte, error) {
			out, err := once.Do(ctx, b.job("17"), eleven, never(t))
			wants(t, "another input while it runs", out, err, once.NotRun, once.ErrOtherInput)
			return nil, nil
		})
		wants(t, "the run", out, err, once.Ran, nil)
		out, err = once.Do(ctx, b.job("17"), eleven, never(t))
		wants(t, "another input when it is done", out, err, once.NotRun, once.ErrOtherInput)
		if strings.Contains(err.Error(), "EUR") || !strings.Contains(err.Error(), "must not share a key") {
			t.Errorf("the message shows the input, or does not help: %v", err)
		}
		out, err = once.Do(ctx, b.job("17"), ten, never(t))
		wants(t, "the same input", out, err, once.AlreadyDone, nil)
	})
}

// A key that two locks use. Locks of other names never share one. The same lock as a plain one excludes the job while it is held,
// and is no record of it; and two jobs of one lock that use the same key are told that they must not, whichever comes second.
func TestAKeyUsedByTwoLocks(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		charge, refund := a.lock("charge", holdlock.LockOptions{}), b.lock("refund", holdlock.LockOptions{})
		out, err := once.Do(ctx, charge.For("17"), nil, func(context.Context, *once.Run) ([]byte, error) {
			out, err := once.Do(ctx, refund.For("17"), nil, ok("refunded"))
			wants(t, "the key of another lock while that runs", out, err, once.Ran, nil)
			return []byte("charged"), nil
		})
		wants(t, "the first lock", out, err, once.Ran, nil)
		out, err = once.Do(ctx, refund.For("17"), nil, never(t))
		wants(t, "the other lock again", out, err, once.AlreadyDone, nil)
		if string(out.Result) != "refunded" {
			t.Errorf("the result is %q, that of another lock", out.Result)
		}

		plain := b.lock("charge", holdlock.LockOptions{})
		lease, err := plain.For("18").TryAcquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out, err = once.Do(ctx, charge.For("18"), nil, never(t))
		wants(t, "while the same lock is held without a job", out, err, once.RunningElsewhere, holdlock.ErrHeld)
		if !strings.Contains(err.Error(), `"charge"`) || !strings.Contains(err.Error(), `"18"`) {
			t.Errorf("the message does not name the lock and the key: %v", err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		out, err = once.Do(ctx, charge.For("18"), &once.Options{Input: []byte("invoice")}, ok("charged"))
		wants(t, "after that", out, err, once.Ran, nil)
		out, err = once.Do(ctx, plain.For("18"), &once.Options{Input: []byte("reminder")}, never(t))
		wants(t, "another job with the same key of the same lock", out, err, once.NotRun, once.ErrOtherInput)
		if !strings.Contains(err.Error(), `"charge"`) || !strings.Contains(err.Error(), `"18"`) || !strings.Contains(err.Error(), "must not share a key") {
			t.Errorf("the message does not name the lock and the key, or does not help: %v", err)
		}
	})
}

// A result that is too large is told, and is no reason to do the work again.
func TestResultTooLarge(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		large := bytes.Repeat([]byte("x"), driver.MaxResult+1)
		out, err := once.Do(ctx, a.job("17"), nil, ok(string(large)))
		wants(t, "the run", out, err, once.Ran, once.ErrResultTooLarge)
		if !bytes.Equal(out.Result, large) || !out.NoResult || !out.Recorded {
			t.Errorf("the run has a result of %d bytes, NoResult %v, Recorded %v", len(out.Result), out.NoResult, out.Recorded)
		}
		out, err = once.Do(ctx, b.job("17"), nil, never(t))
		wants(t, "a duplicate", out, err, once.AlreadyDone, nil)
		if !out.NoResult || out.Result != nil {
			t.Errorf("the duplicate has a result of %d bytes, NoResult %v", len(out.Result), out.NoResult)
		}
		out, err = once.Do(ctx, a.job("18"), nil, ok(string(large[1:])))
		wants(t, "the largest result", out, err, once.Ran, nil)
	})
}

// The key is the same for all runs of a job, and everywhere; it never changes between releases.
func TestKey(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		const want = "f600001403507141655237b2e27718ee"
		var seen []string
		note := func(ctx context.Context, run *once.Run) ([]byte, error) {
			if once.KeyFrom(ctx) != run.Key {
				t.Errorf("KeyFrom gives %q, run.Key is %q", once.KeyFrom(ctx), run.Key)
			}
			seen = append(seen, run.Key)
			return nil, errors.New("again")
		}
		_, _ = once.Do(ctx, a.job("17"), nil, note)
		_, _ = once.Do(ctx, b.job("17"), nil, note)
		_, _ = once.Do(ctx, b.job("18"), nil, note)
		if seen[0] != want || seen[1] != want || once.Key(a.job("17")) != want || seen[2] == want || len(seen[2]) != len(want) {
			t.Errorf("the keys are %q, want twice %q and another one", seen, want)
		}
		if got := once.KeyFrom(ctx); got != "" {
			t.Errorf("outside of a run the key is %q", got)
		}
	})
}

// What the options do not allow is refused before the store is asked.
func TestOptions(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		for what, opts := range map[string]*once.Options{
			"Keep": {Keep: -1}, "MaxRuns": {MaxRuns: -1}, "OnRunning": {OnRunning: 3}, "OnLapse": {OnLapse: 2}, "OnError": {OnError: 2},
		} {
			out, err := once.Do(ctx, a.job("17"), opts, never(t))
			if usable := once.Usable(a.job("17"), opts); !errors.Is(usable, holdlock.ErrInvalid) {
				t.Errorf("%s: Usable says %v", what, usable)
			}
			wants(t, what, out, err, once.NotRun, holdlock.ErrInvalid)
			if !strings.Contains(err.Error(), what) {
				t.Errorf("the error does not name %s: %v", what, err)
			}
		}
		out, err := once.Do(ctx, a.job(""), nil, never(t))
		wants(t, "an empty key", out, err, once.NotRun, holdlock.ErrInvalid)
		if n := a.drv.Count(faultdriver.Acquire); n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
	})
}

// recordless is a store that keeps no records.
type recordless struct{ driver.Driver }

func TestAStoreWithoutRecords(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		client, err := holdlock.NewClient(recordless{b.drv}, nil)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := client.NewLock("charge", nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := once.Do(ctx, lock, nil, never(t))
		wants(t, "on a store without records", out, err, once.NotRun, holdlock.ErrUnsupported)
		if usable := once.Usable(lock, nil); !errors.Is(usable, holdlock.ErrUnsupported) {
			t.Errorf("Usable says %v", usable)
		}
		for _, part := range []string{"charge", "memory of process", "sqlitehold"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not name %q: %v", part, err)
			}
		}
		if n := b.drv.Count(faultdriver.Acquire); n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
		for _, err := range client.Jobs(ctx, "", false) {
			if !errors.Is(err, holdlock.ErrUnsupported) {
				t.Errorf("Jobs: %v", err)
			}
		}
		if _, _, err := client.Job(ctx, "charge", ""); !errors.Is(err, holdlock.ErrUnsupported) {
			t.Errorf("Job: %v", err)
		}
		if err := client.Settle(ctx, "charge", "", 1, holdlock.SettleOptions{By: "x", Keep: 1}); !errors.Is(err, holdlock.ErrUnsupported) {
			t.Errorf("Settle: %v", err)
		}
	})
}

func TestJSON(t *testing.T) {
	type receipt struct {
		Number int
		Fee    func() `json:",omitempty"`
	}
	virtual(t, func(t *testing.T, a, b *worker) {
		number := func(n int) func(context.Context, *once.Run) (receipt, error) {
			return func(context.Context, *once.Run) (receipt, error) { return receipt{Number: n}, nil }
		}
		type plain struct{ Number int }
		for _, w := range []*worker{a, b} {
			got, out, err := once.JSON(ctx, w.job("17"), nil, func(context.Context, *once.Run) (plain, error) { return plain{17}, nil })
			if err != nil || got != (plain{17}) {
				t.Errorf("%v: %+v, %v", out.Status, got, err)
			}
		}
		// What cannot be written is done all the same.
		_, out, err := once.JSON(ctx, a.job("18"), nil, number(18))
		if out.Status != once.Ran || err == nil || !out.Recorded {
			t.Errorf("a result that cannot be written: %+v, %v", out, err)
		}
		_, out, err = once.JSON(ctx, b.job("18"), nil, number(19))
		wants(t, "its duplicate", out, err, once.AlreadyDone, once.ErrNoResult)
		// What cannot be read is done too.
		_, out, err = once.JSON(ctx, b.job("17"), nil, func(context.Context, *once.Run) ([]int, error) { return nil, nil })
		if out.Status != once.AlreadyDone || err == nil || !strings.Contains(err.Error(), "charge/17") {
			t.Errorf("a result of another type: %+v, %v", out, err)
		}
		failed := errors.New("failed")
		_, out, err = once.JSON(ctx, b.job("19"), nil, func(context.Context, *once.Run) (int, error) { return 1, failed })
		wants(t, "a failure", out, err, once.Failed, failed)
	})
}
