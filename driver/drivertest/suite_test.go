package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
)

// The suite is tested on the store in memory: that it runs in real time, that it lets pass what may differ between stores,
// and that it notices what may not.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a store that works, changed by wrap.
func memory(wrap func(driver.Driver) driver.Driver) Harness {
	return Harness{
		Virtual: true,
		NewStore: func(testing.TB) Store {
			s := memhold.NewStore()
			return Store{Open: func() (driver.Driver, error) {
				d := driver.Driver(memhold.NewDriver(&memhold.Options{Store: s}))
				if wrap != nil {
					d = wrap(d)
				}
				return d, nil
			}}
		},
	}
}

func TestRealTime(t *testing.T) {
	h := memory(nil)
	h.Virtual = false
	Run(t, h)
}

func TestMutantsInRealTime(t *testing.T) {
	h := memory(nil)
	h.Virtual = false
	RunMutants(t, h)
}

// The wrapper that the mutants are made of is no fault itself, so what the suite notices is what they change.
func TestTheUnchangedMutantPasses(t *testing.T) {
	Run(t, memory(bend(func(b *bent) {
		b.acquire, b.renew, b.release = b.Driver.Acquire, b.Driver.Renew, b.Driver.Release
	})))
}

// No case depends on quick answers.
func TestASlowStorePasses(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			Run(t, memory(func(d driver.Driver) driver.Driver {
				return faultdriver.New(d, faultdriver.Seeded(seed, faultdriver.Odds{
					Before: 0.5, After: 0.5, MaxDelay: 400 * time.Millisecond,
				}))
			}))
		})
	}
}

// plain has none of the optional interfaces.
type plain struct{ driver.Driver }

// Traits implements driver.Driver.
func (p plain) Traits() driver.Traits {
	t := p.Driver.Traits()
	t.Records = driver.NoRecords
	t.FIFO = false
	return t
}

func TestAStoreWithoutOptionsPasses(t *testing.T) {
	Run(t, memory(func(d driver.Driver) driver.Driver { return plain{d} }))
}

// recordless has all optional interfaces but Journal.
type recordless struct {
	plain
	driver.BatchRenewer
	driver.Waiter
	driver.Lister
	driver.Breaker
}

func withoutRecords(d driver.Driver) driver.Driver {
	b := d.(*changed)
	return recordless{plain{d}, b, b, b, b}
}

// changed is a driver with other traits.
type changed struct {
	bent
	change func(*driver.Traits)
}

func (c *changed) Traits() driver.Traits {
	t := c.Driver.Traits()
	c.change(&t)
	return t
}

func withTraits(change func(*driver.Traits)) func(driver.Driver) driver.Driver {
	return func(d driver.Driver) driver.Driver { return &changed{bent{Driver: d}, change} }
}

// tokenless is a store without tokens, which says so.
func tokenless(d driver.Driver) driver.Driver {
	return withTraits(func(t *driver.Traits) { t.Fencing = driver.NoTokens })(bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := b.Driver.Acquire(ctx, req)
			g.Token, g.PriorToken = 0, 0
			if g.Prior != nil {
				prior := *g.Prior
				prior.Token, g.Prior = 0, &prior
			}
			var held *driver.HeldError
			if errors.As(err, &held) {
				held.Term.Token = 0
			}
			return g, err
		}
		b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			if req.Floor != 0 {
				if _, err := b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref}); err != nil {
					return driver.Grant{}, err
				}
				return driver.Grant{}, errors.New("this store has no tokens")
			}
			_, err := b.Driver.Renew(ctx, req)
			return driver.Grant{}, err
		}
		b.list = func(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
			terms, err := b.lister().List(ctx, prefix, after, limit)
			for i := range terms {
				terms[i].Token = 0
			}
			return terms, err
		}
		b.inspect = func(ctx context.Context, key string) (driver.Term, bool, error) {
			term, stands, err := b.lister().Inspect(ctx, key)
			term.Token = 0
			return term, stands, err
		}
	})(d))
}

func TestAStoreWithoutTokensPasses(t *testing.T) {
	Run(t, memory(func(d driver.Driver) driver.Driver { return withoutRecords(tokenless(d)) }))
}

// A store that counts in whole seconds is right if it says so.
func TestACoarseStorePasses(t *testing.T) {
	up := func(d *time.Duration) { *d = (*d + time.Second - 1).Truncate(time.Second) }
	Run(t, memory(func(d driver.Driver) driver.Driver {
		return withTraits(func(t *driver.Traits) { t.TTLStep = time.Second })(bend(func(b *bent) {
			b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
				changed := *req
				up(&changed.TTL)
				up(&changed.MinHold)
				return b.Driver.Acquire(ctx, &changed)
			}
			b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
				changed := *req
				up(&changed.TTL)
				return b.Driver.Renew(ctx, &changed)
			}
			b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
				changed := *req
				up(&changed.KeepFor)
				return b.Driver.Release(ctx, &changed)
			}
		})(d))
	}))
}

func TestAStoreWithAMaxTTLPasses(t *testing.T) {
	Run(t, memory(withTraits(func(t *driver.Traits) { t.MaxTTL = 30 * time.Second })))
}

// What a store says about itself is held against it.
func TestFalseTraitsAreNoticed(t *testing.T) {
	lacksLister := func(d driver.Driver) driver.Driver {
		return struct {
			driver.Driver
			driver.Breaker
		}{d, d.(driver.Breaker)}
	}
	for _, tc := range []struct {
		name  string
		cases []string
		wrap  func(driver.Driver) driver.Driver
	}{
		{
			"has tokens and says no",
			[]string{"R3/TokensRiseOverRelease", "R3/RenewRaisesToExactlyTheFloor", "R3/FloorAheadIsKept"},
			withTraits(func(t *driver.Traits) { t.Fencing = driver.NoTokens }),
		},
		{
			"has no tokens and does not say so",
			[]string{"R3/TokensRiseOverRelease", "R3/RenewRaisesToExactlyTheFloor"},
			func(d driver.Driver) driver.Driver {
				return withTraits(func(t *driver.Traits) { t.Fencing = driver.WhileDataSurvives })(tokenless(d))
			},
		},
		{
			"cannot wake and says that it keeps a line",
			[]string{"R6/FIFOHasALine"},
			withTraits(func(t *driver.Traits) { t.FIFO = true })(plain{}).(*changed).over,
		},
		{"breaks what nobody can see", []string{"R4/BreakNowFreesAtOnce", "R4/BreakMatchesTheNonce"}, lacksLister},
		{
			"keeps no records and says it does",
			[]string{"R11/ADoneJobIsNotRunAgain"},
			func(d driver.Driver) driver.Driver {
				return withTraits(func(t *driver.Traits) { t.Records = driver.WhileItLasts })(plain{d})
			},
		},
		{"no name", []string{"R10/TraitsAreFacts"}, withTraits(func(t *driver.Traits) { t.Name = "" })},
		{"no location", []string{"R10/TraitsAreFacts"}, withTraits(func(t *driver.Traits) { t.Location = "" })},
		{
			"a password in the location",
			[]string{"R10/TraitsAreFacts"},
			withTraits(func(t *driver.Traits) { t.Location = "redis://u:secret@host/0" }),
		},
		{"a TTL of nothing", []string{"R10/TraitsAreFacts"}, withTraits(func(t *driver.Traits) { t.MinTTL = time.Millisecond })},
	} {
		for _, name := range tc.cases {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				if len(record(t, memory(tc.wrap), name)) == 0 {
					t.Error("not noticed")
				}
			})
		}
	}
}

// over makes c a wrapper of a driver without options.
func (c *changed) over(d driver.Driver) driver.Driver {
	return &changed{bent{Driver: plain{d}}, c.change}
}

// record runs one case and returns its failures.
func record(t *testing.T, h Harness, name string) []string {
	t.Helper()
	for _, tc := range allCases() {
		if tc.name == name {
			rec := &recorder{}
			h.run(t, tc, nil, rec)
			return rec.failures
		}
	}
	t.Fatalf("there is no case %q", name)
	return nil
}

// Where calls are quick, less than a millisecond is seen.
func TestAMomentTooEarlyIsNoticed(t *testing.T) {
	cut := asking(func(_ driver.Driver, req *driver.AcquireRequest) { req.TTL = req.TTL.Truncate(time.Millisecond) })
	if got := record(t, memory(cut), "R1/AnOddTTLIsNotRoundedDown"); len(got) == 0 {
		t.Error("not noticed")
	}
}

// The store in memory cannot be overtaken, so it has nothing to refuse. One that can, and does the same, is at fault.
func TestAStoreThatGrantsWhatWasUndoneIsNoticed(t *testing.T) {
	h := memory(nil)
	h.Overtaken = true
	if got := record(t, h, "R5/AnUndoneAcquireThatArrivesLate"); len(got) == 0 || !strings.Contains(got[0], "after its undo") {
		t.Errorf("got %q", got)
	}
}

func TestLeftoversAreNoticed(t *testing.T) {
	h := memory(nil)
	h.NewStore = func(tb testing.TB) Store {
		s := memory(nil).NewStore(tb)
		s.Leftovers = func() ([]string, error) { return []string{"row 1"}, nil }
		return s
	}
	got := record(t, h, "R8/NothingIsLeft")
	if len(got) == 0 || !strings.Contains(got[0], "R8") {
		t.Errorf("got %q", got)
	}
}

// A case that no mutant fails might be one that cannot fail.
// rules are those of package driver.
var rules = []string{"R1", "R2", "R3", "R4", "R5", "R6", "R8", "R9", "R10", "R11", "R12"}

func TestEveryCaseHasAMutant(t *testing.T) {
	tested := map[string]bool{
		"R1/NoOverlapUnderFaults": true, // has its own in history_test.go
		"R6/FIFOHasALine":         true, // see TestFalseTraitsAreNoticed
	}
	names, cases := map[string]bool{}, map[string]bool{}
	for _, m := range Mutants() {
		if names[m.Name] {
			t.Errorf("two mutants are named %q", m.Name)
		}
		names[m.Name] = true
		for _, name := range m.Cases {
			tested[name] = true
			cases[name] = true
		}
	}
	seen := map[string]bool{}
	for _, tc := range allCases() {
		if seen[tc.name] {
			t.Errorf("two cases are named %q", tc.name)
		}
		seen[tc.name] = true
		delete(cases, tc.name)
		if !tested[tc.name] {
			t.Errorf("no mutant is named to be noticed by %s", tc.name)
		}
		if rule, _, ok := strings.Cut(tc.name, "/"); !ok || !slices.Contains(rules, rule) {
			t.Errorf("case %q is not named by the rule it tests", tc.name)
		}
	}
	for name := range cases {
		t.Errorf("a mutant is to be noticed by %q, which does not exist", name)
	}
}
