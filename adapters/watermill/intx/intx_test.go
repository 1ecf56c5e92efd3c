package intx_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/adapters/watermill/intx"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
)

// A server answers each statement with an error, or says that it has written one row. What a real one says is tested beside the workers.
type server struct {
	says    error
	commits error // what it says to COMMIT, if it is not what it says to all
}

func (s server) begin(context.Context) (server, error) { return s, nil }

func (s server) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, s.says
}
func (s server) QueryRow(context.Context, string, ...any) pgx.Row { return s }
func (s server) Commit(context.Context) error                     { return cmp.Or(s.commits, s.says) }
func (s server) Rollback(context.Context) error                   { return nil }
func (s server) Scan(dest ...any) error {
	if s.says == nil {
		*dest[0].(*int64) = 1
	}
	return s.says
}

// refuses is a server that does not do what it is told.
func refuses(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "no"}
}

// locks runs f in virtual time with a lock of a client without a store.
func locks(t *testing.T, f func(t *testing.T, lock *holdlock.Lock)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := pghold.OpenTransactions(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(context.Background())
		lock, err := c.NewLock("payout", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
		if err != nil {
			t.Fatal(err)
		}
		f(t, lock)
	})
}

// outbox counts what is sent to come back.
type outbox struct{ n int }

func (o *outbox) Publish(string, ...*message.Message) error { o.n++; return nil }
func (o *outbox) Close() error                              { return nil }

// Whatever the server says, a message does not spin. Those that a server which has failed keeps from being handled come back.
func TestNothingSpins(t *testing.T) {
	for what, c := range map[string]struct {
		says error
		key  string
		back bool
	}{
		"no schema":          {refuses("3F000"), "1", false},
		"no tables":          {refuses("42P01"), "1", false},
		"no rights":          {refuses("42501"), "1", false},
		"a full disk":        {refuses("53100"), "1", false},
		"a read-only server": {refuses("25006"), "1", true}, // after a failover
		"a cut connection":   {io.ErrUnexpectedEOF, "1", true},
		"statement_timeout":  {refuses("57014"), "1", true}, // of a duplicate whose twin is at work, if it is shorter than Patience
		"no key":             {nil, "", false},
		"a long key":         {nil, strings.Repeat("x", 513), false},
	} {
		t.Run(what, func(t *testing.T) {
			locks(t, func(t *testing.T, lock *holdlock.Lock) { nothingSpins(t, lock, c.says, c.key, c.back) })
		})
	}
}

func nothingSpins(t *testing.T, lock *holdlock.Lock, says error, key string, back bool) {
	t.Helper()
	later := &outbox{}
	for i, again := range []watermillonce.Redelivery{{}, {Later: later, LaterTopic: "later"}} {
		ones, err := intx.Middleware(lock, server{says: says}.begin, &intx.Options{Redelivery: again})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err = ones(func(*message.Message) ([]*message.Message, error) {
			t.Error("it runs")
			return nil, nil
		})(message.NewMessage(key, nil))
		waited := time.Since(begin)
		sent := i == 1 && back
		if sent && (err != nil || later.n != 1) || !sent && (err == nil || waited != watermillonce.MinDelay || later.n != 0) {
			t.Errorf("%v after %s, %d sent", err, waited, later.n)
		}
		if aside := says == nil; watermillonce.PutAside(err) != aside || aside && !strings.Contains(err.Error(), "payout") {
			t.Errorf("put aside %v: %v", !aside, err)
		}
	}
}

// What the handler returns is its own failure, not delayed, and says nothing of its own job.
func TestErrorsOfTheHandler(t *testing.T) {
	locks(t, func(t *testing.T, lock *holdlock.Lock) {
		ones, err := intx.Middleware(lock, server{}.begin, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, theirs := range []error{io.EOF, once.ErrSuspended, once.ErrOtherInput, once.ErrNoResult, holdlock.ErrRefused, holdlock.ErrDamaged} {
			begin := time.Now()
			_, err := ones(func(*message.Message) ([]*message.Message, error) {
				return nil, fmt.Errorf("mail of the order: %w", theirs)
			})(message.NewMessage("1", nil))
			if !errors.Is(err, theirs) || watermillonce.PutAside(err) || time.Since(begin) != 0 {
				t.Errorf("%v: %v after %s, put aside %v", theirs, err, time.Since(begin), watermillonce.PutAside(err))
			}
		}
	})
}

// A commit that the server refuses is the handler's failure, at once: whoever counts failures sees it. One whose answer is lost comes back.
func TestCommitFails(t *testing.T) {
	for what, c := range map[string]struct {
		commits error
		lost    bool
	}{
		"a constraint":             {refuses("23505"), false},
		"an error passed over":     {pgx.ErrTxCommitRollback, false},
		"a rollback of its own":    {pgx.ErrTxClosed, false},
		"a serialization failure":  {refuses("40001"), false},
		"a cut connection":         {io.ErrUnexpectedEOF, true},
		"a server that shuts down": {refuses("57P01"), true},
	} {
		t.Run(what, func(t *testing.T) {
			locks(t, func(t *testing.T, lock *holdlock.Lock) {
				later := &outbox{}
				ones, err := intx.Middleware(lock, server{commits: c.commits}.begin, &intx.Options{Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "later"}})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				_, err = ones(func(*message.Message) ([]*message.Message, error) { return nil, nil })(message.NewMessage("17", nil))
				switch {
				case c.lost && (err != nil || later.n != 1):
					t.Errorf("%v, sent %d", err, later.n)
				case !c.lost && (!errors.Is(err, c.commits) || later.n != 0 || watermillonce.PutAside(err) || time.Since(begin) != 0 || !strings.Contains(err.Error(), "job payout/17")):
					t.Errorf("%v after %s, sent %d, put aside %v", err, time.Since(begin), later.n, watermillonce.PutAside(err))
				}
			})
		})
	}
}

// A function of the user that panics over a message does not let it spin.
func TestKeyAndInputPanic(t *testing.T) {
	locks(t, func(t *testing.T, lock *holdlock.Lock) {
		for what, o := range map[string]*intx.Options{
			"Options.Key":   {Key: func(*message.Message) (string, error) { panic("no order") }},
			"Options.Input": {Input: func(*message.Message) []byte { panic("no order") }},
		} {
			ones, err := intx.Middleware(lock, server{}.begin, o)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, err = ones(func(*message.Message) ([]*message.Message, error) { t.Error("it runs"); return nil, nil })(message.NewMessage("17", nil))
			if !watermillonce.PutAside(err) || time.Since(begin) != watermillonce.MinDelay || !strings.Contains(err.Error(), what+" has panicked: no order") {
				t.Errorf("%s: %v after %s", what, err, time.Since(begin))
			}
		}
	})
}

// What can be known when a program starts is refused then.
func TestBadOptions(t *testing.T) {
	locks(t, func(t *testing.T, lock *holdlock.Lock) {
		for what, o := range map[string]*intx.Options{
			"Keep -1":     {Keep: -1},
			"Patience -1": {Patience: -1},
			"Delay":       {Redelivery: watermillonce.Redelivery{Delay: 1}},
		} {
			if _, err := intx.Middleware(lock, server{}.begin, o); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "payout") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := intx.Middleware(nil, server{}.begin, nil); !errors.Is(err, holdlock.ErrInvalid) {
			t.Errorf("without a lock: %v", err)
		}
		if _, err := intx.Middleware[server](lock, nil, nil); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "payout") {
			t.Errorf("without a database: %v", err)
		}
	})
	locks(t, func(t *testing.T, _ *holdlock.Lock) {
		c, err := pghold.OpenTransactions(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(context.Background())
		shadow, err := c.NewLock("payout", &holdlock.LockOptions{DoubleRun: holdlock.Costly, Mode: holdlock.Shadow})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := intx.Middleware(shadow, server{}.begin, nil); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "payout") {
			t.Errorf("in shadow mode: %v", err)
		}
	})
}
