package sqlitehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	if err := d.inPlace("renew", req.Ref.Key); err != nil {
		return driver.Grant{}, err
	}
	var g driver.Grant
	err := d.call(ctx, "renew", req.Ref.Key, func(w *writer) (err error) {
		g, err = d.renew(w, req)
		return err
	})
	return g, err
}

// batchSize bounds how long a batch keeps the file to itself, to some milliseconds.
const batchSize = 200

// RenewBatch implements driver.BatchRenewer. It makes one transaction of up to 200 renewals.
func (d *Driver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results := make([]driver.RenewResult, len(reqs))
	for start := 0; start < len(reqs); start += batchSize {
		end := min(start+batchSize, len(reqs))
		d.renewBatch(ctx, reqs[start:end], results[start:end])
	}
	return results
}

func (d *Driver) renewBatch(ctx context.Context, reqs []*driver.RenewRequest, results []driver.RenewResult) {
	what := reqs[0].Ref.Key
	if len(reqs) > 1 {
		what = fmt.Sprintf("%s and %d more", what, len(reqs)-1)
	}
	err := d.inPlace("renew", what)
	if err == nil {
		err = d.call(ctx, "renew", what, func(w *writer) error {
			return w.transaction("BEGIN IMMEDIATE", func() error {
				for i, req := range reqs {
					g, err := d.renew(w, req)
					var about *refusal
					if err != nil && !errors.As(err, &about) {
						return err
					}
					results[i] = driver.RenewResult{Grant: g, Err: err}
				}
				return nil
			})
		})
	}
	if err != nil {
		for i := range results {
			results[i] = driver.RenewResult{Err: err}
		}
	}
}

func (d *Driver) renew(w *writer, req *driver.RenewRequest) (driver.Grant, error) {
	refuse := func(err error) (driver.Grant, error) {
		return driver.Grant{}, &refusal{"renew", req.Ref.Key, err}
	}
	if req.Floor > driver.MaxToken {
		return refuse(fmt.Errorf("floor %d: %w: %w", req.Floor, driver.ErrTokensExhausted, driver.ErrNotApplied))
	}
	m := d.moment()
	var token int64
	renewed, err := w.row(renewStatement, []any{
		d.namespace, req.Ref.Key, req.Ref.Nonce, d.boot, m.now, m.after(req.TTL), m.micro(), int64(req.Floor),
	}, &token)
	if err != nil {
		return driver.Grant{}, err
	}
	if renewed {
		return driver.Grant{Token: driver.Token(token)}, nil
	}
	r, err := d.whyNot(w, req.Ref, m)
	if err == nil { // it is the current term, so the floor is in the way
		err = fmt.Errorf("%w: it is %d, the floor %d", driver.ErrTokenPassed, r.token, req.Floor)
	} else if !errors.Is(err, driver.ErrGone) {
		return driver.Grant{}, err
	}
	return refuse(err)
}

// whyNot says why ref is not a term that can be renewed, or nil if it is one. The answers of this and of the statement
// before are of two moments, but a term only ever goes from standing to broken to gone.
func (d *Driver) whyNot(w *writer, ref driver.Ref, m moment) (record, error) {
	r, known, err := w.record(d.namespace, ref.Key)
	switch {
	case err != nil:
		return r, err
	case !known || r.nonce == "":
		return r, driver.ErrGone
	case r.nonce != ref.Nonce:
		// If an operator ended it, and there is a successor by now, the successor's row still tells.
		if prior := grant(ref.Key, 0, r.previous, r.prior).Prior; prior != nil && prior.Nonce == ref.Nonce && prior.Broken != "" {
			return r, fmt.Errorf("%w: %s", driver.ErrBroken, prior.Broken)
		}
		return r, driver.ErrGone
	case r.broken.Valid:
		return r, fmt.Errorf("%w: %s", driver.ErrBroken, r.broken.String)
	case !d.sameBoot(&r):
		return r, fmt.Errorf("%w: the machine has been rebooted", driver.ErrGone)
	case r.expiry <= m.now:
		return r, fmt.Errorf("%w: its time ran out %v ago", driver.ErrGone, time.Duration(m.now-r.expiry))
	}
	return r, nil
}
