package holdlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Shadow mode answers by experiment whether a lock is still worth having: the work runs as if there were no lock, and the lock
// watches. The protocol has no step of its own, so that every store can do it:
//
//   - A run begins at once. Beside it one ordinary attempt is made to get the lock. If that gets it, the term is kept, renewed
//     and given back like any other, so that the next run can meet it; if it meets another term, the run is one that the lock
//     would have prevented or delayed (Overlapped); if the store fails, nobody can tell (Unseen).
//   - What the work sees is a lease of its own that nothing but its release ends. It has no token.
//
// What is counted is a lower bound: a run that overlaps has no term, so that a third run does not meet it once the first is over.

// Mode says what a lock does to those who meet it.
type Mode uint8

// The modes.
const (
	// Enforce lets one run at a time.
	Enforce Mode = iota
	// Shadow lets all run, at once, and counts the overlaps that the lock would have prevented: the way to find out whether it
	// can go. It never waits, neither for the lock nor for the store, and no loss ends the work. A shadow lease has token 0, a
	// Check that always passes, and no Ref. A lock can be in shadow mode if its double run is declared Harmless or Costly, and
	// no fence relies on its tokens. It tells nothing without a ClientOptions.Recorder. Programs that enforce the same lock still wait for those that do not, but not the reverse.
	Shadow
)

// String returns the mode in lower case.
func (m Mode) String() string { return [...]string{"enforce", "shadow"}[m] }

// checkMode reports why a lock may not be in its mode.
func (o *LockOptions) checkMode() error {
	var why string
	switch {
	case o.Mode == Enforce:
		return nil
	case o.Mode > Shadow:
		return &InvalidError{"Mode", fmt.Sprint(uint8(o.Mode)), "Enforce or Shadow"}
	case o.DoubleRun == Harmful:
		why = "its double run is declared harmful, and in shadow mode runs overlap, whatever risk is accepted"
	case o.DoubleRun == Undeclared:
		why = "in shadow mode runs overlap; declare first what that costs, with DoubleRun: Harmless or Costly"
	case o.Guard == Fenced:
		why = "it is declared as fenced, and a run that overlaps has no token to show to the fence"
	default:
		return nil
	}
	return &InvalidError{"Mode", o.Mode.String(), why}
}

// notInShadow refuses a use in which a lock cannot stand aside.
func (l *Lock) notInShadow(use, instead string) error {
	if l.opts.Mode != Shadow {
		return nil
	}
	return &InvalidError{"Mode", fmt.Sprintf("%s of lock %s", l.opts.Mode, describe(l.name, l.key)), use + "; " + instead}
}

// shadow returns a lease at once, and lets the lock watch the run from beside it.
func (l *Lock) shadow(ctx context.Context) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, l.c.gone(ctx)
	}
	if err := l.c.begin(); err != nil {
		return nil, err
	}
	now := l.c.clock.now()
	lease := &Lease{lock: l, began: now, confirmed: now}
	l.c.also(func() { l.watchFrom(lease) })
	return lease, nil
}

// shadow says that the lease is not one of the store's.
func (l *Lease) shadow() bool { return l.ref.Nonce == "" }

// watchFrom keeps the lock for the time of a run if it is free, and tells if it is not.
func (l *Lock) watchFrom(run *Lease) {
	a := attempt{lock: l, start: time.Now()}
	term, err := a.try(context.Background(), a.ask)
	if err != nil {
		a.giveUp()
		a.reportShadow(err)
		return
	}
	select {
	case <-run.Done():
	case <-l.c.keeper.ctx.Done(): // the client shuts down and has left the term to expire
		return
	}
	_ = term.Release(context.Background()) // what there is to tell was told to observers
}

func (a *attempt) reportShadow(err error) {
	e := Event{Kind: Unseen, Name: a.lock.name, Key: a.lock.key, Contended: a.met, Err: err}
	var held *HeldError
	switch {
	case errors.As(err, &held):
		e.Kind, e.Token, e.Holder = Overlapped, held.Token, holderOf(held)
	case errors.Is(err, ErrShutdown):
		return
	}
	a.lock.c.emit(e)
}
