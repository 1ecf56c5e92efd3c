package faultdriver

import (
	"context"

	"github.com/holdlock/holdlock/driver"
)

// Job implements driver.Journal.
func (d *Driver) Job(ctx context.Context, key string) (driver.Job, bool, error) {
	type answer struct {
		job driver.Job
		ok  bool
	}
	a, err := call(ctx, d.plan(Job, key), func(ctx context.Context) (a answer, err error) {
		journal, err := inner[driver.Journal](d, Job)
		if err != nil {
			return a, err
		}
		a.job, a.ok, err = journal.Job(ctx, key)
		return a, err
	})
	return a.job, a.ok, err
}

// Jobs implements driver.Journal.
func (d *Driver) Jobs(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
	return call(ctx, d.plan(Jobs, q.Prefix), func(ctx context.Context) ([]driver.Job, error) {
		journal, err := inner[driver.Journal](d, Jobs)
		if err != nil {
			return nil, err
		}
		return journal.Jobs(ctx, q)
	})
}

// Settle implements driver.Journal.
func (d *Driver) Settle(ctx context.Context, req *driver.SettleRequest) error {
	_, err := call(ctx, d.plan(Settle, req.Key), func(ctx context.Context) (struct{}, error) {
		journal, err := inner[driver.Journal](d, Settle)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, journal.Settle(ctx, req)
	})
	return err
}
