package quorumhold

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// restarted takes a key that is to stay taken for hold, restarts the servers empty one after the other, and says whether a rival
// was granted it before.
func restarted(t *testing.T, maxTTL, hold time.Duration) (early bool) {
	synctest.Test(t, func(t *testing.T) {
		const abstain = 30*time.Second + 30*time.Second/50
		l := newLab(3, abstain)
		d := l.open(t, &Options{MaxTTL: maxTTL}, func() time.Duration { return rtt / 2 })
		defer d.Close()
		req := request("k", 10*time.Second)
		req.MinHold = hold
		began := time.Now()
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, KeepFor: hold - time.Since(began)}); err != nil {
			t.Fatal(err)
		}
		for _, s := range l.servers {
			s.forget()
			time.Sleep(abstain)
			if _, err := d.Acquire(t.Context(), request("k", 10*time.Second)); err == nil {
				early = time.Since(began) < hold
				return
			}
		}
	})
	return early
}

// A key that is kept by MinHold outlives servers that restart one after the other, and so it must not last longer than they abstain.
func TestMinHoldIsNotForgotten(t *testing.T) {
	if restarted(t, 30*time.Second, 30*time.Second) {
		t.Error("a MinHold of MaxTTL was forgotten")
	}
	if !restarted(t, time.Hour, 5*time.Minute) {
		t.Error("the control: a MinHold longer than nodes abstain should be forgotten")
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, broken{})
		req := request("k", 10*time.Second)
		req.MinHold = time.Minute
		wanted := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), what+" of 1m0s is longer than MaxTTL 30s") ||
				!strings.Contains(err.Error(), "raise MaxTTL in all programs") {
				t.Errorf("%v", err)
			}
		}
		_, err := d.Acquire(t.Context(), req)
		wanted("a MinHold", err)
		req.MinHold = 0
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		wanted("a KeepFor", d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, KeepFor: time.Minute}))
		c, err := holdlock.NewClient(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(t.Context())
		var invalid *holdlock.InvalidError
		_, err = c.NewLock("k", &holdlock.LockOptions{TTL: 10 * time.Second, MinHold: time.Minute})
		if !errors.As(err, &invalid) || invalid.What != "MinHold" || !strings.Contains(err.Error(), "raise its MaxTTL") {
			t.Errorf("NewLock: %v", err)
		}
		if _, err := c.NewLock("k", &holdlock.LockOptions{TTL: 10 * time.Second, MinHold: 30 * time.Second}); err != nil {
			t.Errorf("a MinHold of MaxTTL: %v", err)
		}
	})
}
