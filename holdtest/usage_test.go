package holdtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/holdtest"
)

// The code under test: it charges orders, each once, and says what became of it.

type charger struct {
	lock    *holdlock.Lock
	account *account
	pause   time.Duration // between the two steps of a charge
}

var errTryLater = errors.New("try later")

func (c *charger) charge(ctx context.Context, order string) error {
	err := c.lock.For(order).Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error {
		select { // the long part stops when the lock is lost
		case <-time.After(c.pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return c.account.book(order, lease.Token()) // the part that must not happen twice carries the token
	})
	switch {
	case errors.Is(err, holdlock.ErrHeld):
		return nil // somebody else is charging this order
	case errors.Is(err, holdlock.ErrUnreachable), errors.Is(err, holdlock.ErrUnknown):
		return fmt.Errorf("charging order %s: %w: %w", order, errTryLater, err)
	}
	return err
}

// account is a resource that compares tokens.
type account struct {
	last   map[string]holdlock.Token
	booked int
}

func (a *account) book(order string, token holdlock.Token) error {
	if token < a.last[order] {
		return fmt.Errorf("order %s: token %d is stale", order, token)
	}
	a.last[order] = token
	a.booked++
	return nil
}

func newCharger(t *testing.T) (*charger, *holdtest.Client) {
	locks := holdtest.NewClient(t, nil)
	l, err := locks.NewLock("charge", &holdlock.LockOptions{Purpose: "books orders", DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced})
	if err != nil {
		t.Fatal(err)
	}
	return &charger{lock: l, account: &account{last: map[string]holdlock.Token{}}, pause: 0}, locks
}

func TestUsageSkipsWhatAnotherDoes(t *testing.T) {
	c, locks := newCharger(t)
	locks.HoldByAnother("charge", "7")
	if err := c.charge(t.Context(), "7"); err != nil {
		t.Error(err)
	}
	if c.account.booked != 0 {
		t.Error("booked although another program is at it")
	}
}

func TestUsageStopsWhenTheLockIsLost(t *testing.T) {
	c, locks := newCharger(t)
	c.pause = time.Hour
	done := make(chan error)
	go func() { done <- c.charge(t.Context(), "7") }()
	locks.Lose("charge", "7", holdlock.LossBroken)
	if err := <-done; !errors.Is(err, holdlock.ErrLost) {
		t.Errorf("error is %v, want a loss", err)
	}
	if c.account.booked != 0 {
		t.Error("booked without the lock")
	}
}

func TestUsageComesBackWhenTheStoreFails(t *testing.T) {
	c, locks := newCharger(t)
	for _, state := range []holdtest.Store{holdtest.Down, holdtest.Mute} {
		locks.SetStore(state)
		if err := c.charge(t.Context(), "7"); !errors.Is(err, errTryLater) {
			t.Errorf("error is %v, want one that says to try later", err)
		}
	}
}

// In virtual time the same store failure can be seen to cost a lease, in no time.
func TestUsageOutlivesAShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, locks := newCharger(t)
		c.pause = time.Minute
		time.AfterFunc(20*time.Second, func() { locks.SetStore(holdtest.Down) })
		time.AfterFunc(30*time.Second, func() { locks.SetStore(holdtest.Up) })
		if err := c.charge(t.Context(), "7"); err != nil || c.account.booked != 1 {
			t.Errorf("booked %d times, error %v", c.account.booked, err)
		}
	})
}

// The holder pauses and is overtaken; what it does after that is refused by its token.
func TestUsageSendsItsToken(t *testing.T) {
	c, locks := newCharger(t)
	err := c.lock.For("7").Do(t.Context(), func(_ context.Context, lease *holdlock.Lease) error {
		locks.Expire("charge", "7")
		other := locks.HoldByAnother("charge", "7")
		if err := c.account.book("7", other.Token()); err != nil {
			t.Error(err)
		}
		return c.account.book("7", lease.Token())
	})
	if err == nil || c.account.booked != 1 {
		t.Errorf("booked %d times, error %v; want the overtaken one refused", c.account.booked, err)
	}
}
