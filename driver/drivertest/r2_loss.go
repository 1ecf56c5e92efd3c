package drivertest

import (
	"context"
	"errors"

	"github.com/holdlock/holdlock/driver"
)

// R2: a store that sees the end of what its terms live on tells their holders at once. It keeps the keys from others all the
// same, until the holders' trust has ended: the news can come late.
var lossCases = []testCase{
	{"R2/ALossIsTold", func(r *rig) {
		d, other := r.open(), r.open()
		n := r.lossNotifier(d)
		if n == nil {
			return
		}
		held, released := r.acquire(d, "held", r.long), r.acquire(d, "released", r.long)
		told, wrong := make(chan error, 2), make(chan error, 2)
		n.NotifyLoss(held.ref, func(err error) { told <- err })
		n.NotifyLoss(released.ref, func(err error) { wrong <- err })
		r.release(released)
		if err := r.store.Sever(); err != nil {
			r.Fatalf("Sever: %v", err)
		}
		var err error
		r.eventually("R2: a loss is told", func() bool {
			select {
			case err = <-told:
				return true
			default:
				return false
			}
		})
		if err == nil || errors.Is(err, driver.ErrGone) {
			r.Errorf("R10: the reason of a loss is %v; want what has happened", err)
		}
		r.refused(other, "held")
		r.acquire(d, "next", r.long) // the driver goes on
		if len(told)+len(wrong) > 0 {
			r.Errorf("R2: a loss was told of a term that was released, or twice")
		}
	}},
	{"R2/WhatIsNotHereIsLost", func(r *rig) {
		// Between the grant and the question the connection may have ended.
		d := r.open()
		n := r.lossNotifier(d)
		if n == nil {
			return
		}
		t := r.acquire(d, "k", r.long)
		r.release(t)
		for _, ref := range []driver.Ref{t.ref, {Key: "never", Nonce: newNonce()}} {
			told := make(chan error, 1)
			n.NotifyLoss(ref, func(err error) { told <- err })
			r.eventually("R2: the loss of a term that does not stand is told", func() bool { return len(told) > 0 })
		}
	}},
}

// lossNotifier returns nil if the store hears of losses only when it is asked.
func (r *rig) lossNotifier(d driver.Driver) driver.LossNotifier {
	r.Helper()
	n, ok := driver.As[driver.LossNotifier](d)
	if !ok {
		return nil
	}
	if r.store.Sever == nil {
		r.Fatalf("the store is a LossNotifier, and the harness cannot cause a loss: set Store.Sever")
	}
	return n
}

func notifies(d driver.Driver) bool { return has[driver.LossNotifier](d) }

func lossMutants() []Mutant {
	return []Mutant{
		{
			Name:  "keeps losses to itself",
			Cases: []string{"R2/ALossIsTold", "R2/WhatIsNotHereIsLost"},
			Needs: notifies,
			Wrap: bend(func(b *bent) {
				b.notify = func(driver.Ref, func(error)) {}
			}),
		},
		{
			Name:  "calls a term lost that was released",
			Cases: []string{"R2/ALossIsTold"},
			Needs: notifies,
			Wrap: bend(func(b *bent) {
				lost := map[driver.Ref]func(error){}
				b.notify = func(ref driver.Ref, f func(error)) {
					lost[ref] = f
					b.Driver.(driver.LossNotifier).NotifyLoss(ref, f)
				}
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					err := b.Driver.Release(ctx, req)
					if f := lost[req.Ref]; f != nil && err == nil {
						f(errors.New("released"))
					}
					return err
				}
			}),
		},
		{
			Name:  "does not say what has happened",
			Cases: []string{"R2/ALossIsTold"},
			Needs: notifies,
			Wrap: bend(func(b *bent) {
				b.notify = func(ref driver.Ref, f func(error)) {
					b.Driver.(driver.LossNotifier).NotifyLoss(ref, func(error) { f(driver.ErrGone) })
				}
			}),
		},
	}
}
