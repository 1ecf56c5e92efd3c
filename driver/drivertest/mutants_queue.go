package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Faults in the waiting line.
func queueMutants() []Mutant {
	enqueuing := func(f func(*driver.AcquireRequest)) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
				changed := *req
				f(&changed)
				return b.queue().Enqueue(ctx, &changed)
			}
		})
	}
	attending := func(f func(b *bent, s *driver.Standing, req *driver.AcquireRequest)) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.attend = func(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
				out := b.queue().Attend(ctx, reqs)
				for i := range out {
					f(b, &out[i], reqs[i])
				}
				return out
			}
		})
	}
	pushing := func(f func(b *bent, p driver.Push, hear func(driver.Push))) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.listen = func(ctx context.Context, hear func(driver.Push)) error {
				return b.queue().Listen(ctx, func(p driver.Push) { f(b, p, hear) })
			}
		})
	}
	leaving := func(f func(b *bent, ctx context.Context, key string, left []driver.Leaving) error) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.leave = func(ctx context.Context, key string, left []driver.Leaving) error { return f(b, ctx, key, left) }
		})
	}
	return []Mutant{
		{
			Name:  "lets one of those who leave stand",
			Cases: []string{"R6/ManyLeaveTheLineAtOnce"},
			Needs: queues,
			Wrap: leaving(func(b *bent, ctx context.Context, key string, left []driver.Leaving) error {
				return b.queue().Leave(ctx, key, left[1:])
			}),
		},
		{
			Name:  "lets those leave who stay",
			Cases: []string{"R6/ManyLeaveTheLineAtOnce"},
			Needs: queues,
			Wrap: func(d driver.Driver) driver.Driver {
				var all []driver.Leaving
				return bend(func(b *bent) {
					b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
						all = append(all, driver.Leaving{Request: req})
						return b.queue().Enqueue(ctx, req)
					}
					b.leave = func(ctx context.Context, key string, _ []driver.Leaving) error {
						return b.queue().Leave(ctx, key, all)
					}
				})(d)
			},
		},
		{
			Name:  "fails to leave what is left already",
			Cases: []string{"R6/ManyLeaveTheLineAtOnce"},
			Needs: queues,
			Wrap: func(d driver.Driver) driver.Driver {
				again := false
				return leaving(func(b *bent, ctx context.Context, key string, left []driver.Leaving) error {
					if again {
						return driver.ErrGone
					}
					again = true
					return b.queue().Leave(ctx, key, left)
				})(d)
			},
		},
		{
			Name:  "leaves the line and not the key",
			Cases: []string{"R6/WhatAPlaceHasBecomeIsLeft"},
			Needs: queues,
			Wrap: leaving(func(b *bent, ctx context.Context, key string, left []driver.Leaving) error {
				term, stands := present(ctx, b.Driver, key)
				left = slices.DeleteFunc(slices.Clone(left), func(l driver.Leaving) bool { return stands && l.Request.Ref.Nonce == term.Nonce })
				return b.queue().Leave(ctx, key, left)
			}),
		},
		{
			Name:  "hands over to those who leave with the holder",
			Cases: []string{"R6/WhatAPlaceHasBecomeIsLeft"},
			Needs: queues,
			Wrap: leaving(func(b *bent, ctx context.Context, key string, left []driver.Leaving) error {
				for i := range left {
					if err := b.queue().Leave(ctx, key, left[i:i+1]); err != nil {
						return err
					}
				}
				return nil
			}),
		},
		{
			Name:  "takes whoever leaves for one that cannot arrive any more",
			Cases: []string{"R6/WhatWasLeftGetsNoPlace"},
			Needs: func(d driver.Driver) bool { return queues(d) && refusesUndone(d) },
			Wrap: leaving(func(b *bent, ctx context.Context, key string, left []driver.Leaving) error {
				left = slices.Clone(left)
				for i := range left {
					left[i].Answered = true
				}
				return b.queue().Leave(ctx, key, left)
			}),
		},
		{
			Name:  "enqueues although the key is free",
			Cases: []string{"R6/EnqueueOfAFreeKeyGrants"},
			Needs: queues,
			Wrap: bend(func(b *bent) {
				b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.queue().Enqueue(ctx, req)
					if err == nil {
						_ = b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
						return driver.Grant{}, &driver.HeldError{Term: driver.Term{Key: req.Ref.Key, Token: g.Token}, Place: 1}
					}
					return g, err
				}
			}),
		},
		{
			Name:  "keeps no line",
			Cases: []string{"R6/AReleaseHandsOverInOrder", "R6/AHandOverIsPushed", "R6/AttendTellsWhereAPlaceStands"},
			Needs: queues,
			Wrap: bend(func(b *bent) {
				b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					var held *driver.HeldError
					if errors.As(err, &held) {
						held.Place = 1
					}
					return g, err
				}
			}),
		},
		{
			Name:  "serves the last in line first",
			Cases: []string{"R6/AReleaseHandsOverInOrder"},
			Needs: queues,
			Wrap: func(d driver.Driver) driver.Driver {
				var waiting []*driver.AcquireRequest
				return bend(func(b *bent) {
					b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
						for _, w := range waiting { // whoever is there has to go behind the new one
							_ = b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: w.Ref})
						}
						g, err := b.queue().Enqueue(ctx, req)
						for _, w := range waiting {
							_, _ = b.queue().Enqueue(ctx, w)
						}
						var held *driver.HeldError
						if errors.As(err, &held) {
							held.Place = 2*len(waiting) + 1
							waiting = append(waiting, req)
						}
						return g, err
					}
				})(d)
			},
		},
		{
			Name:  "pushes nothing",
			Cases: []string{"R6/AHandOverIsPushed"},
			Needs: queues,
			Wrap:  pushing(func(*bent, driver.Push, func(driver.Push)) {}),
		},
		{
			Name:  "says that a hand-over lasts for its TTL",
			Cases: []string{"R6/AHandOverIsPushed"},
			Needs: queues,
			Wrap: pushing(func(_ *bent, p driver.Push, hear func(driver.Push)) {
				p.TTL *= 100
				hear(p)
			}),
		},
		{
			Name:  "hands over for less than the claim",
			Cases: []string{"R6/AHandOverLastsForTheClaim"},
			Needs: queues,
			Wrap:  enqueuing(func(req *driver.AcquireRequest) { req.TTL = min(req.TTL, driver.Provisional/2) }),
		},
		{
			Name:  "hands over for the whole TTL",
			Cases: []string{"R6/AHandOverLastsForTheClaim"},
			Needs: queues,
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					err := b.Driver.Release(ctx, req)
					if next, stands := present(ctx, b.Driver, req.Ref.Key); stands && err == nil {
						_, _ = b.Driver.Renew(ctx, &driver.RenewRequest{Ref: driver.Ref{Key: req.Ref.Key, Nonce: next.Nonce}, TTL: time.Hour})
					}
					return err
				}
			}),
		},
		{
			Name:  "reports a hand-over and does not confirm it",
			Cases: []string{"R6/RenewAndAttendConfirm"},
			Needs: queues,
			Wrap: bend(func(b *bent) {
				b.attend = func(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
					short := make([]*driver.AcquireRequest, len(reqs))
					for i, req := range reqs {
						changed := *req
						changed.TTL = b.Traits().MinTTL
						short[i] = &changed
					}
					return b.queue().Attend(ctx, short)
				}
			}),
		},
		{
			Name:  "calls a place waiting that it does not know",
			Cases: []string{"R6/AttendTellsWhereAPlaceStands", "R6/ReleaseLeavesTheLine"},
			Needs: queues,
			Wrap: attending(func(_ *bent, s *driver.Standing, _ *driver.AcquireRequest) {
				if *s == (driver.Standing{}) {
					s.Place = 1
				}
			}),
		},
		{
			Name:  "says that everybody is next",
			Cases: []string{"R6/AttendTellsWhereAPlaceStands"},
			Needs: queues,
			Wrap: attending(func(_ *bent, s *driver.Standing, _ *driver.AcquireRequest) {
				s.Place = min(s.Place, 1)
			}),
		},
		{
			Name:  "tells all who ask together where the first of them stands",
			Cases: []string{"R6/AttendTellsWhereAPlaceStands"},
			Needs: queues,
			Wrap: bend(func(b *bent) {
				b.attend = func(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
					out := b.queue().Attend(ctx, reqs)
					for i := range out {
						out[i] = out[0]
					}
					return out
				}
			}),
		},
		{
			Name:  "does not tell of a hand-over that was not confirmed",
			Cases: []string{"R6/AHandOverLastsForTheClaim"},
			Needs: queues,
			Wrap: granting(func(g *driver.Grant) {
				if g.Previous == driver.Lapsed {
					g.Previous, g.Prior = driver.Released, nil
				}
			}),
		},
		{
			Name:  "does not say that a hand-over was granted",
			Cases: []string{"R6/AReleaseHandsOverInOrder", "R6/BreakNowHandsOver", "R6/ACoolingKeyIsNotHandedOver", "R6/ASilentProcessIsSkipped"},
			Needs: queues,
			Wrap: attending(func(_ *bent, s *driver.Standing, _ *driver.AcquireRequest) {
				if s.Granted {
					*s = driver.Standing{Place: 1}
				}
			}),
		},
		{
			Name:  "lets a newcomer in before the line",
			Cases: []string{"R6/AFreeKeyGoesToTheLineFirst"},
			Needs: queues,
			Wrap: func(d driver.Driver) driver.Driver {
				var waiting []driver.Ref
				return bend(func(b *bent) {
					b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
						waiting = append(waiting, req.Ref)
						return b.queue().Enqueue(ctx, req)
					}
					b.attend = func(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
						for _, ref := range waiting {
							_ = b.Driver.Release(ctx, &driver.ReleaseRequest{Ref: ref})
						}
						return b.queue().Attend(ctx, reqs)
					}
				})(d)
			},
		},
		{
			Name:  "does not let anybody leave the line",
			Cases: []string{"R6/ReleaseLeavesTheLine"},
			Needs: queues,
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					if term, stands := present(ctx, b.Driver, req.Ref.Key); stands && term.Nonce != req.Ref.Nonce {
						return nil
					}
					return b.Driver.Release(ctx, req)
				}
			}),
		},
		{
			Name:  "takes the silent for alive",
			Cases: []string{"R6/ASilentProcessIsSkipped"},
			Needs: queues,
			Wrap: func(d driver.Driver) driver.Driver {
				stop := make(chan struct{})
				return bend(func(b *bent) {
					b.enqueue = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
						go func() {
							for {
								select {
								case <-stop:
									return
								case <-time.After(500 * time.Millisecond):
									b.queue().Attend(ctx, []*driver.AcquireRequest{req})
								}
							}
						}()
						return b.queue().Enqueue(ctx, req)
					}
					b.close = func() error {
						close(stop)
						return b.Driver.Close()
					}
				})(d)
			},
		},
		{
			Name:  "hands over a key that cools",
			Cases: []string{"R6/ACoolingKeyIsNotHandedOver"},
			Needs: queues,
			Wrap:  releasing(func(req *driver.ReleaseRequest) { req.KeepFor = 0 }),
		},
	}
}
