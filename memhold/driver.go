package memhold

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Driver is one user's access to a Store, as a connection is to a server. It implements driver.Driver, BatchRenewer,
// Queue, Waiter, Lister, Breaker, Journal and Ledger, and is safe for concurrent use.
type Driver struct {
	store  *Store
	closed atomic.Bool

	seen time.Time         // when it last said that it is alive; under store.mu
	hear func(driver.Push) // likewise
}

// NewDriver returns a driver on opts.Store. Several on one store behave like several processes on one server.
func NewDriver(opts *Options) *Driver {
	if opts == nil || opts.Store == nil {
		return &Driver{store: NewStore()}
	}
	return &Driver{store: opts.Store}
}

// Traits implements driver.Driver.
func (d *Driver) Traits() driver.Traits {
	return driver.Traits{
		Name:     "memory",
		Location: fmt.Sprintf("memory of process %d, store %p", os.Getpid(), d.store),
		Scope:    driver.Process,
		Fencing:  driver.WhileDataSurvives,
		Forgets:  driver.NeverAlone,
		Clock:    driver.MonotonicClock,
		Records:  driver.WhileItLasts,
		MinTTL:   100 * time.Millisecond,
		Prompt:   true,
		Seeds:    true,
		FIFO:     true,
	}
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	if err := d.usable(ctx, "acquire", req.Ref.Key); err != nil {
		return driver.Grant{}, err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.acquire(time.Now(), req)
}

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	if err := d.usable(ctx, "renew", req.Ref.Key); err != nil {
		return driver.Grant{}, err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.renew(time.Now(), req)
}

// RenewBatch implements driver.BatchRenewer.
func (d *Driver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results := make([]driver.RenewResult, len(reqs))
	for i, req := range reqs {
		results[i].Grant, results[i].Err = d.Renew(ctx, req)
	}
	return results
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	if err := d.usable(ctx, "release", req.Ref.Key); err != nil {
		return err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.release(time.Now(), req)
}

// Break implements driver.Breaker.
func (d *Driver) Break(ctx context.Context, req *driver.BreakRequest) error {
	if err := d.usable(ctx, "break", req.Ref.Key); err != nil {
		return err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.breakTerm(time.Now(), req)
}

// Close implements driver.Driver. The store keeps its terms.
func (d *Driver) Close() error {
	d.closed.Store(true)
	return nil
}

// usable says why a call cannot be made: it does not wait for the mutex, which is held for moments only.
func (d *Driver) usable(ctx context.Context, verb, key string) error {
	err := ctx.Err()
	if d.closed.Load() {
		err = driver.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("memhold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
	}
	return nil
}
