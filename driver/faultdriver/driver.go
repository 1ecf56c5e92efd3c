package faultdriver

import (
	"context"
	"sync"

	"github.com/holdlock/holdlock/driver"
)

// Driver is a driver whose calls can go wrong. It is safe for concurrent use.
type Driver struct {
	inner driver.Driver

	mu     sync.Mutex
	script Script
	counts map[Op]int
	frozen chan struct{} // closed, and made anew, by Thaw
	closed bool

	ghosts sync.WaitGroup // requests that may outlive their callers; added to under mu, while not closed
}

// New wraps inner. A nil script lets every call through.
func New(inner driver.Driver, script Script) *Driver {
	return &Driver{inner: inner, script: script, counts: map[Op]int{}, frozen: make(chan struct{})}
}

// SetScript changes what happens to later calls. The counts go on.
func (d *Driver) SetScript(script Script) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.script = script
}

// Count returns how many calls of a kind there were, whatever became of them.
func (d *Driver) Count(op Op) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts[op]
}

// Thaw lets all calls go on that hang Hard now.
func (d *Driver) Thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.frozen)
	d.frozen = make(chan struct{})
}

// Unwrap returns the wrapped driver; see driver.As.
func (d *Driver) Unwrap() driver.Driver { return d.inner }

// Traits implements driver.Driver.
func (d *Driver) Traits() driver.Traits {
	t := d.inner.Traits()
	t.Prompt = false // a fault may hang
	return t
}

// Close thaws, waits for the requests that have outlived their callers, and closes the wrapped driver. Nothing goes wrong
// any more after that.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.Thaw()
	d.ghosts.Wait()
	return d.inner.Close()
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	return call(ctx, d.plan(Acquire, req.Ref.Key), func(ctx context.Context) (driver.Grant, error) {
		return d.inner.Acquire(ctx, req)
	})
}

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	return call(ctx, d.plan(Renew, req.Ref.Key), func(ctx context.Context) (driver.Grant, error) {
		return d.inner.Renew(ctx, req)
	})
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	_, err := call(ctx, d.plan(Release, req.Ref.Key), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, d.inner.Release(ctx, req)
	})
	return err
}
