package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/review/ledger"
)

// slow is a ledger that answers when its time is up, and remembers how much it had.
type slow struct {
	away
	had time.Duration
}

func (s *slow) UpdateRecords(ctx context.Context, _ driver.Day, _ []string, _ func(string, []byte) []byte) error {
	end, _ := ctx.Deadline()
	s.had = time.Until(end)
	return errAway
}

// A run that has waited for its store in vain does not wait for it again to send its counts, and one that was answered does.
func TestCountsAfterAFailure(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for _, c := range []struct {
		kinds []holdlock.EventKind
		short bool
	}{
		{[]holdlock.EventKind{holdlock.Granted, holdlock.Released}, false},
		{[]holdlock.EventKind{holdlock.Skipped}, false},
		{[]holdlock.EventKind{holdlock.Failed}, true},
		{[]holdlock.EventKind{holdlock.Granted, holdlock.RenewFailed, holdlock.Renewed, holdlock.Released}, false},
		{[]holdlock.EventKind{holdlock.Granted, holdlock.RenewFailed, holdlock.Lost}, true},
		{[]holdlock.EventKind{holdlock.Granted, holdlock.Unreleased}, true},
	} {
		book := &slow{}
		rec := &counts{Recorder: ledger.New(&ledger.Options{Store: book, Spool: t.TempDir()})}
		_ = rec.Start(nil, "")
		for _, kind := range c.kinds {
			rec.Observe(holdlock.Event{Kind: kind, Name: "job"})
		}
		ctx, cancel := context.WithTimeout(t.Context(), hour)
		if err := rec.Stop(ctx); err != nil {
			t.Errorf("%v: %v, want it spooled", c.kinds, err)
		}
		cancel()
		if short := book.had <= afterFailure; short != c.short || book.had == 0 {
			t.Errorf("after %v sending had %s", c.kinds, book.had)
		}
	}
}

// The spool is gone when all in it was sent, and stays as long as anything is in it.
func TestSpoolIsTidied(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	g := &globals{Spool: filepath.Join(top, "unsent")}
	run := func(book driver.Ledger) {
		rec := &counts{Recorder: g.recorder(book), tidy: g.tidySpool}
		_ = rec.Start(nil, "")
		rec.Observe(holdlock.Event{Kind: holdlock.Skipped, Name: "job"})
		if err := rec.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	run(away{})
	if files, err := os.ReadDir(g.spoolDir()); err != nil || len(files) != 1 {
		t.Fatalf("spooled are %v (%v)", files, err)
	}
	store := memhold.NewDriver(nil)
	defer store.Close()
	book, _ := driver.As[driver.Ledger](store)
	run(book)
	if _, err := os.Stat(g.spoolDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was sent has left its directory: %v", err)
	}
	if _, err := os.Stat(g.Spool); err != nil {
		t.Errorf("the directory that somebody has named: %v", err)
	}
}

// What no context bounds at a server that hangs, --timeout does.
func TestTimeoutOfRedisClients(t *testing.T) {
	t.Parallel()
	const timeout = 700 * time.Millisecond
	for _, scheme := range []string{"redis", "redis+sentinel", "redis+cluster"} {
		path := map[string]string{"redis+sentinel": "/main"}[scheme]
		u, err := parseRedis(scheme, "//127.0.0.1:1"+path, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		c := u.client(timeout)
		var read, dial time.Duration
		switch c := c.(type) {
		case *redis.Client:
			read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
		case *redis.ClusterClient:
			read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
		}
		if read != timeout || dial != timeout {
			t.Errorf("%s: reading may take %s, connecting %s; want %s", scheme, read, dial, timeout)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
