package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/cmd/internal/guard"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
	"github.com/holdlock/holdlock/sqlitehold"
)

// What locks do is counted in their own store, or in that of --ledger. A command lives for one run, and may end before a store that
// was away is back: what it had to say is spooled beside the default store, and the next command sends it.

// openLedger opens the store that --ledger names, which is a driver.Ledger. It returns nil without that flag.
func (g *globals) openLedger(ctx context.Context) (driver.Driver, error) {
	if g.Ledger == "" {
		return nil, nil
	}
	d, err := openStoreIn(ctx, g.Ledger, g.Namespace, g.Timeout)
	if err != nil {
		var e *exitError
		if errors.As(err, &e) && e.kind == "usage" {
			return nil, usage(strings.ReplaceAll(err.Error(), "--store", "--ledger"))
		}
		return nil, err
	}
	if _, ok := driver.As[driver.Ledger](d); !ok {
		return nil, errors.Join(usage(fmt.Sprintf("--ledger: %s keeps no records", d.Traits().Location)), d.Close())
	}
	return d, nil
}

// book returns the ledger to read, the traits of the store of the locks, and what to call when done.
func (g *globals) book() (driver.Ledger, driver.Traits, func(), error) {
	if err := existing(append(g.stores().URLs, g.Ledger)...); err != nil {
		return nil, driver.Traits{}, nil, err
	}
	drv, err := g.openDriver()
	if err != nil {
		return nil, driver.Traits{}, nil, err
	}
	apart, err := g.openLedger(context.Background())
	book, _ := driver.As[driver.Ledger](apart)
	done := func() {
		_ = drv.Close() // what was read is read
		if apart != nil {
			_ = apart.Close()
		}
	}
	if own, ok := driver.As[driver.Ledger](drv); ok && book == nil {
		book = own
	}
	if err == nil && book == nil {
		err = usage(fmt.Sprintf("%s keeps no record of what locks do. Name a store that does with --ledger or HOLDLOCK_LEDGER, "+
			"for holdlock run as well: one of the nodes, as redis://HOST, or another store. Programs set ledger.Options.Store", drv.Traits().Location))
	}
	if err != nil {
		done()
		return nil, driver.Traits{}, nil, err
	}
	g.sendSpooled(book)
	return book, drv.Traits(), done, nil
}

// sendSpooled sends what commands have left while the store was away: the morning after is when somebody looks. What cannot be sent is
// not in what is read, so that is said.
func (g *globals) sendSpooled(book driver.Ledger) {
	left := g.spooled()
	if left == 0 {
		return
	}
	rec := g.recorder(book)
	_ = rec.Start(book, "") // it is a new one
	ctx, cancel := context.WithTimeout(context.Background(), 2*g.Timeout)
	defer cancel()
	err := rec.Flush(ctx)
	for now := g.spooled(); err == nil && now < left; now = g.spooled() { // not all are sent at once
		left = now
		err = rec.Flush(ctx)
	}
	_ = rec.Stop(ctx) // there is nothing else to send
	g.tidySpool()
	if left = g.spooled(); left == 0 {
		return
	}
	text := fmt.Sprintf("not counted yet: %s in %s, from commands that ended while the store was away", count(left, "file", "files"), g.spoolDir())
	if err != nil {
		text += ": " + err.Error()
	}
	g.say("spooled", text, nil)
}

// spooled is how many files wait for the store.
func (g *globals) spooled() int {
	dir := g.spoolDir()
	if dir == "" {
		return 0
	}
	files, _ := os.ReadDir(dir) // none if it cannot be read
	return len(files)
}

// spoolDir is where counts wait for the store, "" if there is no place for it.
func (g *globals) spoolDir() string {
	dir := g.Spool
	if dir == "" {
		file, err := sqlitehold.DefaultPath()
		if err != nil {
			return ""
		}
		dir = filepath.Join(filepath.Dir(file), "unsent")
	}
	which := g.stores().URLs
	if g.Ledger != "" {
		which = []string{g.Ledger}
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q", g.Namespace)
	for _, u := range which {
		fmt.Fprintf(sum, " %q", withoutSecrets(u))
		if scheme, _, _ := strings.Cut(u, ":"); strings.HasPrefix(scheme, "postgres") {
			for _, name := range []string{"PGHOST", "PGPORT", "PGDATABASE", "PGSERVICE"} {
				fmt.Fprintf(sum, " %q", os.Getenv(name))
			}
		}
	}
	return filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:8]))
}

// withoutSecrets leaves of a URL what decides which store it is.
func withoutSecrets(text string) string {
	scheme, rest, _ := strings.Cut(text, ":")
	where, query, _ := strings.Cut(rest, "?")
	where = where[strings.LastIndex(where, "@")+1:]
	options, _ := url.ParseQuery(query)
	for name := range options {
		if strings.Contains(name, "pass") {
			options.Del(name)
		}
	}
	return scheme + ":" + where + "?" + options.Encode()
}

// recorder counts what the locks of this process do.
func (g *globals) recorder(book driver.Ledger) *ledger.Recorder {
	return ledger.New(&ledger.Options{Store: book, Spool: g.spoolDir()})
}

// counts is the recorder of a run. The guard ends a command before trust ends, so that the lease is still ours when it is given back;
// but what was cut off is no run like any other.
type counts struct {
	*ledger.Recorder
	tidy    func()      // takes away what spooling has left
	apart   bool        // counts go to another store than the locks
	lost    func(error) // is told why counts could not even be spooled; nil: nobody
	cut     atomic.Pointer[holdlock.LossReason]
	failing atomic.Bool // the store did not do what it was last asked for
}

// afterFailure is how long sending may take when the store has failed before: the run has waited for it long enough, and what is
// not sent is spooled.
const afterFailure = 200 * time.Millisecond

// Stop implements holdlock.Recorder.
func (c *counts) Stop(ctx context.Context) error {
	if c.failing.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, afterFailure)
		defer cancel()
	}
	err := c.Recorder.Stop(ctx)
	if c.tidy != nil {
		c.tidy()
	}
	if err != nil && c.lost != nil && (c.apart || !c.failing.Load()) { // else the run says what is the matter with the store
		c.lost(err)
	}
	return err
}

// tidySpool removes the directory of the spool when all in it has been sent, and the one around it if nobody has named it.
func (g *globals) tidySpool() {
	dir := g.spoolDir()
	if dir != "" && os.Remove(dir) == nil && g.Spool == "" { // fails while something is in it, or if it was never made
		_ = os.Remove(filepath.Dir(dir))
	}
}

// cutOff says why the command was ended, if it was, before its lease is given back.
func (c *counts) cutOff(why guard.Reason, failing bool) {
	reason := holdlock.LossPaused // the guard heard of no renewal, and neither did we of a failure: we stood still
	switch {
	case why == guard.Asked:
		reason = holdlock.LossMaxHold
	case why != guard.Deadline:
		return
	case failing:
		reason = holdlock.LossUnreachable
	}
	c.cut.Store(&reason)
}

// Observe implements holdlock.Observer.
func (c *counts) Observe(e holdlock.Event) {
	switch e.Kind {
	case holdlock.Failed, holdlock.RenewFailed, holdlock.Unreleased, holdlock.WaitFailing:
		c.failing.Store(true)
	case holdlock.Granted, holdlock.Renewed, holdlock.Released, holdlock.Skipped:
		c.failing.Store(false)
	}
	if e.Kind == holdlock.Released || e.Kind == holdlock.Unreleased {
		if reason := c.cut.Swap(nil); reason != nil {
			e.Kind, e.Reason = holdlock.Lost, *reason
		}
	}
	c.Recorder.Observe(e)
}

// notRun counts a run that did not happen because the store could not even be opened.
func (r *runCmd) notRun(g *globals, err error) {
	name, key, invalid := holdlock.ParseName(r.Lock)
	if code, _ := classify(err); code != exitUnavailable || invalid != nil {
		return
	}
	rec := g.recorder(away{err})
	_ = rec.Start(nil, "") // it is a new one
	rec.Observe(holdlock.Event{Kind: holdlock.Failed, Name: name, Key: key, Err: err})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = rec.Stop(ctx) // the store's failure is what is told
}

// uncounted says that a run is missing in reviews. No run fails for that.
func (g *globals) uncounted(err error) {
	g.say("uncounted", "this run is not counted for reviews: "+spoken(err), nil)
}

// away is the ledger of a store that is not there.
type away struct{ why error }

var errAway = errors.New("the store is away")

func (a away) UpdateRecords(context.Context, driver.Day, []string, func(string, []byte) []byte) error {
	return cmp.Or(a.why, errAway)
}

func (a away) ReadRecords(context.Context, driver.Day, driver.Day, func(driver.Day, string, []byte) error) error {
	return cmp.Or(a.why, errAway)
}
