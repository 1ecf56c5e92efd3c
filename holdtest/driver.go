package holdtest

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/internal/testhook"
)

// testDriver takes the hold on the client that holdlock.NewClient offers, and lets terms that Expire ended look lapsed:
// the store knows them as broken.
type testDriver struct {
	*faultdriver.Driver
	lapsed *sync.Map // nonces
	client testhook.Client
}

// Hook implements testhook.Driver.
func (d *testDriver) Hook(c testhook.Client) { d.client = c }

// Traits implements driver.Driver.
func (d *testDriver) Traits() driver.Traits {
	t := d.Driver.Traits()
	t.Fencing, t.Records = driver.Durable, driver.SyncedRecords // as far as one test goes
	return t
}

// Acquire implements driver.Driver.
func (d *testDriver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	g, err := d.Driver.Acquire(ctx, req)
	if g.Prior == nil {
		return g, err
	}
	if _, ok := d.lapsed.Load(g.Prior.Nonce); ok {
		prior := *g.Prior
		prior.Broken = ""
		g.Previous, g.Prior = driver.Lapsed, &prior
	}
	return g, err
}

// Release implements driver.Driver.
func (d *testDriver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	if _, ok := d.lapsed.Load(req.Ref.Nonce); ok {
		return fmt.Errorf("holdtest: release %q: %w", req.Ref.Key, driver.ErrGone) // the work may be faster than Expire
	}
	return d.Driver.Release(ctx, req)
}
