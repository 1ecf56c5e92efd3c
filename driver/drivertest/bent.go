package drivertest

import (
	"context"
	"errors"

	"github.com/holdlock/holdlock/driver"
)

// bent is a driver of which some methods have been replaced: those whose field is not nil.
type bent struct {
	driver.Driver
	acquire   func(context.Context, *driver.AcquireRequest) (driver.Grant, error)
	renew     func(context.Context, *driver.RenewRequest) (driver.Grant, error)
	batch     func(context.Context, []*driver.RenewRequest) []driver.RenewResult
	release   func(context.Context, *driver.ReleaseRequest) error
	breakTerm func(context.Context, *driver.BreakRequest) error
	watch     func(context.Context, string) (<-chan struct{}, func(), error)
	list      func(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error)
	inspect   func(context.Context, string) (driver.Term, bool, error)
	settle    func(context.Context, *driver.SettleRequest) error
	job       func(context.Context, string) (driver.Job, bool, error)
	jobs      func(context.Context, *driver.JobQuery) ([]driver.Job, error)
	enqueue   func(context.Context, *driver.AcquireRequest) (driver.Grant, error)
	attend    func(context.Context, []*driver.AcquireRequest) []driver.Standing
	leave     func(context.Context, string, []driver.Leaving) error
	listen    func(context.Context, func(driver.Push)) error
	close     func() error

	updateRecords func(ctx context.Context, day driver.Day, locks []string, merge func(string, []byte) []byte) error
	readRecords   func(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error
	notify        func(driver.Ref, func(error))
}

func bend(how func(b *bent)) func(driver.Driver) driver.Driver {
	return func(d driver.Driver) driver.Driver {
		b := &bent{Driver: d}
		how(b)
		return b
	}
}

// Unwrap makes driver.As see the optional interfaces of the driver below, and no others.
func (b *bent) Unwrap() driver.Driver { return b.Driver }

func (b *bent) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	if b.acquire != nil {
		return b.acquire(ctx, req)
	}
	return b.Driver.Acquire(ctx, req)
}

func (b *bent) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	if b.renew != nil {
		return b.renew(ctx, req)
	}
	return b.Driver.Renew(ctx, req)
}

func (b *bent) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	if b.batch != nil {
		return b.batch(ctx, reqs)
	}
	if b.renew == nil {
		return b.Driver.(driver.BatchRenewer).RenewBatch(ctx, reqs)
	}
	results := make([]driver.RenewResult, len(reqs))
	for i, req := range reqs {
		results[i].Grant, results[i].Err = b.renew(ctx, req)
	}
	return results
}

func (b *bent) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	if b.release != nil {
		return b.release(ctx, req)
	}
	return b.Driver.Release(ctx, req)
}

func (b *bent) Break(ctx context.Context, req *driver.BreakRequest) error {
	if b.breakTerm != nil {
		return b.breakTerm(ctx, req)
	}
	return b.Driver.(driver.Breaker).Break(ctx, req)
}

func (b *bent) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if b.watch != nil {
		return b.watch(ctx, key)
	}
	return b.Driver.(driver.Waiter).Watch(ctx, key)
}

func (b *bent) Enqueue(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	if b.enqueue != nil {
		return b.enqueue(ctx, req)
	}
	return b.queue().Enqueue(ctx, req)
}

func (b *bent) Attend(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
	if b.attend != nil {
		return b.attend(ctx, reqs)
	}
	return b.queue().Attend(ctx, reqs)
}

func (b *bent) Leave(ctx context.Context, key string, left []driver.Leaving) error {
	if b.leave != nil {
		return b.leave(ctx, key, left)
	}
	return b.queue().Leave(ctx, key, left)
}

func (b *bent) Listen(ctx context.Context, hear func(driver.Push)) error {
	if b.listen != nil {
		return b.listen(ctx, hear)
	}
	return b.queue().Listen(ctx, hear)
}

func (b *bent) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	if b.list != nil {
		return b.list(ctx, prefix, after, limit)
	}
	return b.lister().List(ctx, prefix, after, limit)
}

func (b *bent) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	if b.inspect != nil {
		return b.inspect(ctx, key)
	}
	return b.lister().Inspect(ctx, key)
}

func (b *bent) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(string, []byte) []byte) error {
	if b.updateRecords != nil {
		return b.updateRecords(ctx, day, locks, merge)
	}
	return b.Driver.(driver.Ledger).UpdateRecords(ctx, day, locks, merge)
}

func (b *bent) ReadRecords(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
	if b.readRecords != nil {
		return b.readRecords(ctx, first, last, f)
	}
	return b.Driver.(driver.Ledger).ReadRecords(ctx, first, last, f)
}

func (b *bent) Job(ctx context.Context, key string) (driver.Job, bool, error) {
	if b.job != nil {
		return b.job(ctx, key)
	}
	return b.journal().Job(ctx, key)
}

func (b *bent) Jobs(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
	if b.jobs != nil {
		return b.jobs(ctx, q)
	}
	return b.journal().Jobs(ctx, q)
}

func (b *bent) Settle(ctx context.Context, req *driver.SettleRequest) error {
	if b.settle != nil {
		return b.settle(ctx, req)
	}
	return b.journal().Settle(ctx, req)
}

func (b *bent) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Driver.Close()
}

func (b *bent) NotifyLoss(ref driver.Ref, lost func(error)) {
	if b.notify != nil {
		b.notify(ref, lost)
		return
	}
	b.Driver.(driver.LossNotifier).NotifyLoss(ref, lost)
}

func (b *bent) lister() driver.Lister   { return b.Driver.(driver.Lister) }
func (b *bent) journal() driver.Journal { return b.Driver.(driver.Journal) }
func (b *bent) queue() driver.Queue     { return b.Driver.(driver.Queue) }

// The commonest ways to bend a driver.

// asking changes what Acquire asks for.
func asking(f func(d driver.Driver, req *driver.AcquireRequest)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			changed := *req
			f(b.Driver, &changed)
			return b.Driver.Acquire(ctx, &changed)
		}
	})
}

// granting changes what Acquire grants.
func granting(f func(*driver.Grant)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := b.Driver.Acquire(ctx, req)
			if err == nil {
				f(&g)
			}
			return g, err
		}
	})
}

// renewing changes what Renew asks for.
func renewing(f func(*driver.RenewRequest)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			changed := *req
			f(&changed)
			return b.Driver.Renew(ctx, &changed)
		}
	})
}

// releasing changes what Release asks for.
func releasing(f func(*driver.ReleaseRequest)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			changed := *req
			f(&changed)
			return b.Driver.Release(ctx, &changed)
		}
	})
}

// telling changes what HeldError says about the term in the way.
func telling(f func(*driver.Term)) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := b.Driver.Acquire(ctx, req)
			var held *driver.HeldError
			if errors.As(err, &held) {
				term := held.Term
				f(&term)
				err = &driver.HeldError{Term: term}
			}
			return g, err
		}
	})
}

// naming changes every key on its way to the store, and cannot change it back.
func naming(f func(key string) string) func(driver.Driver) driver.Driver {
	return bend(func(b *bent) {
		b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			changed := *req
			changed.Ref.Key = f(req.Ref.Key)
			return b.Driver.Acquire(ctx, &changed)
		}
		b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			changed := *req
			changed.Ref.Key = f(req.Ref.Key)
			return b.Driver.Renew(ctx, &changed)
		}
		b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			changed := *req
			changed.Ref.Key = f(req.Ref.Key)
			return b.Driver.Release(ctx, &changed)
		}
		b.inspect = func(ctx context.Context, key string) (driver.Term, bool, error) {
			return b.lister().Inspect(ctx, f(key))
		}
	})
}

// present returns the term that stands, whoever asks. A store that identifies terms by key alone behaves like this.
func present(ctx context.Context, d driver.Driver, key string) (driver.Term, bool) {
	term, stands, err := d.(driver.Lister).Inspect(ctx, key)
	return term, stands && err == nil
}

func queues(d driver.Driver) bool { return has[driver.Queue](d) }
func lists(d driver.Driver) bool  { return has[driver.Lister](d) }
func breaks(d driver.Driver) bool { return has[driver.Breaker](d) }

func has[T any](d driver.Driver) bool {
	_, ok := driver.As[T](d)
	return ok
}
