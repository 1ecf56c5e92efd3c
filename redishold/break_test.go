//go:build unix

package redishold

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The holder of a term that was broken at once is told so by whom, also if others have had the lock meanwhile. One whose term has
// lapsed is the control: it is told of nobody.
func TestBrokenTermIsToldBehindOthers(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	for name, opts := range map[string]*Options{"line": nil, "plain keys": {PlainKeys: true}} {
		d := openDriver(t, r.Addr, opts)
		ctx := t.Context()
		release := func(ref driver.Ref) {
			t.Helper()
			if err := d.Release(ctx, &driver.ReleaseRequest{Ref: ref}); err != nil {
				t.Fatalf("%s: Release: %v", name, err)
			}
		}
		acquire := func(ttl time.Duration) driver.Ref {
			t.Helper()
			req := request("broken", ttl)
			testenv.Eventually(t, "the lock is free", func() bool {
				_, err := d.Acquire(ctx, req)
				if err != nil && !errors.As(err, new(*driver.HeldError)) {
					t.Fatalf("%s: Acquire: %v", name, err)
				}
				return err == nil
			})
			return req.Ref
		}
		lapsed := acquire(100 * time.Millisecond)
		first := acquire(time.Minute)
		var behind []driver.Ref
		if d.Traits().FIFO { // two who wait
			for range 2 {
				req := request("broken", time.Second)
				if _, err := d.Enqueue(ctx, req); !errors.As(err, new(*driver.HeldError)) {
					t.Fatalf("%s: Enqueue: %v", name, err)
				}
				behind = append(behind, req.Ref)
			}
		}
		if err := d.Break(ctx, &driver.BreakRequest{Ref: first, By: "ops: stuck", Now: true}); err != nil {
			t.Fatalf("%s: Break: %v", name, err)
		}
		for _, ref := range behind {
			release(ref)
		}
		for range 2 { // they have had it and are gone, and others come
			release(acquire(time.Minute))
			_, err := d.Renew(ctx, &driver.RenewRequest{Ref: first, TTL: time.Minute})
			if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), "ops: stuck") {
				t.Errorf("%s: Renew of the broken term: %v", name, err)
			}
			err = d.Release(ctx, &driver.ReleaseRequest{Ref: first})
			if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), "ops: stuck") {
				t.Errorf("%s: Release of the broken term: %v", name, err)
			}
		}
		if _, err := d.Renew(ctx, &driver.RenewRequest{Ref: lapsed, TTL: time.Minute}); !errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrBroken) {
			t.Errorf("%s: Renew of a term that has lapsed: %v", name, err)
		}
		note := d.keys("broken")[0] + ":b:" + first.Nonce
		if left, err := d.client.(*redis.Client).PTTL(ctx, note).Result(); err != nil || left <= 0 || left > time.Minute {
			t.Errorf("%s: the note of the broken term lasts for %v, %v, want no longer than the term", name, left, err)
		}
	}
}
