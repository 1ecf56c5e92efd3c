package once_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/sqlitehold"
)

// A harmful job runs under Hold on a store with durable records, and is refused otherwise: cell by cell, on real stores.
func TestHarmful(t *testing.T) {
	memory, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Shutdown(ctx)
	file, err := sqlitehold.Open(filepath.Join(t.TempDir(), "locks.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Shutdown(ctx)
	for i, tt := range []struct {
		client *holdlock.Client
		policy once.Policy
		lock   holdlock.LockOptions
		runs   bool
	}{
		{file, once.Hold, holdlock.LockOptions{DoubleRun: holdlock.Harmful}, file.Traits().Records == driver.SyncedRecords},
		{file, once.Rerun, holdlock.LockOptions{DoubleRun: holdlock.Harmful}, false},
		{file, once.Rerun, holdlock.LockOptions{DoubleRun: holdlock.Harmful, AcceptRisk: "refunded by hand"}, true},
		{file, once.Rerun, holdlock.LockOptions{DoubleRun: holdlock.Costly}, true},
		{memory, once.Hold, holdlock.LockOptions{DoubleRun: holdlock.Harmful}, false},
		{memory, once.Hold, holdlock.LockOptions{DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced}, false}, // no durable tokens
		{memory, once.Hold, holdlock.LockOptions{DoubleRun: holdlock.Costly}, true},
	} {
		lock, err := tt.client.NewLock(fmt.Sprint("charge", i), &tt.lock)
		if err != nil {
			t.Fatal(err)
		}
		if usable := once.Usable(lock, &once.Options{OnLapse: tt.policy}); (usable == nil) != tt.runs {
			t.Errorf("case %d: Usable says %v; want it to run: %v", i, usable, tt.runs)
		}
		out, err := once.Do(ctx, lock, &once.Options{OnLapse: tt.policy}, ok(""))
		if ran := out.Status == once.Ran && err == nil; ran != tt.runs || !ran && !errors.Is(err, holdlock.ErrRefused) {
			t.Errorf("case %d: %v, %v; want it to run: %v", i, out.Status, err, tt.runs)
		}
		// For Do the same lock is refused: the table is one for each way in.
		if tt.lock.DoubleRun == holdlock.Harmful && tt.lock.AcceptRisk == "" {
			err := lock.Do(ctx, func(context.Context, *holdlock.Lease) error { return nil })
			if !errors.Is(err, holdlock.ErrRefused) {
				t.Errorf("case %d: Do of a harmful lock: %v", i, err)
			}
		}
	}
}
