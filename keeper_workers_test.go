package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// halfSick is a store in two parts, of which one answers late or never. The answers of a call come together.
type halfSick struct {
	*hooked
	after time.Duration // 0 is never
	calls atomic.Int64  // under way
	most  atomic.Int64  // of those
}

func (h *halfSick) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	n := h.calls.Add(1)
	defer h.calls.Add(-1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
	out := make([]driver.RenewResult, len(reqs))
	sick := func(req *driver.RenewRequest) bool { return strings.HasPrefix(req.Ref.Key, "sick") }
	hangs := false
	if slices.ContainsFunc(reqs, sick) {
		hangs = !h.answers(ctx)
	}
	for i, req := range reqs {
		if hangs && sick(req) {
			out[i].Err = errors.New("no answer")
		} else {
			out[i].Grant, out[i].Err = h.Driver.Renew(context.WithoutCancel(ctx), req)
		}
	}
	return out
}

func (h *halfSick) answers(ctx context.Context) bool {
	if h.after == 0 {
		<-ctx.Done()
		return false
	}
	select {
	case <-time.After(h.after):
		return true
	case <-ctx.Done():
		return false
	}
}

// R2: a part of a store that hangs takes away its own leases only, however many it has and however long they last, and one that is slow none.
func TestR2PartOfAStoreHangs(t *testing.T) {
	for _, c := range []struct{ sick, well, after time.Duration }{
		{30 * time.Second, 30 * time.Second, 0},
		{15 * time.Second, 1500 * time.Millisecond, 0},
		{1500 * time.Millisecond, 15 * time.Second, 0},
		{4 * time.Second, 3 * time.Second, 0},
		{15 * time.Second, 1500 * time.Millisecond, time.Second},
		{15 * time.Second, 15 * time.Second, time.Second},
		{5 * time.Second, 5 * time.Second, time.Second},
		{10 * time.Second, 3 * time.Second, 2 * time.Second},
	} {
		t.Run(fmt.Sprint(c.sick, "_", c.well, "_", c.after), func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				var told events
				store := &halfSick{hooked: r.drv, after: c.after}
				client, err := holdlock.NewClient(store, &holdlock.ClientOptions{Observer: &told})
				if err != nil {
					t.Fatal(err)
				}
				// They are due one after the other, or calls of 256 each would be few.
				take := func(name string, ttl time.Duration, n int) (leases []*holdlock.Lease) {
					lock, err := client.NewLock(name, &holdlock.LockOptions{TTL: ttl})
					if err != nil {
						t.Fatal(err)
					}
					for i := range n {
						lease, err := lock.For(fmt.Sprint(i)).TryAcquire(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						leases = append(leases, lease)
						time.Sleep(ttl / 3 / time.Duration(n))
					}
					return leases
				}
				sick := take("sick", c.sick, 2000)
				well := take("well", c.well, 20)
				time.Sleep(10 * max(c.sick, c.well))
				for _, lease := range well {
					if err := lease.Check(0); err != nil {
						t.Errorf("of the part that is well: %v", err)
						break
					}
				}
				if n := store.most.Load(); n > 40 {
					t.Errorf("%d calls at a time for 2,000 leases", n)
				}
				for _, lease := range sick {
					if err := lease.Err(); (err != nil) != (c.after == 0) {
						t.Errorf("of the part that answers after %v: %v", c.after, err)
						break
					}
				}
				for _, lease := range append(sick, well...) {
					_ = lease.Release(t.Context())
				}
				if err := client.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// oneByOne is a slow store without calls for many.
type oneByOne struct{ driver.Driver }

func (d oneByOne) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	select {
	case <-time.After(time.Second):
		return d.Driver.Renew(ctx, req)
	case <-ctx.Done():
		return driver.Grant{}, ctx.Err()
	}
}

// R2: where each renewal is a call of its own, and slow, they do not wait for each other.
func TestR2SlowRenewalsOneByOne(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		client, err := holdlock.NewClient(oneByOne{r.drv}, nil)
		if err != nil {
			t.Fatal(err)
		}
		const n, ttl = 60, 5 * time.Second
		lock, err := client.NewLock("job", &holdlock.LockOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		var leases []*holdlock.Lease
		for i := range n {
			leases = append(leases, mustTry(t, lock.For(fmt.Sprint(i))))
			time.Sleep(ttl / 3 / n)
		}
		time.Sleep(10 * ttl)
		for i, lease := range leases {
			if err := lease.Check(0); err != nil {
				t.Fatalf("lease %d: %v", i, err)
			}
		}
		for _, lease := range leases {
			release(t, lease)
		}
		if err := client.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
