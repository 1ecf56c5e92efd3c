package drivertest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

func journals(d driver.Driver) bool { return has[driver.Journal](d) }

// once is a mutant of the part of a store that keeps records.
func once(name string, cases []string, wrap func(driver.Driver) driver.Driver) Mutant {
	for i := range cases {
		cases[i] = "R11/" + cases[i]
	}
	return Mutant{Name: name, Cases: cases, Needs: journals, Wrap: wrap}
}

// claiming changes what a Claim asks for.
func claiming(f func(*driver.Claim)) func(driver.Driver) driver.Driver {
	return asking(func(_ driver.Driver, req *driver.AcquireRequest) {
		if req.Once != nil {
			c := *req.Once
			f(&c)
			req.Once = &c
		}
	})
}

// recording changes what a Record says.
func recording(f func(*driver.Record)) func(driver.Driver) driver.Driver {
	return releasing(func(req *driver.ReleaseRequest) {
		if req.Record != nil {
			rec := *req.Record
			f(&rec)
			req.Record = &rec
		}
	})
}

// ending takes the place of Release with a Record.
func ending(f func(ctx context.Context, b *bent, req *driver.ReleaseRequest) error) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			if req.Record == nil {
				return b.Driver.Release(ctx, req)
			}
			return f(ctx, b, req)
		}
	})
}

// running changes the job that a grant tells of.
func running(f func(*driver.Job)) func(driver.Driver) driver.Driver {
	return granting(func(g *driver.Grant) {
		if g.Job != nil {
			j := *g.Job
			f(&j)
			g.Job = &j
		}
	})
}

// overruling grants, without regard to the record, what is refused for want.
func overruling(want func(error) bool) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := b.Driver.Acquire(ctx, req)
			if req.Once != nil && want(err) {
				plain := *req
				plain.Once = nil
				if g, err = b.Driver.Acquire(ctx, &plain); want(err) {
					g, err = driver.Grant{Token: 1}, nil
				}
				g.Job = &driver.Job{Key: req.Ref.Key, State: driver.JobRunning, Runs: 1, Token: g.Token, Holder: req.Holder}
			}
			return g, err
		}
	})
}

func isHeld(err error) bool {
	var held *driver.HeldError
	return errors.As(err, &held)
}

// settleAnyhow settles a job whatever its last run was.
func settleAnyhow(ctx context.Context, b *bent, key string, done bool) error {
	j, _, err := b.journal().Job(ctx, key)
	if err != nil {
		return err
	}
	return b.journal().Settle(ctx, &driver.SettleRequest{Key: key, Token: j.Token, Done: done, Keep: time.Hour})
}

// Faults in what begins a run.
func claimMutants() []Mutant {
	return []Mutant{
		once("runs a done job again", []string{"ADoneJobIsNotRunAgain", "OneRunAmongRacers"},
			overruling(func(err error) bool { return errors.Is(err, driver.ErrDone) })),
		once("looks at the record only if the key is free", []string{"DoneIsToldWhileTheKeyIsTaken"},
			bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && term.Nonce != req.Ref.Nonce {
						return driver.Grant{}, &driver.HeldError{Term: term}
					}
					return b.Driver.Acquire(ctx, req)
				}
			})),
		once("does not cool after a record", []string{"DoneIsToldWhileTheKeyIsTaken"},
			releasing(func(req *driver.ReleaseRequest) {
				if req.Record != nil {
					req.KeepFor = 0
				}
			})),
		once("runs a job beside its twin", []string{"ARunningJobIsHeld", "OneRunAmongRacers"}, overruling(isHeld)),
		once("counts each request", []string{"TheSameRequestIsOneRun"}, func() func(driver.Driver) driver.Driver {
			var mu sync.Mutex
			asked := map[driver.Ref]int{}
			return bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					mu.Lock()
					defer mu.Unlock()
					if g.Job != nil {
						g.Job.Runs += asked[req.Ref]
						asked[req.Ref]++
					}
					return g, err
				}
			})
		}()),
		once("takes an answer that was not heard for a lapse", []string{"AnUnheardClaimIsNoLapse"}, func() func(driver.Driver) driver.Driver {
			var mu sync.Mutex
			asked := map[driver.Ref]bool{}
			return bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					mu.Lock()
					defer mu.Unlock()
					changed := *req
					if _, stands := present(ctx, b.Driver, req.Ref.Key); asked[req.Ref] && !stands {
						changed.Ref.Nonce = newNonce()
					}
					asked[req.Ref] = true
					return b.Driver.Acquire(ctx, &changed)
				}
			})
		}()),
		once("does not compare inputs", []string{"AnotherInputIsAnError"}, claiming(func(c *driver.Claim) { c.Input = "" })),
		once("compares with nothing as well", []string{"AnotherInputIsAnError"}, claiming(func(c *driver.Claim) {
			if c.Input == "" {
				c.Input = "nothing"
			}
		})),
		once("an undone run has lapsed", []string{"UndoWithdrawsTheClaim", "UndoOfARunAfterALapse", "UndoAfterTheTermWithdrawsTheClaim"},
			releasing(func(req *driver.ReleaseRequest) { req.Undo = false })),
		once("an undone run has failed", []string{"UndoWithdrawsTheClaim", "UndoOfARunAfterALapse"},
			bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					if req.Undo {
						req = &driver.ReleaseRequest{Ref: req.Ref, Record: &driver.Record{State: driver.JobOpen, Keep: time.Hour}}
					}
					return b.Driver.Release(ctx, req)
				}
			})),
		once("every term is a run", []string{"TermsWithoutOnceDoNotTouchTheRecord"},
			asking(func(_ driver.Driver, req *driver.AcquireRequest) {
				if req.Once == nil {
					req.Once = &driver.Claim{Keep: time.Hour}
				}
			})),
		once("takes a lapse for a failure", []string{
			"ALapsedRunRunsAgainAndIsTold", "ReleaseWithoutRecordLeavesTheRunUnfinished", "TheNumberOfRunsIsBounded",
		}, running(func(j *driver.Job) { j.Lapses = 0 })),
		once("does not say what a run follows", []string{"AFailedRunCountsAndRunsAgain", "ALapsedRunRunsAgainAndIsTold"},
			running(func(j *driver.Job) { j.Before = 0 })),
		once("says that every run follows a lapse", []string{"ADoneJobIsNotRunAgain", "AFailedRunCountsAndRunsAgain"},
			running(func(j *driver.Job) { j.Before = driver.JobLapsed })),
		once("counts failures as lapses", []string{"AFailedRunCountsAndRunsAgain", "ALapsedRunRunsAgainAndIsTold"},
			running(func(j *driver.Job) { j.Lapses = j.Runs - 1 })),
		once("never holds", []string{
			"HoldSuspendsALapsedRun", "HoldOfEitherRunHolds", "ReleaseWithoutRecordLeavesTheRunUnfinished", "ABrokenRunIsUnfinished",
			"FinishedJobsAreForgotten",
		}, claiming(func(c *driver.Claim) { c.OnLapse = driver.Rerun })),
		once("holds only if the run that lapsed says so", []string{"HoldOfEitherRunHolds"}, holding(true)),
		once("holds only if the next run says so", []string{"HoldOfEitherRunHolds"}, holding(false)),
		once("every answer suspends anew", []string{"HoldSuspendsALapsedRun", "ARecordCanSuspend"}, bend(func(b *bent) {
			b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
				g, err := b.Driver.Acquire(ctx, req)
				var about *driver.JobError
				if errors.As(err, &about) {
					about.Fresh = true
				}
				return g, err
			}
		})),
		once("does not bound the runs", []string{"TheNumberOfRunsIsBounded"}, claiming(func(c *driver.Claim) { c.MaxRuns = 0 })),
		once("bounds the runs one too late", []string{"TheNumberOfRunsIsBounded"}, claiming(func(c *driver.Claim) { c.MaxRuns++ })),
	}
}

// holding heeds OnLapse of only one of two runs.
func holding(first bool) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			if req.Once == nil {
				return b.Driver.Acquire(ctx, req)
			}
			j, _, _ := b.journal().Job(ctx, req.Ref.Key)
			changed, c := *req, *req.Once
			if (j.State == driver.JobLapsed) == first {
				c.OnLapse = driver.Rerun
			}
			changed.Once = &c
			return b.Driver.Acquire(ctx, &changed)
		}
	})
}

// Faults in what ends a run.
func recordMutants() []Mutant {
	return []Mutant{
		once("does not count a failed run", []string{"AFailedRunCountsAndRunsAgain", "ARecordCanBeSentAgain", "TheNumberOfRunsIsBounded"},
			ending(func(ctx context.Context, b *bent, req *driver.ReleaseRequest) error {
				if req.Record.State != driver.JobOpen {
					return b.Driver.Release(ctx, req)
				}
				return b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, Undo: true})
			})),
		once("forgets the error", []string{"AFailedRunCountsAndRunsAgain"}, recording(func(rec *driver.Record) { rec.Error = "" })),
		once("runs again what a record suspends", []string{"ARecordCanSuspend"}, recording(func(rec *driver.Record) {
			if rec.State == driver.JobSuspended {
				rec.State = driver.JobOpen
			}
		})),
		once("records after the release", []string{"RecordAndReleaseAreOneStep"},
			ending(func(ctx context.Context, b *bent, req *driver.ReleaseRequest) error {
				if err := b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
					return err
				}
				time.Sleep(100 * time.Millisecond)
				return settleAnyhow(ctx, b, req.Ref.Key, true)
			})),
		once("takes a record from whose term has ended", []string{
			"ARecordNeedsTheTerm", "HoldSuspendsALapsedRun", "SettleLetsItRunAgain", "ABrokenRunIsUnfinished",
		}, ending(func(ctx context.Context, b *bent, req *driver.ReleaseRequest) error {
			err := b.Driver.Release(ctx, req)
			if errors.Is(err, driver.ErrGone) {
				_ = settleAnyhow(ctx, b, req.Ref.Key, req.Record.State == driver.JobDone)
				return nil
			}
			return err
		})),
		once("drops the record of a term without a claim", []string{"ARecordNeedsAClaim"},
			ending(func(ctx context.Context, b *bent, req *driver.ReleaseRequest) error {
				err := b.Driver.Release(ctx, req)
				if errors.Is(err, driver.ErrUnclaimed) {
					return b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, KeepFor: req.KeepFor})
				}
				return err
			})),
		once("a record that is sent again is gone", []string{"ARecordCanBeSentAgain"}, func() func(driver.Driver) driver.Driver {
			var mu sync.Mutex
			sent := map[driver.Ref]bool{}
			return ending(func(ctx context.Context, b *bent, req *driver.ReleaseRequest) error {
				mu.Lock()
				defer mu.Unlock()
				if sent[req.Ref] {
					return driver.ErrGone
				}
				sent[req.Ref] = true
				return b.Driver.Release(ctx, req)
			})
		}()),
		once("cuts results", []string{"ResultsAreKeptAsTheyAre"}, recording(func(rec *driver.Record) {
			rec.Result = rec.Result[:min(len(rec.Result), driver.MaxResult-1)]
		})),
		once("takes results for text", []string{"ResultsAreKeptAsTheyAre"}, recording(func(rec *driver.Record) {
			rec.Result = bytes.ToValidUTF8(rec.Result, []byte("?"))
		})),
		once("cuts results at NUL", []string{"ResultsAreKeptAsTheyAre"}, recording(func(rec *driver.Record) {
			rec.Result, _, _ = bytes.Cut(rec.Result, []byte{0})
		})),
		once("does not say that a result is missing", []string{"ResultsAreKeptAsTheyAre"}, recording(func(rec *driver.Record) {
			rec.NoResult = false
		})),
		once("keeps a record half as long", []string{"KeepEnds"}, recording(func(rec *driver.Record) { rec.Keep /= 2 })),
		once("keeps records for ever", []string{"KeepEnds", "FinishedJobsAreForgotten"},
			recording(func(rec *driver.Record) { rec.Keep = 1000 * time.Hour })),
		once("a term without a record has failed", []string{"ReleaseWithoutRecordLeavesTheRunUnfinished"}, bend(func(b *bent) {
			b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
				if req.Record == nil && !req.Undo {
					guess := *req
					guess.Record = &driver.Record{State: driver.JobOpen, Keep: time.Hour}
					if err := b.Driver.Release(ctx, &guess); !errors.Is(err, driver.ErrUnclaimed) {
						return err
					}
				}
				return b.Driver.Release(ctx, req)
			}
		})),
	}
}

// settling changes what Settle is asked.
func settling(f func(ctx context.Context, b *bent, req *driver.SettleRequest) error) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.settle = func(ctx context.Context, req *driver.SettleRequest) error {
			changed := *req
			return f(ctx, b, &changed)
		}
	})
}

// listing changes the answer of Jobs.
func listing(f func(q *driver.JobQuery, jobs []driver.Job) []driver.Job) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.jobs = func(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
			jobs, err := b.journal().Jobs(ctx, q)
			return f(q, jobs), err
		}
	})
}

// judging changes what is said of one job.
func judging(f func(j *driver.Job)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.job = func(ctx context.Context, key string) (driver.Job, bool, error) {
			j, ok, err := b.journal().Job(ctx, key)
			f(&j)
			return j, ok, err
		}
	})
}

// Faults in what operators see and decide.
func journalMutants() []Mutant {
	return []Mutant{
		{
			Name: "tells one of those who wait that the job is done", Cases: []string{"R11/TheEndOfAJobWakesAll"},
			Needs: func(d driver.Driver) bool { return journals(d) && has[driver.Waiter](d) },
			Wrap: func() func(driver.Driver) driver.Driver {
				var mu sync.Mutex
				watched := map[string]bool{}
				return bend(func(b *bent) {
					b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
						hints, stop, err := b.Driver.(driver.Waiter).Watch(ctx, key)
						mu.Lock()
						defer mu.Unlock()
						if watched[key] {
							hints = make(chan struct{})
						}
						watched[key] = true
						return hints, stop, err
					}
				})
			}(),
		},
		once("settles without a trace", []string{"SettleLetsItRunAgain", "SettleMarksDone"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				req.By = ""
				return b.journal().Settle(ctx, req)
			})),
		once("settles what has changed since it was seen", []string{"SettleSeesChanges"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				req.Seen = time.Time{}
				return b.journal().Settle(ctx, req)
			})),
		once("a settlement decides about the runs that follow", []string{"WhatASettlementDecides"},
			judging(func(j *driver.Job) { j.Judged = j.Settled != "" && j.State == driver.JobDone || j.Judged })),
		once("a settlement decides nothing", []string{"WhatASettlementDecides"}, judging(func(j *driver.Job) { j.Judged = false })),
		once("settles everything as done", []string{"SettleLetsItRunAgain"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				req.Done = true
				return b.journal().Settle(ctx, req)
			})),
		once("lets everything run again", []string{"SettleMarksDone"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				req.Done = false
				return b.journal().Settle(ctx, req)
			})),
		once("settles only what is suspended", []string{"SettleMarksDone"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				if j, _, err := b.journal().Job(ctx, req.Key); err == nil && j.State == driver.JobLapsed {
					return driver.ErrJobChanged
				}
				return b.journal().Settle(ctx, req)
			})),
		once("keeps settled jobs for ever", []string{"SettleKeeps"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				req.Keep = 1000 * time.Hour
				return b.journal().Settle(ctx, req)
			})),
		once("settles whatever it finds", []string{"SettleNamesTheRun"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				err := b.journal().Settle(ctx, req)
				if errors.Is(err, driver.ErrJobChanged) {
					return settleAnyhow(ctx, b, req.Key, req.Done)
				}
				return err
			})),
		once("says that a running job is settled", []string{"SettleOfARunningJobIsRefused"},
			settling(func(ctx context.Context, b *bent, req *driver.SettleRequest) error {
				if err := b.journal().Settle(ctx, req); !isHeld(err) {
					return err
				}
				return nil
			})),
		once("lists jobs backwards", []string{"JobsAreListed"}, listing(func(_ *driver.JobQuery, jobs []driver.Job) []driver.Job {
			slices.Reverse(jobs)
			return jobs
		})),
		once("lists one job too few", []string{"JobsAreListed"}, listing(func(q *driver.JobQuery, jobs []driver.Job) []driver.Job {
			return jobs[:min(len(jobs), q.Limit-1)]
		})),
		once("lists what is done as undone", []string{"JobsAreListed"}, bend(func(b *bent) {
			b.jobs = func(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
				all := *q
				all.Undone = false
				return b.journal().Jobs(ctx, &all)
			}
		})),
		once("lists lapsed runs as running", []string{"JobsAreListed"}, listing(func(_ *driver.JobQuery, jobs []driver.Job) []driver.Job {
			for i := range jobs {
				if jobs[i].State == driver.JobLapsed {
					jobs[i].State = driver.JobRunning
				}
			}
			return jobs
		})),
		once("a look is a change", []string{"LookingAtJobsChangesNothing"}, bend(func(b *bent) {
			b.job = func(ctx context.Context, key string) (driver.Job, bool, error) {
				j, ok, err := b.journal().Job(ctx, key)
				time.Sleep(time.Millisecond)
				j.Changed = time.Now()
				return j, ok, err
			}
		})),
	}
}
