package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// halfSick is a store in two parts, of which one answers late or never. The answers of a call come together.
type halfSick struct {
	*hooked
	after time.Duration // 0 is never
}

func (h *halfSick) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
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
	} {
		t.Run(fmt.Sprint(c.sick, "_", c.well, "_", c.after), func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				var told events
				client, err := holdlock.NewClient(&halfSick{r.drv, c.after}, &holdlock.ClientOptions{Observer: &told})
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
						time.Sleep(300 * time.Microsecond)
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
