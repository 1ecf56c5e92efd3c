package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Faults in waking.
func waitMutants() []Mutant {
	waits := has[driver.Waiter]
	return []Mutant{
		{
			Name: "wakes nobody",
			Cases: []string{
				"R6/AReleaseHintsTheFirst", "R6/NoHintIsLostAfterWatch", "R6/ADeadWatcherIsSkippedInTheEnd",
				"R6/AWatcherThatDoesNotListenIsSkipped", "R6/HintsAreForOneKey",
			},
			Needs: waits,
			Wrap: bend(func(b *bent) {
				b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
					return make(chan struct{}), func() {}, nil
				}
			}),
		},
		{
			Name:  "wakes everybody",
			Cases: []string{"R6/AReleaseWakesOneOnly"},
			Needs: func(d driver.Driver) bool { return waits(d) && lists(d) },
			Wrap: bend(func(b *bent) {
				// Every watcher looks for itself whether the key has been free or has got another holder.
				b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
					first, _ := present(ctx, b.Driver, key)
					return watching(func(hint func()) {
						if term, _ := present(ctx, b.Driver, key); term.Nonce != first.Nonce {
							first = term
							hint()
						}
					})
				}
			}),
		},
		{
			Name:  "wakes the last watcher",
			Cases: []string{"R6/AReleaseHintsTheFirst"},
			Needs: waits,
			Wrap: func() func(driver.Driver) driver.Driver {
				// Each watcher takes over the real place of the one before it.
				var mu sync.Mutex
				places := map[string][]<-chan struct{}{}
				return bend(func(b *bent) {
					b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
						hints, stop, err := b.Driver.(driver.Waiter).Watch(ctx, key)
						if err != nil {
							return nil, nil, err
						}
						mu.Lock()
						defer mu.Unlock()
						places[key] = append(places[key], hints)
						mine := len(places[key]) - 1
						out, end, err := watching(func(hint func()) {
							mu.Lock()
							defer mu.Unlock()
							select {
							case <-places[key][len(places[key])-1-mine]:
								hint()
							default:
							}
						})
						return out, func() { end(); stop() }, err
					}
				})
			}(),
		},
		{
			Name:  "refuses a back stop as it was refused before",
			Cases: []string{"R6/ABackStopFindsThatTheHolderIsDead"},
			Needs: waits,
			Wrap: func() func(driver.Driver) driver.Driver {
				return bend(func(b *bent) {
					var mu sync.Mutex
					var before *driver.HeldError
					b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
						mu.Lock()
						defer mu.Unlock()
						if req.BackStop && before != nil {
							return driver.Grant{}, before
						}
						g, err := b.Driver.Acquire(ctx, req)
						errors.As(err, &before)
						return g, err
					}
				})
			}(),
		},
		{
			Name:  "begins to watch a little later",
			Cases: []string{"R6/NoHintIsLostAfterWatch"},
			Needs: waits,
			Wrap: bend(func(b *bent) {
				b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
					var hints <-chan struct{}
					var stop func()
					asked := time.Now()
					out, end, err := watching(func(hint func()) {
						switch {
						case hints == nil && time.Since(asked) > 300*time.Millisecond:
							hints, stop, _ = b.Driver.(driver.Waiter).Watch(ctx, key)
						case len(hints) > 0:
							<-hints
							if time.Since(asked) > time.Second { // and takes for old what a store says at once of a key that is free
								hint()
							}
						}
					})
					return out, func() {
						end()
						if stop != nil {
							stop()
						}
					}, err
				}
			}),
		},
		{
			Name:  "keeps who has stopped in the line",
			Cases: []string{"R6/AStoppedWatcherIsSkipped"},
			Needs: waits,
			Wrap: bend(func(b *bent) {
				b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
					hints, _, err := b.Driver.(driver.Waiter).Watch(ctx, key)
					return hints, func() {}, err
				}
			}),
		},
		{
			Name:  "panics on the second stop",
			Cases: []string{"R6/AStoppedWatcherIsSkipped"},
			Needs: waits,
			Wrap: bend(func(b *bent) {
				b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
					hints, stop, err := b.Driver.(driver.Waiter).Watch(ctx, key)
					stopped := false
					return hints, func() {
						stop()
						if stopped {
							panic("stopped twice")
						}
						stopped = true
					}, err
				}
			}),
		},
		{
			Name:  "wakes for one key only",
			Cases: []string{"R6/HintsAreForOneKey"},
			Needs: waits,
			Wrap: bend(func(b *bent) {
				b.watch = func(ctx context.Context, key string) (<-chan struct{}, func(), error) {
					return b.Driver.(driver.Waiter).Watch(ctx, "k1")
				}
			}),
		},
	}
}

// watching makes a watch out of a look that is taken every few milliseconds until the watch is stopped.
func watching(look func(hint func())) (<-chan struct{}, func(), error) {
	hints, stopped, ended := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-tick.C:
				look(func() {
					select {
					case hints <- struct{}{}:
					default:
					}
				})
			}
		}
	}()
	return hints, sync.OnceFunc(func() { close(stopped); <-ended }), nil
}

// Faults in what becomes of ctx and Close.
func boundedMutants() []Mutant {
	const ended, closed = "R9/AnEndedContextChangesNothing", "R9/AClosedDriverSaysSo"
	failedAs := func(answer func(key string) error) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
				g, err := b.Driver.Acquire(ctx, req)
				var held *driver.HeldError
				if err != nil && !errors.As(err, &held) {
					err = answer(req.Ref.Key)
				}
				return g, err
			}
			b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
				err := b.Driver.Release(ctx, req)
				if err != nil && !errors.Is(err, driver.ErrGone) {
					err = driver.ErrGone
				}
				return err
			}
		})
	}
	return []Mutant{
		{
			Name:  "ignores ctx",
			Cases: []string{ended},
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					return b.Driver.Acquire(context.WithoutCancel(ctx), req)
				}
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					return b.Driver.Renew(context.WithoutCancel(ctx), req)
				}
			}),
		},
		{
			Name:  "acts although ctx has ended, and fails then",
			Cases: []string{ended},
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(context.WithoutCancel(ctx), req)
					if ctx.Err() != nil {
						err = ctx.Err()
					}
					return g, err
				}
			}),
		},
		{
			Name:  "answers held when it cannot tell",
			Cases: []string{ended, closed},
			Wrap: failedAs(func(key string) error {
				return &driver.HeldError{Term: driver.Term{Key: key}}
			}),
		},
		{
			Name:  "answers gone when it cannot tell",
			Cases: []string{ended, closed},
			Wrap:  failedAs(func(string) error { return driver.ErrGone }),
		},
		{
			Name:  "hides why it failed",
			Cases: []string{ended, closed},
			Wrap:  failedAs(func(string) error { return errors.New("failed") }),
		},
		{
			Name:  "works on after Close",
			Cases: []string{closed},
			Wrap:  bend(func(b *bent) { b.close = func() error { return nil } }),
		},
		{
			Name:  "fails to close",
			Cases: []string{"R9/CloseDuringCalls"},
			Wrap: bend(func(b *bent) {
				b.close = func() error { return errors.Join(b.Driver.Close(), errors.New("busy")) }
			}),
		},
		{
			Name:  "releases everything on Close",
			Cases: []string{closed, "R3/TokensRiseOverReopen"},
			Wrap: bend(func(b *bent) {
				var mu sync.Mutex
				var mine []driver.Ref
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					mu.Lock()
					defer mu.Unlock()
					mine = append(mine, req.Ref)
					return b.Driver.Acquire(ctx, req)
				}
				b.close = func() error {
					mu.Lock()
					defer mu.Unlock()
					for _, ref := range mine {
						b.Driver.Release(context.Background(), &driver.ReleaseRequest{Ref: ref})
					}
					return b.Driver.Close()
				}
			}),
		},
	}
}

// Faults in what answers tell.
func answerMutants() []Mutant {
	return []Mutant{
		{
			Name:  "does not say who holds",
			Cases: []string{"R10/HeldSaysWhoAndHowLong", "R10/HeldShowsTheSuccessor"},
			Wrap:  telling(func(t *driver.Term) { t.Holder = driver.Holder{} }),
		},
		{
			Name:  "does not say how long",
			Cases: []string{"R10/HeldSaysWhoAndHowLong", "R1/ATermEndsNeitherEarlyNorLate"},
			Wrap:  telling(func(t *driver.Term) { t.Remaining = 0 }),
		},
		{
			Name:  "does not say which token holds",
			Cases: []string{"R10/HeldSaysWhoAndHowLong"},
			Needs: func(d driver.Driver) bool { return d.Traits().Fencing != driver.NoTokens },
			Wrap:  telling(func(t *driver.Term) { t.Token = 0 }),
		},
		{
			Name:  "does not say since when",
			Cases: []string{"R10/HeldSaysWhoAndHowLong"},
			Wrap:  telling(func(t *driver.Term) { t.Acquired = time.Time{} }),
		},
		{
			Name:  "does not say that a key is cooling",
			Cases: []string{"R1/CoolingHasNoHolder"},
			Wrap:  telling(func(t *driver.Term) { t.Cooling = false }),
		},
		{
			Name:  "names the last holder of a cooling key",
			Cases: []string{"R1/CoolingHasNoHolder"},
			Wrap:  telling(func(t *driver.Term) { t.Holder = me() }),
		},
		{
			Name:  "cuts the text of holders",
			Cases: []string{"R10/AnyTextNamesAHolder"},
			Wrap: asking(func(_ driver.Driver, req *driver.AcquireRequest) {
				req.Holder.Purpose = req.Holder.Purpose[:min(len(req.Holder.Purpose), 255)]
			}),
		},
		{
			Name: "says released after every term",
			Cases: []string{
				"R10/NoneBeforeTheFirst", "R10/LapsedIsTold", "R10/ALapseAfterRenewalsIsTold", "R4/ReleaseAfterExpiryIsGone",
			},
			Wrap: granting(func(g *driver.Grant) { g.Previous, g.Prior = driver.Released, nil }),
		},
		{
			Name: "says nothing of the term before",
			Cases: []string{
				"R10/ReleasedIsTold", "R10/LapsedIsTold", "R10/EndingsAreToldPerKey", "R1/KeepForCools",
			},
			Wrap: granting(func(g *driver.Grant) { g.Previous, g.Prior = driver.None, nil }),
		},
		{
			Name:  "says lapsed after every term",
			Cases: []string{"R10/ReleasedIsTold", "R1/KeepForCools"},
			Wrap:  granting(func(g *driver.Grant) { g.Previous = driver.Lapsed }),
		},
		{
			Name:  "tells a token that no term before has had",
			Cases: []string{"R10/TheTokenOfAReleasedTerm"},
			Wrap: granting(func(g *driver.Grant) {
				if g.Previous == driver.Released {
					g.PriorToken = g.Token + 1
				}
			}),
		},
		{
			Name:  "calls released what was undone",
			Cases: []string{"R10/AnUndoneTermLeavesTheEnding"},
			Wrap: bend(func(b *bent) {
				var mu sync.Mutex
				undone := map[string]bool{}
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					mu.Lock()
					undone[req.Ref.Key] = req.Undo
					mu.Unlock()
					return b.Driver.Release(ctx, req)
				}
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					mu.Lock()
					defer mu.Unlock()
					if err == nil && undone[req.Ref.Key] {
						g.Previous, g.Prior = driver.Released, nil
					}
					return g, err
				}
			}),
		},
		{
			Name:  "does not describe who lapsed",
			Cases: []string{"R10/LapsedIsTold"},
			Wrap:  granting(func(g *driver.Grant) { g.Prior = nil }),
		},
		{
			Name:  "says broken for lapsed",
			Cases: []string{"R10/LapsedIsTold"},
			Wrap: granting(func(g *driver.Grant) {
				if g.Previous == driver.Lapsed {
					g.Previous = driver.Broken
				}
			}),
		},
		{
			Name:  "says lapsed for broken",
			Cases: []string{"R4/ABrokenTermPassesAtItsEnd", "R4/BreakNowFreesAtOnce"},
			Needs: breaks,
			Wrap: granting(func(g *driver.Grant) {
				if g.Previous == driver.Broken {
					g.Previous = driver.Lapsed
				}
			}),
		},
		{
			Name:  "shows a location of its own to each process",
			Cases: []string{"R10/TraitsAreFacts"},
			Wrap:  func(d driver.Driver) driver.Driver { return &astray{bent{Driver: d}} },
		},
	}
}

// astray is a driver whose Traits are not the same twice.
type astray struct{ bent }

func (a *astray) Traits() driver.Traits {
	t := a.Driver.Traits()
	t.Location += " " + newNonce()
	return t
}

// Faults in lists.
func listMutants() []Mutant {
	listing := func(f func(list lister, prefix, after string, limit int) ([]driver.Term, error)) func(driver.Driver) driver.Driver {
		return bend(func(b *bent) {
			b.list = func(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
				return f(func(prefix, after string, limit int) ([]driver.Term, error) {
					return b.lister().List(ctx, prefix, after, limit)
				}, prefix, after, limit)
			}
		})
	}
	mutants := []Mutant{
		{
			Name:  "lists in another order",
			Cases: []string{"R10/ListIsInByteOrder", "R10/ListInPages"},
			Wrap: listing(func(list lister, prefix, after string, limit int) ([]driver.Term, error) {
				terms, err := list(prefix, after, limit)
				slices.Reverse(terms)
				return terms, err
			}),
		},
		{
			Name:  "lists in the order of a dictionary",
			Cases: []string{"R10/ListIsInByteOrder"},
			Wrap: listing(func(list lister, prefix, after string, limit int) ([]driver.Term, error) {
				terms, err := list(prefix, after, limit)
				slices.SortFunc(terms, func(a, b driver.Term) int {
					return strings.Compare(strings.ToLower(a.Key), strings.ToLower(b.Key))
				})
				return terms, err
			}),
		},
		{
			Name:  "lists the first page again and again",
			Cases: []string{"R10/ListInPages"},
			Wrap: listing(func(list lister, prefix, _ string, limit int) ([]driver.Term, error) {
				return list(prefix, "", limit)
			}),
		},
		{
			Name:  "lists the last key of a page twice",
			Cases: []string{"R10/ListInPages"},
			Wrap: listing(func(list lister, prefix, after string, limit int) ([]driver.Term, error) {
				return list(prefix, after[:max(0, len(after)-1)], limit)
			}),
		},
		{
			Name:  "lists all at once",
			Cases: []string{"R10/ListInPages"},
			Wrap: listing(func(list lister, prefix, after string, _ int) ([]driver.Term, error) {
				return list(prefix, after, 1000)
			}),
		},
		{
			Name:  "lists without looking at the prefix",
			Cases: []string{"R10/ListByPrefix", "R10/ListInPages"},
			Wrap: listing(func(list lister, _, after string, limit int) ([]driver.Term, error) {
				return list("", after, limit)
			}),
		},
		{
			Name:  "takes the prefix for a pattern",
			Cases: []string{"R10/ListByPrefix"},
			Wrap: listing(func(list lister, prefix, after string, limit int) ([]driver.Term, error) {
				plain, _, _ := strings.Cut(prefix, "%")
				return list(plain, after, limit)
			}),
		},
		{
			Name:  "lists what the first page has seen",
			Cases: []string{"R10/ListWhileTermsComeAndGo"},
			Wrap: bend(func(b *bent) {
				var mu sync.Mutex
				var seen []driver.Term
				b.list = func(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
					mu.Lock()
					defer mu.Unlock()
					if after == "" || seen == nil {
						var err error
						if seen, err = b.lister().List(ctx, prefix, after, 1000); err != nil {
							return nil, err
						}
					}
					var page []driver.Term
					for _, t := range seen {
						if t.Key > after && len(page) < limit {
							page = append(page, t)
						}
					}
					return page, nil
				}
			}),
		},
		{
			Name:  "does not list cooling keys",
			Cases: []string{"R10/ListShowsWhatIsHeld"},
			Wrap: listing(func(list lister, prefix, after string, limit int) ([]driver.Term, error) {
				terms, err := list(prefix, after, limit)
				return slices.DeleteFunc(terms, func(t driver.Term) bool { return t.Cooling }), err
			}),
		},
		{
			Name:  "lists what was held once",
			Cases: []string{"R10/ListShowsWhatIsHeld", "R8/NothingIsLeft"},
			Wrap: bend(func(b *bent) {
				var mu sync.Mutex
				once := map[string]driver.Term{}
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						once[req.Ref.Key] = driver.Term{Key: req.Ref.Key, Token: g.Token}
					}
					return g, err
				}
				b.list = func(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
					mu.Lock()
					defer mu.Unlock()
					var terms []driver.Term
					for key, term := range once {
						if strings.HasPrefix(key, prefix) && key > after {
							terms = append(terms, term)
						}
					}
					return terms, nil
				}
			}),
		},
		{
			Name:  "lists without nonces",
			Cases: []string{"R10/ListShowsWhatIsHeld", "R10/OddKeysAreListed"},
			Wrap: listing(func(list lister, prefix, after string, limit int) ([]driver.Term, error) {
				terms, err := list(prefix, after, limit)
				for i := range terms {
					terms[i].Nonce = ""
				}
				return terms, err
			}),
		},
		{
			Name:  "renews what it looks at",
			Cases: []string{"R10/LookingChangesNothing"},
			Wrap: bend(func(b *bent) {
				b.inspect = func(ctx context.Context, key string) (driver.Term, bool, error) {
					term, stands, err := b.lister().Inspect(ctx, key)
					if stands {
						ttl := time.Minute
						if longest := b.Driver.Traits().MaxTTL; longest > 0 {
							ttl = min(ttl, longest)
						}
						b.Driver.Renew(ctx, &driver.RenewRequest{Ref: driver.Ref{Key: key, Nonce: term.Nonce}, TTL: ttl})
					}
					return term, stands, err
				}
			}),
		},
	}
	for i := range mutants {
		mutants[i].Needs = lists
	}
	return mutants
}

type lister = func(prefix, after string, limit int) ([]driver.Term, error)
