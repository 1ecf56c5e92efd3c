package once_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/once"
)

var ctx = context.Background()

// A duplicate is skipped with the result of the run before; it costs one request, a run two.
func TestDuplicate(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		out, err := once.Do(ctx, a.job("17"), nil, ok("receipt 17"))
		wants(t, "the first delivery", out, err, once.Ran, nil)
		if string(out.Result) != "receipt 17" || !out.Recorded || out.Runs != 1 {
			t.Errorf("the first delivery: %+v", out)
		}
		if n := a.drv.Count(faultdriver.Acquire) + a.drv.Count(faultdriver.Release); n != 2 {
			t.Errorf("a run took %d requests, want 2", n)
		}
		for range 3 {
			out, err = once.Do(ctx, b.job("17"), nil, never(t))
			wants(t, "a duplicate", out, err, once.AlreadyDone, nil)
			if string(out.Result) != "receipt 17" || out.Runs != 1 {
				t.Errorf("a duplicate: %+v", out)
			}
		}
		if n := b.drv.Count(faultdriver.Acquire) + b.drv.Count(faultdriver.Release) + b.drv.Count(faultdriver.Watch); n != 3 {
			t.Errorf("three duplicates took %d requests, want 3", n)
		}
		if n := b.told(holdlock.Duplicate); n != 3 {
			t.Errorf("%d duplicates were told, want 3", n)
		}
		// Another lock with the same key is another job.
		out, err = once.Do(ctx, b.lock("refund", holdlock.LockOptions{}).For("17"), nil, ok("refunded"))
		wants(t, "the same key of another lock", out, err, once.Ran, nil)
	})
}

// Keep ends.
func TestKeep(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		out, err := once.Do(ctx, a.job("17"), &once.Options{Keep: time.Hour}, ok(""))
		wants(t, "the first delivery", out, err, once.Ran, nil)
		time.Sleep(time.Hour - time.Second)
		out, err = once.Do(ctx, b.job("17"), nil, never(t))
		wants(t, "just before Keep is over", out, err, once.AlreadyDone, nil)
		time.Sleep(time.Second)
		out, err = once.Do(ctx, b.job("17"), nil, ok(""))
		wants(t, "after Keep", out, err, once.Ran, nil)
	})
}

// A duplicate that comes while its twin runs is not told that the job is done: the twin may die, and then the job still runs.
func TestTheTwinDies(t *testing.T) {
	for name, opts := range map[string]*once.Options{"Fail": nil, "Skip": {OnRunning: once.Skip}, "Wait": {OnRunning: once.Wait}} {
		for _, dies := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				virtual(t, func(t *testing.T, a, b *worker) {
					begun, done := make(chan struct{}), make(chan struct{})
					go func() {
						defer close(done)
						_, _ = once.Do(ctx, a.job("17"), nil, func(context.Context, *once.Run) ([]byte, error) {
							close(begun)
							time.Sleep(time.Second)
							if dies {
								a.drv.SetScript(dead)
								return nil, errors.New("died")
							}
							return []byte("twin"), nil
						})
					}()
					<-begun
					start := time.Now()
					out, err := once.Do(ctx, b.job("17"), opts, ok("duplicate"))
					switch name {
					case "Fail":
						wants(t, "while the twin runs", out, err, once.RunningElsewhere, holdlock.ErrHeld)
					case "Skip":
						wants(t, "while the twin runs", out, err, once.RunningElsewhere, nil)
					}
					if name != "Wait" {
						if out.ExpiresIn <= 0 || out.Holder.PID == 0 || time.Since(start) != 0 {
							t.Errorf("while the twin runs: %+v", out)
						}
						<-done
						time.Sleep(2 * ttl)
						out, err = once.Do(ctx, b.job("17"), opts, ok("duplicate"))
					}
					if dies {
						wants(t, "after the twin has died", out, err, once.Ran, nil)
						if out.Runs != 2 || b.told(holdlock.Rerun) != 1 {
							t.Errorf("after the twin has died: %+v, told %d times", out, b.told(holdlock.Rerun))
						}
					} else {
						wants(t, "after the twin was done", out, err, once.AlreadyDone, nil)
						if string(out.Result) != "twin" {
							t.Errorf("the result is %q, want the twin's", out.Result)
						}
					}
					<-done
				})
			})
		}
	}
}

// A function that fails leaves no result, counts as a run, and runs again on the next delivery.
func TestErrors(t *testing.T) {
	declined := errors.New("card declined")
	fail := func(context.Context, *once.Run) ([]byte, error) { return []byte("ignored"), declined }
	t.Run("Rerun", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			for range 2 {
				out, err := once.Do(ctx, a.job("17"), nil, fail)
				wants(t, "a failure", out, err, once.Failed, declined)
				if errors.Is(err, once.ErrSuspended) || out.Result != nil {
					t.Errorf("a failure: %+v, %v", out, err)
				}
			}
			out, err := once.Do(ctx, b.job("17"), nil, func(_ context.Context, run *once.Run) ([]byte, error) {
				if run.Number != 3 || run.Lapses != 0 || run.LastError != declined.Error() {
					t.Errorf("the third run is told %+v", run)
				}
				return nil, nil
			})
			wants(t, "the third delivery", out, err, once.Ran, nil)
			if n := a.told(holdlock.Rerun) + b.told(holdlock.Rerun); n != 0 {
				t.Errorf("%d runs after failures were told as runs after lapses", n)
			}
		})
	})
	t.Run("Hold", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			opts := &once.Options{OnError: once.Hold}
			out, err := once.Do(ctx, a.job("17"), opts, fail)
			wants(t, "a failure", out, err, once.Failed, declined)
			wants(t, "a failure", out, err, once.Failed, once.ErrSuspended)
			out, err = once.Do(ctx, b.job("17"), opts, never(t))
			wants(t, "the next delivery", out, err, once.Suspended, once.ErrSuspended)
			if !strings.Contains(err.Error(), declined.Error()) || !strings.Contains(err.Error(), `"charge" key "17"`) {
				t.Errorf("the message does not say why: %v", err)
			}
			if a.told(holdlock.Suspended) != 1 || b.told(holdlock.Suspended) != 0 {
				t.Errorf("suspended was told %d and %d times, want once by the one that did", a.told(holdlock.Suspended), b.told(holdlock.Suspended))
			}
		})
	})
	t.Run("MaxRuns", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			opts := &once.Options{MaxRuns: 2}
			out, err := once.Do(ctx, a.job("17"), opts, fail)
			wants(t, "the first", out, err, once.Failed, declined)
			if errors.Is(err, once.ErrSuspended) {
				t.Errorf("suspended after one run of two: %v", err)
			}
			out, err = once.Do(ctx, a.job("17"), opts, fail)
			wants(t, "the second", out, err, once.Failed, once.ErrSuspended)
			out, err = once.Do(ctx, b.job("17"), opts, never(t))
			wants(t, "the third", out, err, once.Suspended, once.ErrSuspended)
		})
	})
	t.Run("poison", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			opts := &once.Options{MaxRuns: 1}
			a.die(a.job("17"), opts)
			out, err := once.Do(ctx, b.job("17"), opts, never(t))
			wants(t, "after it has killed its worker", out, err, once.Suspended, once.ErrSuspended)
			if b.told(holdlock.Suspended) != 1 {
				t.Errorf("it was not told that the job is suspended")
			}
		})
	})
}

// A panic and a Goexit are failures, and go on.
func TestPanic(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("oops") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, a, b *worker) {
				left := make(chan any, 1)
				go func() {
					defer func() { left <- recover() }()
					_, _ = once.Do(ctx, a.job("17"), nil, func(context.Context, *once.Run) ([]byte, error) {
						leave()
						return nil, nil
					})
					t.Error("it did not go on")
				}()
				if got := <-left; name == "panic" && got != "oops" {
					t.Errorf("recovered %v", got)
				}
				out, err := once.Do(ctx, b.job("17"), nil, func(_ context.Context, run *once.Run) ([]byte, error) {
					if run.Number != 2 || run.Lapses != 0 || !strings.Contains(run.LastError, "panic") {
						t.Errorf("the second run is told %+v", run)
					}
					return nil, nil
				})
				wants(t, "the next delivery", out, err, once.Ran, nil)
			})
		})
	}
}

// A worker that was killed cannot tell: its successor does. Hold leaves the rest to an operator.
func TestLapse(t *testing.T) {
	t.Run("Rerun", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			a.die(a.job("17"), nil)
			out, err := once.Do(ctx, b.job("17"), nil, func(_ context.Context, run *once.Run) ([]byte, error) {
				if run.Number != 2 || run.Lapses != 1 {
					t.Errorf("the second run is told %+v", run)
				}
				return nil, nil
			})
			wants(t, "the next delivery", out, err, once.Ran, nil)
			if a.told(holdlock.Rerun) != 0 || b.told(holdlock.Rerun) != 1 || b.told(holdlock.Lapsed) != 1 {
				t.Errorf("Rerun is told %d times by the dead and %d times by its successor", a.told(holdlock.Rerun), b.told(holdlock.Rerun))
			}
		})
	})
	t.Run("Hold", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			opts := &once.Options{OnLapse: once.Hold}
			a.die(a.job("17"), opts)
			for range 3 {
				out, err := once.Do(ctx, b.job("17"), opts, never(t))
				wants(t, "the next delivery", out, err, once.Suspended, once.ErrSuspended)
			}
			if b.told(holdlock.Suspended) != 1 || b.told(holdlock.Duplicate) != 2 {
				t.Errorf("Suspended is told %d times, Duplicate %d", b.told(holdlock.Suspended), b.told(holdlock.Duplicate))
			}
			var listed []holdlock.JobInfo
			for j, err := range b.client.Jobs(ctx, "charge", true) {
				if err != nil {
					t.Fatal(err)
				}
				listed = append(listed, j)
			}
			if len(listed) != 1 || listed[0].Name != "charge" || listed[0].Key != "17" || listed[0].Job.State != driver.JobSuspended {
				t.Fatalf("listed: %+v", listed)
			}
			token := listed[0].Job.Token
			settle := holdlock.SettleOptions{By: "ann: the bank says it was not charged", Keep: time.Hour}
			if err := b.client.Settle(ctx, "charge", "17", token+1, settle); !errors.Is(err, holdlock.ErrJobChanged) {
				t.Errorf("Settle by another token: %v", err)
			}
			if err := b.client.Settle(ctx, "charge", "17", token, settle); err != nil {
				t.Fatal(err)
			}
			out, err := once.Do(ctx, b.job("17"), opts, ok("charged"))
			wants(t, "after it was settled", out, err, once.Ran, nil)
			j, known, err := b.client.Job(ctx, "charge", "17")
			if err != nil || !known || j.Job.Settled != settle.By {
				t.Errorf("who settled it, and why: %+v, %v", j, err)
			}
		})
	})
	t.Run("marked done", func(t *testing.T) {
		virtual(t, func(t *testing.T, a, b *worker) {
			opts := &once.Options{OnLapse: once.Hold}
			a.die(a.job("17"), opts)
			j, _, err := b.client.Job(ctx, "charge", "17")
			if err != nil || j.Job.State != driver.JobLapsed {
				t.Fatalf("before anyone else has asked for it: %+v, %v", j, err)
			}
			settle := holdlock.SettleOptions{By: "ann: charged", Done: true, Result: []byte("by hand"), Keep: time.Hour}
			if err := b.client.Settle(ctx, "charge", "17", j.Job.Token, settle); err != nil {
				t.Fatal(err)
			}
			out, err := once.Do(ctx, b.job("17"), opts, never(t))
			wants(t, "after it was marked done", out, err, once.AlreadyDone, nil)
			if string(out.Result) != "by hand" {
				t.Errorf("the result is %q", out.Result)
			}
		})
	})
}

// A worker that was paused past its term comes back with a result: it is refused, and it is told so.
func TestTheLateRecord(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		out, err := once.Do(ctx, a.job("17"), nil, func(ctx context.Context, _ *once.Run) ([]byte, error) {
			a.drv.SetScript(dead)
			time.Sleep(2 * ttl) // deaf to ctx
			var lost *holdlock.LostError
			if !errors.As(context.Cause(ctx), &lost) {
				t.Errorf("the context of the work ends with %v", context.Cause(ctx))
			}
			out, err := once.Do(context.Background(), b.job("17"), nil, ok("successor"))
			wants(t, "the successor", out, err, once.Ran, nil)
			a.drv.SetScript(nil)
			return []byte("late"), nil
		})
		wants(t, "the one that was paused", out, err, once.Ran, holdlock.ErrLost)
		if out.Recorded || a.told(holdlock.Unrecorded) != 1 || a.told(holdlock.Rerun) != 0 || b.told(holdlock.Rerun) != 1 {
			t.Errorf("the one that was paused: %+v; Unrecorded was told %d times", out, a.told(holdlock.Unrecorded))
		}
		out, err = once.Do(ctx, b.job("17"), nil, never(t))
		wants(t, "a duplicate", out, err, once.AlreadyDone, nil)
		if string(out.Result) != "successor" {
			t.Errorf("the result is %q, want the successor's", out.Result)
		}
	})
}

// A lease can be lost by our own clocks while the store still keeps the key for us. What was done is recorded then.
func TestLostButNotPassedOn(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		out, err := once.Do(ctx, a.job("17"), nil, func(ctx context.Context, _ *once.Run) ([]byte, error) {
			a.drv.SetScript(dead)
			<-ctx.Done()
			a.drv.SetScript(nil)
			return []byte("just in time"), nil
		})
		wants(t, "the run", out, err, once.Ran, nil)
		if a.told(holdlock.Lost) != 1 || !out.Recorded {
			t.Errorf("Lost was told %d times; %+v", a.told(holdlock.Lost), out)
		}
		out, err = once.Do(ctx, b.job("17"), nil, never(t))
		wants(t, "a duplicate", out, err, once.AlreadyDone, nil)
	})
}

// If the store does not answer when the work is done, that is no reason to do it again; the record is sent until it does.
func TestTheUnansweredRecord(t *testing.T) {
	for name, fault := range map[string]faultdriver.Fault{"request lost": {Drop: true}, "reply lost": {Lose: true}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, a, b *worker) {
				a.drv.SetScript(only(faultdriver.Release, fault))
				out, err := once.Do(ctx, a.job("17"), nil, ok("done"))
				wants(t, "the run", out, err, once.Ran, nil)
				if out.Recorded || a.told(holdlock.Unrecorded) != 1 {
					t.Errorf("the run: %+v; Unrecorded was told %d times", out, a.told(holdlock.Unrecorded))
				}
				time.Sleep(time.Second)
				a.drv.SetScript(nil)
				time.Sleep(time.Second)
				out, err = once.Do(ctx, b.job("17"), nil, never(t))
				wants(t, "a duplicate", out, err, once.AlreadyDone, nil)
			})
		})
	}
}

// An acquire that is given up without an answer begins no run, whether it arrived or not.
func TestTheUnheardGrant(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		opts := &once.Options{OnLapse: once.Hold}
		a.drv.SetScript(only(faultdriver.Acquire, faultdriver.Fault{Lose: true}))
		out, err := once.Do(ctx, a.job("17"), opts, never(t))
		wants(t, "a grant that is not heard", out, err, once.NotRun, holdlock.ErrUnknown)
		time.Sleep(time.Second)
		out, err = once.Do(ctx, b.job("17"), opts, ok(""))
		wants(t, "the next delivery", out, err, once.Ran, nil)
		if out.Runs != 1 || b.told(holdlock.Lapsed) != 0 {
			t.Errorf("the next delivery: %+v", out)
		}
	})
}

// Shutdown waits for the record of a run whose lease was lost, too.
func TestShutdownWaitsForTheRecord(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		down := make(chan struct{})
		out, err := once.Do(ctx, a.job("17"), nil, func(ctx context.Context, _ *once.Run) ([]byte, error) {
			a.drv.SetScript(dead)
			<-ctx.Done() // lost
			a.drv.SetScript(nil)
			go func() {
				defer close(down)
				a.stop()
			}()
			time.Sleep(time.Millisecond)
			return nil, nil
		})
		wants(t, "a run during Shutdown", out, err, once.Ran, nil)
		if !out.Recorded {
			t.Error("the record was not written")
		}
		<-down
	})
}

// All who wait for a job are told at once that it is done.
func TestAllWhoWaitAreTold(t *testing.T) {
	virtual(t, func(t *testing.T, a, b *worker) {
		begun := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			_, _ = once.Do(ctx, a.job("17"), nil, func(context.Context, *once.Run) ([]byte, error) {
				close(begun)
				time.Sleep(time.Second)
				return []byte("done"), nil
			})
		})
		<-begun
		start := time.Now()
		for range 5 {
			all.Go(func() {
				out, err := once.Do(ctx, b.job("17"), &once.Options{OnRunning: once.Wait}, never(t))
				wants(t, "one that has waited", out, err, once.AlreadyDone, nil)
				if d := time.Since(start); d > time.Second+10*time.Millisecond {
					t.Errorf("it was told after %v; the job took a second", d)
				}
			})
		}
		all.Wait()
	})
}
