package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Faults in which term is meant.
func matchMutants() []Mutant {
	return []Mutant{
		{
			Name:  "releases by key alone",
			Cases: []string{"R4/ReleaseMatchesTheNonce"},
			Needs: lists,
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					changed := *req
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && !term.Cooling {
						changed.Ref.Nonce = term.Nonce
					}
					return b.Driver.Release(ctx, &changed)
				}
			}),
		},
		{
			Name:  "renews by key alone",
			Cases: []string{"R4/RenewMatchesTheNonce", "R4/BatchAnswersEachForItself"},
			Needs: lists,
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					changed := *req
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && !term.Cooling {
						changed.Ref.Nonce = term.Nonce
					}
					return b.Driver.Renew(ctx, &changed)
				}
			}),
		},
		{
			Name:  "breaks by key alone",
			Cases: []string{"R4/BreakMatchesTheNonce"},
			Needs: breaks,
			Wrap: bend(func(b *bent) {
				b.breakTerm = func(ctx context.Context, req *driver.BreakRequest) error {
					changed := *req
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && !term.Cooling {
						changed.Ref.Nonce = term.Nonce
					}
					return b.Driver.(driver.Breaker).Break(ctx, &changed)
				}
			}),
		},
		{
			Name:  "creates by renewal",
			Cases: []string{"R4/RenewNeverCreates", "R4/BatchAnswersEachForItself"},
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if errors.Is(err, driver.ErrGone) {
						g, err = b.Driver.Acquire(ctx, &driver.AcquireRequest{Ref: req.Ref, TTL: req.TTL})
					}
					return driver.Grant{Token: g.Token}, err
				}
			}),
		},
		{
			Name:  "creates on a renewal that fails",
			Cases: []string{"R4/RenewNeverCreates"},
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if errors.Is(err, driver.ErrGone) {
						b.Driver.Acquire(ctx, &driver.AcquireRequest{Ref: req.Ref, TTL: req.TTL})
					}
					return g, err
				}
			}),
		},
		{
			Name:  "shortens by renewal",
			Cases: []string{"R4/RenewNeverShortens", "R1/RenewalKeepsMinHold"},
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if err == nil && req.Floor == 0 {
						b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
						b.Driver.Acquire(ctx, &driver.AcquireRequest{Ref: req.Ref, TTL: req.TTL})
					}
					return g, err
				}
			}),
		},
		{
			Name:  "does not extend by renewal",
			Cases: []string{"R4/RenewExtends", "R4/RenewExtendsToTheMoment", "R4/RenewByAnotherConnection"},
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					return b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: b.Traits().MinTTL, Floor: req.Floor})
				}
			}),
		},
		{
			Name:  "adds TTL by renewal to what is left",
			Cases: []string{"R4/RenewExtendsToTheMoment"},
			Needs: lists,
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					changed := *req
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands {
						changed.TTL += term.Remaining
					}
					return b.Driver.Renew(ctx, &changed)
				}
			}),
		},
		{
			Name:  "says nothing when a renewal finds the term gone",
			Cases: []string{"R4/RenewNeverCreates", "R4/RenewMatchesTheNonce"},
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if errors.Is(err, driver.ErrGone) {
						err = nil
					}
					return g, err
				}
			}),
		},
		{
			Name: "says nothing when a release finds the term gone",
			Cases: []string{
				"R4/ReleaseTwiceIsGone", "R4/ReleaseOfWhatNeverWasIsGone", "R4/ReleaseAfterExpiryIsGone", "R4/ReleaseMatchesTheNonce",
			},
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					err := b.Driver.Release(ctx, req)
					if errors.Is(err, driver.ErrGone) {
						err = nil
					}
					return err
				}
			}),
		},
		{
			Name:  "does not release",
			Cases: []string{"R4/ReleaseFreesAtOnce", "R8/NothingIsLeft"},
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					_, err := b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: b.Traits().MinTTL})
					return err
				}
			}),
		},
		{
			Name:  "fails a whole batch for one",
			Cases: []string{"R4/BatchAnswersEachForItself"},
			Needs: has[driver.BatchRenewer],
			Wrap: bend(func(b *bent) {
				b.batch = func(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
					results := b.Driver.(driver.BatchRenewer).RenewBatch(ctx, reqs)
					i := slices.IndexFunc(results, func(res driver.RenewResult) bool { return res.Err != nil })
					for j := range results {
						if i >= 0 {
							results[j] = results[i]
						}
					}
					return results
				}
			}),
		},
		{
			Name:  "gives the results of a batch in another order",
			Cases: []string{"R4/BatchAnswersEachForItself"},
			Needs: has[driver.BatchRenewer],
			Wrap: bend(func(b *bent) {
				b.batch = func(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
					results := b.Driver.(driver.BatchRenewer).RenewBatch(ctx, reqs)
					slices.Reverse(results)
					return results
				}
			}),
		},
		{
			Name:  "renews the first 512 of a batch",
			Cases: []string{"R4/BatchOfManyRenewsAll"},
			Needs: has[driver.BatchRenewer],
			Wrap: bend(func(b *bent) {
				b.batch = func(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
					results := b.Driver.(driver.BatchRenewer).RenewBatch(ctx, reqs[:min(len(reqs), 512)])
					for len(results) < len(reqs) {
						results = append(results, driver.RenewResult{Err: errors.New("too many")})
					}
					return results
				}
			}),
		},
		{
			Name:  "does not break",
			Cases: []string{"R4/BreakMarks", "R4/BreakNowFreesAtOnce", "R4/BreakTakesTheNonceThatIsShown"},
			Needs: breaks,
			Wrap:  bend(func(b *bent) { b.breakTerm = func(context.Context, *driver.BreakRequest) error { return nil } }),
		},
		{
			Name:  "always breaks at once",
			Cases: []string{"R4/BreakMarks", "R4/ABrokenTermPassesAtItsEnd"},
			Needs: breaks,
			Wrap:  breaking(func(req *driver.BreakRequest) { req.Now = true }),
		},
		{
			Name:  "never breaks at once",
			Cases: []string{"R4/BreakNowFreesAtOnce", "R6/BreakNowHints"},
			Needs: func(d driver.Driver) bool { return breaks(d) && has[driver.Waiter](d) },
			Wrap:  breaking(func(req *driver.BreakRequest) { req.Now = false }),
		},
		{
			Name:  "forgets who broke a term",
			Cases: []string{"R4/BreakMarks", "R4/ABrokenTermPassesAtItsEnd", "R4/BreakNowFreesAtOnce"},
			Needs: breaks,
			Wrap:  breaking(func(req *driver.BreakRequest) { req.By = "x" }),
		},
		{
			Name:  "does not tell broken from gone",
			Cases: []string{"R4/BreakMarks", "R4/BreakNowFreesAtOnce"},
			Needs: breaks,
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if errors.Is(err, driver.ErrBroken) {
						err = driver.ErrGone
					}
					return g, err
				}
			}),
		},
		{
			Name:  "forgets who broke a term when another follows",
			Cases: []string{"R4/BreakNowFreesAtOnce"},
			Needs: breaks,
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if term, stands := present(ctx, b.Driver, req.Ref.Key); errors.Is(err, driver.ErrBroken) && stands && term.Nonce != req.Ref.Nonce {
						err = driver.ErrGone
					}
					return g, err
				}
			}),
		},
		{
			Name:  "says gone when a broken term is released",
			Cases: []string{"R4/ABrokenTermCanBeReleased"},
			Needs: breaks,
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && term.Broken != "" {
						return driver.ErrBroken
					}
					return b.Driver.Release(ctx, req)
				}
			}),
		},
	}
}

func breaking(f func(*driver.BreakRequest)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.breakTerm = func(ctx context.Context, req *driver.BreakRequest) error {
			changed := *req
			f(&changed)
			return b.Driver.(driver.Breaker).Break(ctx, &changed)
		}
	})
}

// Faults in the answer to a request that is made again.
func retryMutants() []Mutant {
	// mine bends what happens when the nonce of an acquire is that of the present term.
	type again = func(context.Context, driver.Driver, *driver.AcquireRequest, driver.Term) (driver.Grant, error)
	mine := func(f again) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
				if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && term.Nonce == req.Ref.Nonce {
					return f(ctx, b.Driver, req, term)
				}
				return b.Driver.Acquire(ctx, req)
			}
		})
	}
	return []Mutant{
		{
			Name:  "does not re-arm what is already mine",
			Cases: []string{"R5/AlreadyMineRearmsTTL", "R5/AlreadyMineRearmsMinHold"},
			Needs: lists,
			Wrap: mine(func(_ context.Context, _ driver.Driver, _ *driver.AcquireRequest, term driver.Term) (driver.Grant, error) {
				return driver.Grant{Token: term.Token}, nil
			}),
		},
		{
			Name:  "answers held to what is already mine",
			Cases: []string{"R5/AlreadyMineGivesTheSameGrant", "R5/AlreadyMineRearmsTTL"},
			Needs: lists,
			Wrap: mine(func(_ context.Context, _ driver.Driver, _ *driver.AcquireRequest, term driver.Term) (driver.Grant, error) {
				return driver.Grant{}, &driver.HeldError{Term: term}
			}),
		},
		{
			Name:  "starts what is already mine again",
			Cases: []string{"R5/AlreadyMineGivesTheSameGrant"},
			Needs: lists,
			Wrap: mine(func(ctx context.Context, d driver.Driver, req *driver.AcquireRequest, _ driver.Term) (driver.Grant, error) {
				if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
					return driver.Grant{}, err
				}
				return d.Acquire(ctx, req)
			}),
		},
		{
			Name:  "forgets on a retry how the term before ended",
			Cases: []string{"R5/AlreadyMineGivesTheSameGrant", "R5/AlreadyMineAfterALapseGivesTheSameGrant"},
			Needs: lists,
			Wrap: mine(func(ctx context.Context, d driver.Driver, req *driver.AcquireRequest, _ driver.Term) (driver.Grant, error) {
				g, err := d.Acquire(ctx, req)
				return driver.Grant{Token: g.Token}, err
			}),
		},
		{
			Name:  "does not remember what was undone",
			Cases: []string{"R5/AnUndoneAcquireThatArrivesLate"},
			Needs: refusesUndone,
			Wrap:  releasing(func(req *driver.ReleaseRequest) { req.Undo = false }),
		},
		{
			Name:  "answers held to what was undone",
			Cases: []string{"R5/AnUndoneAcquireThatArrivesLate"},
			Needs: refusesUndone,
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					if errors.Is(err, driver.ErrNotApplied) {
						err = &driver.HeldError{Term: driver.Term{Key: req.Ref.Key}}
					}
					return g, err
				}
			}),
		},
		{
			Name:  "refuses the key of what was undone",
			Cases: []string{"R5/AnUndoneAcquireThatArrivesLate"},
			Wrap: bend(func(b *bent) {
				undone := map[string]bool{}
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					if undone[req.Ref.Key] {
						return driver.Grant{}, driver.ErrNotApplied
					}
					return b.Driver.Acquire(ctx, req)
				}
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					undone[req.Ref.Key] = undone[req.Ref.Key] || req.Undo
					return b.Driver.Release(ctx, req)
				}
			}),
		},
		{
			Name:  "undoes whatever stands",
			Cases: []string{"R5/AnUndoConcernsItsOwnNonce"},
			Needs: lists,
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					changed := *req
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && req.Undo {
						changed.Ref.Nonce = term.Nonce
					}
					return b.Driver.Release(ctx, &changed)
				}
			}),
		},
		{
			Name:  "releases only what this connection has heard of",
			Cases: []string{"R5/AnUnheardGrantCanBeUndone"},
			Wrap: bend(func(b *bent) {
				heard := map[driver.Ref]bool{}
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					heard[req.Ref] = err == nil
					return g, err
				}
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					if !heard[req.Ref] {
						return driver.ErrGone
					}
					return b.Driver.Release(ctx, req)
				}
			}),
		},
	}
}

// refusesUndone says whether a store remembers what was undone.
func refusesUndone(d driver.Driver) bool {
	ctx, ref := context.Background(), driver.Ref{Key: "undone", Nonce: newNonce()}
	_ = d.Release(ctx, &driver.ReleaseRequest{Ref: ref, Undo: true})
	_, err := d.Acquire(ctx, &driver.AcquireRequest{Ref: ref, TTL: max(time.Second, d.Traits().MinTTL)})
	if err == nil {
		_ = d.Release(ctx, &driver.ReleaseRequest{Ref: ref})
	}
	return err != nil
}
