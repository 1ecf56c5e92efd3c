package watermillonce_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/redishold"
)

// What can be known when a program starts is refused then, with the name of the lock, and not message by message.
func TestBadOptions(t *testing.T) {
	open(t, func(s *shop) {
		for what, o := range map[string]*watermillonce.Options{
			"Delay":          {Redelivery: watermillonce.Redelivery{Delay: watermillonce.MinDelay - 1}},
			"LaterTopic":     {Redelivery: watermillonce.Redelivery{Later: &outbox{}}},
			"Once.Input":     {Once: once.Options{Input: []byte("x")}},
			"Once.OnRunning": {Once: once.Options{OnRunning: once.Skip}},
			"OnLapse 9":      {Once: once.Options{OnLapse: 9}},
			"OnError 9":      {Once: once.Options{OnError: 9}},
			"Keep -1":        {Once: once.Options{Keep: -1}},
			"MaxRuns -1":     {Once: once.Options{MaxRuns: -1}},
		} {
			if _, err := watermillonce.Middleware(s.lock, o); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "charge") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := watermillonce.Middleware(nil, nil); !errors.Is(err, holdlock.ErrInvalid) {
			t.Errorf("without a lock: %v", err)
		}
		if _, err := watermillonce.JobOf(s.lock, &watermillonce.Options{Key: func(*message.Message) (string, error) { return "", errors.New("no order number") }}, order("1")); !errors.Is(err, watermillonce.ErrNoKey) || !strings.Contains(err.Error(), "no order number") {
			t.Error(err)
		}
	})
}

// A Harmful lock is refused at once where nothing protects it, and so is any lock on a store without records, or of a client that is shut down.
func TestRefusedLocks(t *testing.T) {
	locks, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	harmful, err := locks.NewLock("payout", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	if err != nil {
		t.Fatal(err)
	}
	shadow, err := locks.NewLock("payout", &holdlock.LockOptions{DoubleRun: holdlock.Costly, Mode: holdlock.Shadow})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := locks.NewLock("payout", &holdlock.LockOptions{DoubleRun: holdlock.Harmful, AcceptRisk: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watermillonce.Middleware(accepted, nil); err != nil {
		t.Errorf("an accepted risk: %v", err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // which is not asked
	defer rdb.Close()
	plain, err := redishold.Open(rdb, &redishold.Options{PlainKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Shutdown(context.Background())
	recordless, err := plain.NewLock("payout", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := locks.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		lock *holdlock.Lock
		want error
	}{
		"Harmful": {harmful, holdlock.ErrRefused},

		"in shadow mode":        {shadow, holdlock.ErrInvalid},
		"without records":       {recordless, holdlock.ErrUnsupported},
		"client that has ended": {accepted, holdlock.ErrShutdown},
	} {
		if _, err := watermillonce.Middleware(c.lock, nil); !errors.Is(err, c.want) || !strings.Contains(err.Error(), "lock payout") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// forgetful is a store that grants locks without their records, which no error of holdlock has a name for.
type forgetful struct{ *faultdriver.Driver }

func (f forgetful) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	bare := *req
	bare.Once = nil
	return f.Driver.Acquire(ctx, &bare)
}

// Whatever keeps the handler from running, a message does not spin. The handler's own error is not delayed, whatever it is about.
func TestNothingSpins(t *testing.T) {
	open(t, func(s *shop) {
		client, err := holdlock.NewClient(forgetful{faultdriver.New(memhold.NewDriver(nil), nil)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Shutdown(context.Background())
		good := s.lock
		if s.lock, err = client.NewLock("odd", nil); err != nil {
			t.Fatal(err)
		}
		never := func(*message.Message) ([]*message.Message, error) { t.Error("it runs"); return nil, nil }
		for _, later := range []message.Publisher{nil, &outbox{}} {
			opts := &watermillonce.Options{Redelivery: watermillonce.Redelivery{Later: later, Delay: 3 * time.Second}}
			if later != nil {
				opts.LaterTopic = "later"
			}
			if d, err := took(s.wrap(opts, never), order("1")); err == nil || watermillonce.PutAside(err) || d != 3*time.Second {
				t.Errorf("an error that is in no list: %v after %s", err, d)
			}
		}
		s.lock = good
		ours := s.wrap(nil, never)
		for _, theirs := range []error{errors.New("no paper"), holdlock.ErrInvalid, holdlock.ErrRefused} {
			h := s.wrap(nil, func(*message.Message) ([]*message.Message, error) { return nil, theirs })
			if d, err := took(h, order("1")); !errors.Is(err, theirs) || d != 0 {
				t.Errorf("an error of the handler: %v after %s", err, d)
			}
		}
		if err := s.client.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if d, err := took(ours, order("2")); !errors.Is(err, holdlock.ErrShutdown) || d != watermillonce.MinDelay {
			t.Errorf("of a client that is shut down: %v after %s", err, d)
		}
	})
}

// A function of the user that panics over a message does not let it spin: the router would give it back at once.
func TestKeyAndInputPanic(t *testing.T) {
	open(t, func(s *shop) {
		for what, c := range map[string]struct {
			opts *watermillonce.Options
			want error
		}{
			"Options.Key":   {&watermillonce.Options{Key: func(*message.Message) (string, error) { panic("no order") }}, watermillonce.ErrNoKey},
			"Options.Input": {&watermillonce.Options{Input: func(*message.Message) []byte { panic("no order") }}, watermillonce.ErrNoInput},
		} {
			h := s.wrap(c.opts, func(*message.Message) ([]*message.Message, error) { t.Error("it runs"); return nil, nil })
			d, err := took(h, order("1"))
			if !errors.Is(err, c.want) || !watermillonce.PutAside(err) || d != watermillonce.MinDelay || !strings.Contains(err.Error(), what+" has panicked: no order") {
				t.Errorf("%s: %v after %s", what, err, d)
			}
		}
	})
}

// lines keeps what is written as an error.
type lines struct {
	watermill.NopLogger
	got []string
}

func (l *lines) Error(msg string, err error, fields watermill.LogFields) {
	l.got = append(l.got, fmt.Sprint(msg, "; ", err, "; ", fields["message_uuid"], "; ", fields["messages"]))
}

// Messages that come back because the store fails, or because their handler says so, are told of once a minute: nobody sees the error of a
// message that is acknowledged. Twins at work are not.
func TestTellsWhyMessagesComeBack(t *testing.T) {
	open(t, func(s *shop) {
		later, log := &outbox{}, &lines{}
		opts := &watermillonce.Options{Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "later", Logger: log}}
		begun, end, done := make(chan bool), make(chan bool), make(chan bool)
		twin := s.wrap(nil, func(*message.Message) ([]*message.Message, error) { close(begun); <-end; return nil, nil })
		go func() { defer close(done); _, _ = twin(order("1")) }()
		<-begun
		h := s.wrap(opts, func(msg *message.Message) ([]*message.Message, error) { return nil, holdlock.ErrHeld })
		deliver := func(uuid string, n int) {
			t.Helper()
			for range n {
				if _, err := h(order(uuid)); err != nil {
					t.Error(err)
				}
			}
		}
		deliver("1", 3)
		if len(log.got) != 0 {
			t.Errorf("of a twin at work: %q", log.got)
		}
		close(end)
		<-done
		s.drv.SetScript(func(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Err: errors.New("WRONGPASS")} })
		deliver("2", 5)
		if len(log.got) != 1 || !strings.Contains(log.got[0], "WRONGPASS") || !strings.HasSuffix(log.got[0], "; 2; 1") {
			t.Errorf("within a minute: %q", log.got)
		}
		time.Sleep(time.Minute)
		deliver("3", 2)
		if len(log.got) != 2 || !strings.HasSuffix(log.got[1], "; 3; 5") {
			t.Errorf("after a minute: %q", log.got)
		}
		s.drv.SetScript(nil)
		time.Sleep(time.Minute)
		deliver("4", 1)
		if len(log.got) != 3 || len(later.got) != 11 || !strings.HasSuffix(log.got[2], "; 4; 2") {
			t.Errorf("a handler that says so: %q, sent %d", log.got, len(later.got))
		}
	})
}

// What a handler says of another job, in which it has found itself, is its own failure: its job is not put aside, and its record says failed.
func TestErrorsOfAnotherJob(t *testing.T) {
	open(t, func(s *shop) {
		lock, err := s.client.NewLock("mail", nil)
		if err != nil {
			t.Fatal(err)
		}
		suspended := func(context.Context, *once.Run) ([]byte, error) { return nil, errors.New("no such address") }
		if _, err := once.Do(context.Background(), lock.For("m"), &once.Options{OnError: once.Hold, Input: []byte("a")}, suspended); !errors.Is(err, once.ErrSuspended) {
			t.Fatal(err)
		}
		if _, err := once.Do(context.Background(), lock.For("done"), &once.Options{Input: []byte("a")}, func(context.Context, *once.Run) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			key  string
			want error
		}{"suspended": {"m", once.ErrSuspended}, "other input": {"done", once.ErrOtherInput}} {
			runs := 0
			h := s.wrap(&watermillonce.Options{Once: once.Options{MaxRuns: 3}}, func(msg *message.Message) ([]*message.Message, error) {
				runs++
				input := []byte("a")
				if c.want == once.ErrOtherInput {
					input = []byte("b")
				}
				_, err := once.Do(msg.Context(), lock.For(c.key), &once.Options{Input: input}, suspended)
				return nil, err
			})
			for n := 1; n <= 3; n++ {
				d, err := took(h, order(what))
				if !errors.Is(err, c.want) || watermillonce.PutAside(err) != (n == 3) || d != 0 || runs != n { // the third run suspends its own job
					t.Errorf("%s, delivery %d: %v after %s, put aside %v, %d runs", what, n, err, d, watermillonce.PutAside(err), runs)
				}
			}
			if d, err := took(h, order(what)); !watermillonce.PutAside(err) || d != watermillonce.MinDelay || runs != 3 {
				t.Errorf("%s, once its own job is suspended: %v after %s, %d runs", what, err, d, runs)
			}
		}
		// Of a lock that a handler needs beside its own and that is damaged it is told, and does not come back for ever.
		damaged := s.wrap(nil, func(*message.Message) ([]*message.Message, error) {
			return nil, &holdlock.StoreError{Op: "acquire", Name: "other", Err: driver.ErrDamaged}
		})
		if d, err := took(damaged, order("damaged")); !errors.Is(err, driver.ErrDamaged) || watermillonce.PutAside(err) || d != 0 {
			t.Errorf("another lock is damaged: %v after %s, put aside %v", err, d, watermillonce.PutAside(err))
		}
	})
}
