//go:build soak && unix

package pghold

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

func TestSoakLeaseHistory(t *testing.T) {
	p := testenv.SharedPostgres(t)
	for seed := range uint64(50) {
		drivertest.RunHistory(t, leaseHarness(t, p, p.URL()), seed+1000)
	}
}

// Everything at once, for a minute: backends end, the server is frozen for longer than a TTL, killed and restarted, and the
// pooler is killed. Nobody overlaps, and work goes on after each fault.
func TestSoakLeaseFaults(t *testing.T) {
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	b := testenv.StartPgbouncer(t, p, "transaction")
	var r resource
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		url := p.URL()
		if i%2 == 1 {
			url = b.URL()
		}
		l := newLock(t, leaseClient(t, url, schema), "k", 2*time.Second)
		wg.Go(func() {
			for ctx.Err() == nil {
				wait, done := context.WithTimeout(ctx, 5*time.Second)
				lease, err := l.Acquire(wait)
				done()
				if err != nil {
					continue
				}
				work, end := lease.WithContext(ctx)
				if lease.Check(0) == nil {
					r.use(work, time.Duration(rand.N(20))*time.Millisecond)
				}
				end()
				_ = lease.Release(ctx)
			}
		})
	}
	faults := 0
	for end := time.Now().Add(time.Minute); time.Now().Before(end); faults++ {
		before := r.visits.Load()
		testenv.Eventually(t, "work goes on", func() bool { return r.visits.Load() > before+3 })
		switch faults % 4 {
		case 0:
			_, _ = p.Rows(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdlock'`)
		case 1:
			p.Freeze(t)
			time.Sleep(3 * time.Second)
			p.Thaw(t)
		case 2:
			p.Restart(t)
		case 3:
			b.Restart(t)
		}
	}
	cancel()
	wg.Wait()
	t.Logf("%d faults, %d visits", faults, r.visits.Load())
	if r.overlaps.Load() > 0 {
		t.Errorf("%d of %d visits overlapped", r.overlaps.Load(), r.visits.Load())
	}
}
