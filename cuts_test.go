package holdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// How long the store may be away without anything being lost, whenever that begins: docs/stores/redis.md says these numbers, as
// shares of the TTL. The last renewal is up to a third of the TTL old when the store goes, and a margin of a tenth is not
// trusted; the next try comes up to 0.075 of the TTL after the store is back, or, if calls hang, after the one that was under way.
const (
	cutRefused = 0.49 // 0.9 - 1/3 - 0.075
	cutSilent  = 0.24 // less the quarter of a TTL that a call may take
	cutTooLong = 0.65
)

func TestCutsThatAreSurvived(t *testing.T) {
	const ttl = 10 * time.Second
	refused := func(context.Context) error { return errors.New("connection refused") }
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		fails    func(context.Context) error
		share    float64
		needs    time.Duration // what the command needs of the trust that is left: its grace and 50 ms
		survived bool
	}{
		"refused":              {refused, cutRefused, 0, true},
		"silent":               {silent, cutSilent, 0, true},
		"too long":             {refused, cutTooLong, 0, false},
		"the command, refused": {refused, cutRefused - 0.25 - 0.005, ttl/4 + 50*time.Millisecond, true},
		"the command, silent, with a grace of a tenth": {silent, cutSilent - 0.1 - 0.005, ttl/10 + 50*time.Millisecond, true},
		"the command, for as long as the library":      {refused, cutRefused, ttl/4 + 50*time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := true
			for phase := time.Duration(0); phase < ttl/3; phase += ttl / 60 {
				all = all && survives(t, ttl, ttl+phase, time.Duration(c.share*float64(ttl)), c.needs, c.fails)
			}
			if all != c.survived {
				t.Errorf("a cut of %.3f TTL is survived whenever it begins: %v, want %v", c.share, all, c.survived)
			}
		})
	}
}

// survives says whether a lease lives through a cut, with at least needs of trust at any time.
func survives(t *testing.T, ttl, at, lasts, needs time.Duration, fails func(context.Context) error) (lives bool) {
	virtual(t, func(t *testing.T, r *rig) {
		start := time.Now()
		r.drv.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			if since := time.Since(start); since >= at && since < at+lasts {
				return driver.Grant{}, fails(ctx)
			}
			return r.drv.Driver.Renew(ctx, req)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: ttl})
		err := l.Do(t.Context(), func(_ context.Context, lease *holdlock.Lease) error {
			for time.Since(start) < at+lasts+2*ttl {
				time.Sleep(ttl / 500)
				if err := lease.Check(needs); err != nil {
					return err
				}
			}
			return nil
		})
		lives = err == nil
	})
	return lives
}
