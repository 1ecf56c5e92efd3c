//go:build soak

package review

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/review/ledger"
	"github.com/holdlock/holdlock/sqlitehold"
)

// real is a real store, on which things happen in real time.
type real struct {
	*testing.T
	open func() (driver.Driver, error)
}

// process is a client with its own connection, whose calls can fail.
func (r *real) process() (*holdlock.Client, *faultdriver.Driver) {
	d, err := r.open()
	if err != nil {
		r.Fatal(err)
	}
	faults := faultdriver.New(d, nil)
	c, err := holdlock.NewClient(faults, &holdlock.ClientOptions{Recorder: ledger.New(nil)})
	if err != nil {
		r.Fatal(err)
	}
	return c, faults
}

// with lets f use a lock in a process of its own, which then ends in order.
func (r *real) with(name string, o holdlock.LockOptions, f func(l *holdlock.Lock, faults *faultdriver.Driver)) {
	c, faults := r.process()
	l, err := c.NewLock(name, &o)
	if err != nil {
		r.Error(err)
		return
	}
	f(l, faults)
	faults.SetScript(nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Shutdown(ctx); err != nil {
		r.Errorf("%s: %v", name, err)
	}
}

func (r *real) runs(l *holdlock.Lock, n int, job time.Duration) {
	for range n {
		if err := plod(l, job); err != nil && !errors.Is(err, holdlock.ErrLost) {
			r.Errorf("%s: %v", l.Name(), err)
		}
	}
}

func dropping(ops ...faultdriver.Op) faultdriver.Script {
	return func(c faultdriver.Call) faultdriver.Fault {
		return faultdriver.Fault{Drop: slices.Contains(ops, c.Op), Err: nil}
	}
}

// short is a TTL that is over soon, and that a busy machine can connect in.
const short = 3 * time.Second

// plants are the findings, and what makes each. The lock has the same name.
var plants = []struct {
	kind  string
	also  []string
	later bool // it is looked at two weeks later
	plant func(r *real, lock string)
}{
	{"", nil, false, func(r *real, lock string) { // all is well
		r.with(lock, declared(time.Minute), func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 50, time.Millisecond) })
	}},
	{"lapsed", nil, false, func(r *real, lock string) {
		c, faults := r.process()
		l, err := c.NewLock(lock, new(declared(short)))
		if err != nil {
			r.Error(err)
			return
		}
		if _, err := l.TryAcquire(context.Background()); err != nil {
			r.Error(err)
		}
		faults.SetScript(func(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Drop: true} })
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Shutdown(over) // it is dead
		r.with(lock, declared(short), func(l *holdlock.Lock, _ *faultdriver.Driver) {
			lease, err := l.Acquire(context.Background())
			if err != nil {
				r.Error(err)
				return
			}
			_ = lease.Release(context.Background())
		})
	}},
	{"overrunning", nil, false, func(r *real, lock string) {
		o := declared(short)
		o.Renew = holdlock.RenewOff
		r.with(lock, o, func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 1, short*95/100) })
	}},
	{"lost", nil, false, func(r *real, lock string) {
		r.with(lock, declared(short), func(l *holdlock.Lock, faults *faultdriver.Driver) {
			faults.SetScript(dropping(faultdriver.Renew, faultdriver.RenewBatch))
			r.runs(l, 1, short*3/2)
		})
	}},
	{"TTL too tight", []string{"lost", "lapsed"}, false, func(r *real, lock string) {
		r.with(lock, declared(short), func(l *holdlock.Lock, faults *faultdriver.Driver) {
			faults.SetScript(dropping(faultdriver.Renew, faultdriver.RenewBatch))
			r.runs(l, 3, short*3/2)
		})
	}},
	{"blocking", nil, false, func(r *real, lock string) {
		r.with(lock, declared(time.Minute), func(l *holdlock.Lock, _ *faultdriver.Driver) {
			r.runs(l, 25, time.Millisecond)
			_ = l.Do(context.Background(), func(context.Context, *holdlock.Lease) error {
				for range 40 {
					if _, err := l.TryAcquire(context.Background()); !errors.Is(err, holdlock.ErrHeld) {
						r.Error(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				return nil
			})
		})
	}},
	{"not run", nil, false, func(r *real, lock string) {
		r.with(lock, declared(time.Minute), func(l *holdlock.Lock, faults *faultdriver.Driver) {
			r.runs(l, 50, 0)
			faults.SetScript(func(faultdriver.Call) faultdriver.Fault {
				return faultdriver.Fault{Drop: true, Err: driver.ErrNotApplied} // also what the recorder sends meanwhile
			})
			for range 10 {
				if err := plod(l, 0); !errors.Is(err, holdlock.ErrUnreachable) {
					r.Error(err)
				}
			}
		})
	}},
	{"starving", []string{"blocking"}, false, func(r *real, lock string) {
		o := declared(time.Minute)
		o.Wait = 100 * time.Millisecond
		r.with(lock, o, func(l *holdlock.Lock, _ *faultdriver.Driver) {
			lease, err := l.TryAcquire(context.Background())
			if err != nil {
				r.Error(err)
				return
			}
			for range 40 {
				_ = plod(l, 0)
			}
			_ = lease.Release(context.Background())
		})
	}},
	{"TTL too long", nil, false, func(r *real, lock string) {
		// On average every few minutes since midnight; session locks have no TTL that is much longer than this.
		r.with(lock, declared(10*time.Minute), func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 400, 0) })
	}},
	{"drifted", nil, false, func(r *real, lock string) {
		for _, ttl := range []time.Duration{time.Minute, 2 * time.Minute} {
			r.with(lock, declared(ttl), func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 1, 0) })
		}
		r.declaredFor5Days(lock)
	}},
	{"undeclared", nil, false, func(r *real, lock string) {
		r.with(lock, holdlock.LockOptions{}, func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 1, 0) })
	}},
	{"guard unseen", nil, false, func(r *real, lock string) {
		o := declared(time.Minute)
		o.Guard = holdlock.Fenced
		r.with(lock, o, func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 20, 0) })
	}},
	{"risk accepted", nil, false, func(r *real, lock string) {
		o := declared(time.Minute)
		o.DoubleRun, o.AcceptRisk = holdlock.Harmful, "we refund"
		r.with(lock, o, func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 1, 0) })
	}},
	{"uncontended", nil, true, func(r *real, lock string) {
		r.with(lock, declared(time.Minute), func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 300, 0) })
	}},
	{"unused", nil, true, func(r *real, lock string) {
		r.with(lock, declared(time.Minute), func(*holdlock.Lock, *faultdriver.Driver) {})
	}},
	{"declared idempotent", nil, false, func(r *real, lock string) {
		o := declared(time.Minute)
		o.DoubleRun = holdlock.Harmless
		r.with(lock, o, func(l *holdlock.Lock, _ *faultdriver.Driver) { r.runs(l, 1, 0) })
	}},
	{"shadow", nil, false, func(r *real, lock string) {
		o := declared(time.Minute)
		o.Mode = holdlock.Shadow
		r.with(lock, o, func(l *holdlock.Lock, _ *faultdriver.Driver) {
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() { r.runs(l, 1, time.Second) })
			}
			both.Wait()
		})
	}},
}

// leftBehind plants a term whose release does not come through, and its successor: only the store knows which term it was that lapsed.
func (r *real) leftBehind(lock string) {
	r.with(lock, declared(short), func(l *holdlock.Lock, faults *faultdriver.Driver) {
		lease, err := l.Acquire(context.Background())
		if err != nil {
			r.Error(err)
			return
		}
		faults.SetScript(func(c faultdriver.Call) faultdriver.Fault {
			if c.Op == faultdriver.Release {
				return faultdriver.Fault{Drop: true, Err: driver.ErrNotApplied}
			}
			return faultdriver.Fault{}
		})
		_ = lease.Release(context.Background())
		r.with(lock, declared(short), func(l *holdlock.Lock, _ *faultdriver.Driver) {
			for { // until the term is over
				lease, err := l.TryAcquire(context.Background())
				if err == nil {
					_ = lease.Release(context.Background())
					return
				}
				if !errors.Is(err, holdlock.ErrHeld) {
					r.Error(err)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		time.Sleep(short) // the holder gives up
	})
}

// declaredFor5Days makes the declarations of a lock older, which is all that a test cannot wait for.
func (r *real) declaredFor5Days(lock string) {
	d, err := r.open()
	if err != nil {
		r.Fatal(err)
	}
	defer d.Close()
	book, _ := driver.As[driver.Ledger](d)
	if err := book.UpdateRecords(context.Background(), 0, []string{lock}, func(_ string, old []byte) []byte {
		older := regexp.MustCompile(`"f":(\d+)(\d{2})`).ReplaceAll(old, []byte(`"f":${1}00`))
		return regexp.MustCompile(`"u":1\b`).ReplaceAll(older, []byte(`"u":31`)) // in use on each of the last five days
	}); err != nil {
		r.Error(err)
	}
}

// TestSoakRealStores plants each finding once on each store.
func TestSoakRealStores(t *testing.T) {
	t.Parallel()
	postgres := func(t *testing.T, open func(ctx context.Context, url string) (driver.Driver, error)) func() (driver.Driver, error) {
		p := testenv.StartPostgres(t)
		conn, err := pgx.Connect(t.Context(), p.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if err := pghold.Migrate(t.Context(), conn, ""); err != nil {
			t.Fatal(err)
		}
		return func() (driver.Driver, error) { return open(t.Context(), p.URL()) }
	}
	for name, open := range map[string]func(t *testing.T) func() (driver.Driver, error){
		"sqlite": func(t *testing.T) func() (driver.Driver, error) {
			file := filepath.Join(t.TempDir(), "locks.db")
			return func() (driver.Driver, error) { return sqlitehold.NewDriver(file, nil) }
		},
		"redis": func(t *testing.T) func() (driver.Driver, error) {
			c := redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = c.Close() })
			return func() (driver.Driver, error) { return redishold.NewDriver(c, nil) }
		},
		"postgres rows": func(t *testing.T) func() (driver.Driver, error) {
			return postgres(t, func(ctx context.Context, url string) (driver.Driver, error) {
				return pghold.NewLeaseDriver(ctx, url, nil)
			})
		},
		"postgres sessions": func(t *testing.T) func() (driver.Driver, error) {
			return postgres(t, func(ctx context.Context, url string) (driver.Driver, error) {
				return pghold.NewSessionDriver(ctx, url, &pghold.SessionOptions{OnFrozen: pghold.Expire})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &real{t, open(t)}
			for _, p := range plants {
				p.plant(r, "lock with "+p.kind)
			}
			r.leftBehind("lock left behind")
			d, err := r.open()
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			book, ok := driver.As[driver.Ledger](d)
			if !ok {
				t.Fatal("it keeps no records")
			}
			now := time.Now()
			locks, problems, err := ledger.Load(t.Context(), book, driver.DayOf(now)-30, driver.DayOf(now)+1)
			if err != nil || len(problems) > 0 || len(locks) != len(plants)+1 {
				t.Fatalf("%d locks, %v, %v", len(locks), problems, err)
			}
			left := slices.IndexFunc(locks, func(l *ledger.Lock) bool { return l.Name == "lock left behind" })
			if found := Judge(locks[left], Period{now.AddDate(0, 0, -30), now}); kinds(found) != "lapsed" || found[0].Severity != Note {
				t.Errorf("a release that did not come through: %+v, of %d that were left", found, locks[left].Total().Get(ledger.Abandoned))
			}
			for _, p := range plants {
				i := slices.IndexFunc(locks, func(l *ledger.Lock) bool { return l.Name == "lock with "+p.kind })
				period := Period{now.AddDate(0, 0, -30), now}
				if p.later {
					period = Period{now.AddDate(0, 0, -16), now.AddDate(0, 0, 16)}
				}
				seen := p.kind == ""
				for _, f := range Judge(locks[i], period) {
					seen = seen || f.Kind == p.kind
					if f.Kind != p.kind && !slices.Contains(p.also, f.Kind) {
						t.Errorf("%q is accused of %q: %s", p.kind, f.Kind, f.Evidence)
					}
				}
				if !seen {
					t.Errorf("%q is not found: %+v", p.kind, locks[i].Total().Counts)
				}
			}
		})
	}
}
