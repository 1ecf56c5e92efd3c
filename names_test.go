package holdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
)

// Bad input is a clear error, and nothing is sent to the store.
func TestBadInput(t *testing.T) {
	const year = 365 * 24 * time.Hour
	virtual(t, func(t *testing.T, r *rig) {
		for _, tt := range []struct {
			name string
			opts holdlock.LockOptions
			want string
		}{
			{"", holdlock.LockOptions{}, "empty"},
			{"a/b", holdlock.LockOptions{}, "slash"},
			{strings.Repeat("x", 513), holdlock.LockOptions{}, "513 bytes"},
			{"a\x00b", holdlock.LockOptions{}, "NUL"},
			{"a\xffb", holdlock.LockOptions{}, "UTF-8"},
			{"a", holdlock.LockOptions{TTL: -1}, "TTL"},
			{"a", holdlock.LockOptions{TTL: 1}, "TTL"},
			{"a", holdlock.LockOptions{TTL: 99 * time.Millisecond}, "at least 100ms"},
			{"a", holdlock.LockOptions{TTL: year + 1}, "at most"},
			{"a", holdlock.LockOptions{TTL: time.Minute, MaxHold: time.Second}, "MaxHold"},
			{"a", holdlock.LockOptions{MaxHold: -time.Second}, "MaxHold"},
			{"a", holdlock.LockOptions{MinHold: -1}, "MinHold"},
			{"a", holdlock.LockOptions{MinHold: year + 1}, "MinHold"},
			{"a", holdlock.LockOptions{Wait: -1}, "Wait"},
			{"a", holdlock.LockOptions{Renew: 7}, "Renew"},
			{"a", holdlock.LockOptions{DoubleRun: 7}, "DoubleRun"},
			{"a", holdlock.LockOptions{Guard: 7}, "Guard"},
		} {
			_, err := r.client.NewLock(tt.name, &tt.opts)
			wantIs(t, tt.want, err, holdlock.ErrInvalid)
			if err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("message %q does not say %q on one line", err, tt.want)
			}
		}
		l := r.lock(r.client, holdlock.LockOptions{})
		for _, key := range []string{"", strings.Repeat("k", 513), "\x00", "\xff"} {
			k := l.For(key)
			_, err := k.TryAcquire(t.Context())
			wantIs(t, "TryAcquire", err, holdlock.ErrInvalid)
			wantIs(t, "Do", k.Do(t.Context(), nil), holdlock.ErrInvalid)
			if err != nil && !strings.Contains(err.Error(), "key of lock job") {
				t.Errorf("message %q does not name the lock", err)
			}
		}
		for _, bad := range []string{"", "/k", "l/", "\xff"} {
			if _, _, err := holdlock.ParseName(bad); !errors.Is(err, holdlock.ErrInvalid) {
				t.Errorf("ParseName(%q): %v", bad, err)
			}
		}
		if n := r.drv.calls.Load(); n != 0 {
			t.Errorf("%d calls of the store", n)
		}
		if _, err := holdlock.NewClient(r.drv, &holdlock.ClientOptions{CallTimeout: -1}); !errors.Is(err, holdlock.ErrInvalid) {
			t.Errorf("CallTimeout -1: %v", err)
		}
	})
}

func TestGoodInput(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		for _, name := range []string{"a", "A", "nightly report", "{x}", "🔒", strings.Repeat("x", 512), "a\nb"} {
			l, err := r.client.NewLock(name, nil)
			if err != nil {
				t.Errorf("%q: %v", name, err)
				continue
			}
			if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		if _, err := r.client.NewLock("a", &holdlock.LockOptions{TTL: 365 * 24 * time.Hour}); err != nil {
			t.Error(err)
		}
		name, key, err := holdlock.ParseName("charge card/2026/11 a")
		if name != "charge card" || key != "2026/11 a" || err != nil {
			t.Errorf("ParseName = %q, %q, %v", name, key, err)
		}
	})
}

// A Harmful lock is refused by the store that cannot protect it, before anything is sent.
func TestHarmfulIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		for _, tt := range []struct {
			opts holdlock.LockOptions
			want string // "" is permitted
		}{
			{holdlock.LockOptions{DoubleRun: holdlock.Harmful}, "no Guard"},
			{holdlock.LockOptions{DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced}, "not durable"},
			{holdlock.LockOptions{DoubleRun: holdlock.Harmful, AcceptRisk: "refunded by hand"}, ""},
			{holdlock.LockOptions{DoubleRun: holdlock.Costly}, ""},
		} {
			before := r.drv.calls.Load()
			lock := r.lock(r.client, tt.opts)
			if usable := lock.Usable(); errors.Is(usable, holdlock.ErrRefused) != (tt.want != "") {
				t.Errorf("%+v: Usable says %v", tt.opts, usable)
			}
			err := lock.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil })
			if tt.want == "" {
				if err != nil {
					t.Errorf("%+v: %v", tt.opts, err)
				}
				continue
			}
			wantIs(t, "Do", err, holdlock.ErrRefused)
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "AcceptRisk") {
				t.Errorf("message %q does not say what is missing and what would do", err)
			}
			if r.drv.calls.Load() != before {
				t.Error("the store was called")
			}
		}
	})
}
