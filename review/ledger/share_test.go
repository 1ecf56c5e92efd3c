package ledger

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/sqlitehold"
)

// A recorder serves one client. A second one would count into the store of the first, or nowhere.
func TestOneClientEach(t *testing.T) {
	store := memhold.NewStore()
	opts := holdlock.ClientOptions{Recorder: New(&Options{Every: time.Hour})}
	first, err := memhold.Open(&memhold.Options{Store: store, Client: opts})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if _, err := memhold.Open(&memhold.Options{Client: opts}); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "ledger.New") {
			t.Errorf("%s: %v, want ErrInvalid and what to do", when, err)
		}
		if _, err := sqlitehold.Open(filepath.Join(t.TempDir(), "locks.db"), &sqlitehold.Options{Client: opts}); !errors.Is(err, holdlock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid, and the file closed", when, err)
		}
	}
	refused("while the first runs")
	l, err := first.NewLock("a", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("after it")
	wantGrants(t, memhold.NewDriver(&memhold.Options{Store: store}), "a", 3)
}
