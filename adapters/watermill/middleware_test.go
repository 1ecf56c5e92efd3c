package watermillonce_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/holdtest"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

// A shop is a client on a store of its own, whose calls can go wrong, and its lock.
type shop struct {
	t      *testing.T
	drv    *faultdriver.Driver
	client *holdlock.Client
	lock   *holdlock.Lock
}

const ttl = 10 * time.Second

// open runs f in virtual time.
func open(t *testing.T, f func(s *shop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shop{t: t, drv: faultdriver.New(memhold.NewDriver(nil), nil)}
		var err error
		if s.client, err = holdlock.NewClient(s.drv, &holdlock.ClientOptions{CallTimeout: time.Second}); err != nil {
			t.Fatal(err)
		}
		defer s.client.Shutdown(context.Background())
		if s.lock, err = s.client.NewLock("charge", &holdlock.LockOptions{TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		f(s)
	})
}

func (s *shop) wrap(opts *watermillonce.Options, h message.HandlerFunc) message.HandlerFunc {
	s.t.Helper()
	m, err := watermillonce.Middleware(s.lock, opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return m(h)
}

// outbox is a publisher that keeps what it gets.
type outbox struct {
	got  []*message.Message
	fail error
}

func (o *outbox) Publish(_ string, msgs ...*message.Message) error {
	if o.fail == nil {
		o.got = append(o.got, msgs...)
	}
	return o.fail
}
func (o *outbox) Close() error { return nil }

func order(uuid string) *message.Message { return message.NewMessage(uuid, []byte("order "+uuid)) }

// took calls h and says how long it took.
func took(h message.HandlerFunc, msg *message.Message) (time.Duration, error) {
	begin := time.Now()
	_, err := h(msg)
	return time.Since(begin), err
}

// The second delivery runs nothing and returns the same messages; what a handler returns is not lost if its process dies before they are
// published.
func TestDuplicate(t *testing.T) {
	open(t, func(s *shop) {
		runs := 0
		h := s.wrap(nil, func(msg *message.Message) ([]*message.Message, error) {
			runs++
			if run := watermillonce.RunFrom(msg.Context()); run == nil || run.Number != 1 || once.KeyFrom(msg.Context()) != run.Key {
				t.Errorf("the handler sees run %+v", run)
			}
			out := message.NewMessage(watermill.NewUUID(), []byte{0, 255})
			out.Metadata.Set("kind", "receipt")
			return []*message.Message{out}, nil
		})
		msg := order("17")
		first, err := h(msg)
		if err != nil || len(first) != 1 {
			t.Fatal(first, err)
		}
		if msg.Context().Err() != nil || watermillonce.RunFrom(msg.Context()) != nil {
			t.Error("the message has still the context of the run")
		}
		second, err := h(order("17"))
		if err != nil || len(second) != 1 || !second[0].Equals(first[0]) || runs != 1 {
			t.Errorf("the duplicate: %v, %v after %d runs", second, err, runs)
		}
		if !second[0].Ack() {
			t.Error("what is returned again cannot be acknowledged")
		}
	})
}

// A copy whose twin is at work is sent to come back, or waits and fails; it is never acknowledged as done. When the twin has failed, it runs.
func TestRunningTwin(t *testing.T) {
	open(t, func(s *shop) {
		begun, end := make(chan bool), make(chan error)
		slow := s.wrap(nil, func(*message.Message) ([]*message.Message, error) { close(begun); return nil, <-end })
		done := make(chan error)
		go func() { _, err := slow(order("1")); done <- err }()
		<-begun

		never := func(*message.Message) ([]*message.Message, error) {
			t.Error("it runs beside its twin")
			return nil, nil
		}
		if d, err := took(s.wrap(nil, never), order("1")); !errors.Is(err, holdlock.ErrHeld) || d != watermillonce.MinDelay {
			t.Errorf("without Later: %v after %s", err, d)
		}
		later := &outbox{}
		opts := &watermillonce.Options{Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "later"}}
		msg := order("1")
		msg.Metadata.Set("a", "b")
		if d, err := took(s.wrap(opts, never), msg); err != nil || d != 0 || len(later.got) != 1 || !later.got[0].Equals(msg) {
			t.Errorf("with Later: %v after %s, sent %v", err, d, later.got)
		}
		later.fail = errors.New("the broker is gone")
		if d, err := took(s.wrap(opts, never), msg); !errors.Is(err, later.fail) || !errors.Is(err, holdlock.ErrHeld) || d != watermillonce.MinDelay {
			t.Errorf("with a Later that fails: %v after %s", err, d)
		}
		// A consumer that is told to end does not wait.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if d, err := took(s.wrap(nil, never), message.NewMessageWithContext(ctx, "1", nil)); err == nil || d != 0 {
			t.Errorf("while the consumer ends: %v after %s", err, d)
		}

		failed := errors.New("no paper")
		end <- failed
		if err := <-done; !errors.Is(err, failed) || watermillonce.PutAside(err) {
			t.Errorf("the twin: %v", err)
		}
		runs := 0
		if _, err := s.wrap(nil, func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })(order("1")); err != nil || runs != 1 {
			t.Errorf("after the twin has failed: %v, %d runs", err, runs)
		}
	})
}

// When the lease is lost the handler's context ends, and the message comes back.
func TestLost(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client := holdtest.NewClient(t, nil)
			lock, err := client.NewLock("charge", nil)
			if err != nil {
				t.Fatal(err)
			}
			later := &outbox{}
			ones, err := watermillonce.Middleware(lock, &watermillonce.Options{Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "later"}})
			if err != nil {
				t.Fatal(err)
			}
			go client.Lose("charge", "1", holdlock.LossGone)
			_, err = ones(func(msg *message.Message) ([]*message.Message, error) {
				msg.Metadata.Set("changed", "by the handler")
				<-msg.Context().Done()
				if deaf {
					return nil, nil
				}
				return nil, msg.Context().Err()
			})(order("1"))
			if err != nil || len(later.got) != 1 || len(later.got[0].Metadata) != 0 {
				t.Errorf("deaf %v: %v, sent %v", deaf, err, later.got)
			}
		})
	}
}

// A store that does not answer makes no busy loop, and nothing runs.
func TestStoreFails(t *testing.T) {
	open(t, func(s *shop) {
		s.drv.SetScript(func(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Drop: true} })
		d, err := took(s.wrap(nil, func(*message.Message) ([]*message.Message, error) { t.Error("it runs"); return nil, nil }), order("1"))
		if err == nil || errors.Is(err, holdlock.ErrHeld) || d < watermillonce.MinDelay || watermillonce.PutAside(err) {
			t.Errorf("%v after %s", err, d)
		}
	})
}

// What stays until somebody has looked is put aside, and does not spin where nobody puts it aside.
func TestPutAside(t *testing.T) {
	open(t, func(s *shop) {
		failing := func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no such address") }
		ok := func(*message.Message) ([]*message.Message, error) { return nil, nil }
		opts := &watermillonce.Options{Once: once.Options{MaxRuns: 2}}
		for i, want := range []struct {
			aside bool
			takes time.Duration
		}{{false, 0}, {true, 0}, {true, watermillonce.MinDelay}} {
			d, err := took(s.wrap(opts, failing), order("1"))
			if err == nil || watermillonce.PutAside(err) != want.aside || d != want.takes {
				t.Errorf("delivery %d: %v after %s, put aside: %v", i+1, err, d, watermillonce.PutAside(err))
			}
		}
		if _, err := s.wrap(nil, ok)(order("2")); err != nil {
			t.Fatal(err)
		}
		for name, msg := range map[string]*message.Message{
			"another payload": message.NewMessage("2", []byte("other")), "no key": order(""),
			"a key of 513 bytes": order(strings.Repeat("x", 513)), "a key with NUL": order("a\x00b"), "a key that is no text": order("\xff"),
		} {
			d, err := took(s.wrap(nil, func(*message.Message) ([]*message.Message, error) { t.Error(name, "runs"); return nil, nil }), msg)
			if !watermillonce.PutAside(err) || d != watermillonce.MinDelay || !strings.Contains(err.Error(), "charge") {
				t.Errorf("%s: %v after %s", name, err, d)
			}
			if strings.Contains(name, "key") && (!errors.Is(err, watermillonce.ErrNoKey) || !strings.Contains(err.Error(), "Options.Key")) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := s.wrap(nil, ok)(order(strings.Repeat("x", 512))); err != nil {
			t.Errorf("a key of 512 bytes: %v", err)
		}
		// Messages that do not fit into the record: they are published, and a duplicate does not pretend that they were.
		size := 47 << 10
		big := func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("big", []byte(strings.Repeat("x", size)))}, nil
		}
		for range 2 {
			if made, err := s.wrap(nil, big)(order("fits")); err != nil || len(made) != 1 || len(made[0].Payload) != size {
				t.Errorf("47 KiB of payload: %d messages, %v", len(made), err)
			}
		}
		size = 48 << 10
		if made, err := s.wrap(nil, big)(order("3")); err != nil || len(made) != 1 {
			t.Errorf("%d messages, %v", len(made), err)
		}
		if d, err := took(s.wrap(nil, big), order("3")); !errors.Is(err, once.ErrNoResult) || !watermillonce.PutAside(err) || d != watermillonce.MinDelay {
			t.Errorf("the duplicate of what was not kept: %v after %s", err, d)
		}
	})
}

// A record or lock that is damaged is put aside, with an error that names it, and does not come back for ever; one of a newer release comes back.
func TestDamaged(t *testing.T) {
	for what, c := range map[string]struct {
		err   error
		aside bool
	}{
		"record":       {fmt.Errorf("record r1: %w (%w)", driver.ErrBadRecord, driver.ErrNotApplied), true},
		"lock":         {fmt.Errorf("slot r1: %w", driver.ErrDamaged), true},
		"newer record": {fmt.Errorf("record r1: %w: %w (%w)", driver.ErrBadRecord, driver.ErrNewer, driver.ErrNotApplied), false},
		"newer lock":   {fmt.Errorf("slot r1: %w: %w", driver.ErrDamaged, driver.ErrNewer), false},
		"no answer":    {fmt.Errorf("r1: down: %w", driver.ErrNotApplied), false},
	} {
		open(t, func(s *shop) {
			s.drv.SetScript(func(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Err: c.err} })
			later := &outbox{}
			never := func(*message.Message) ([]*message.Message, error) { t.Error(what, "runs"); return nil, nil }
			d, err := took(s.wrap(&watermillonce.Options{Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "later"}}, never), order("1"))
			if c.aside && (!watermillonce.PutAside(err) || len(later.got) != 0 || d < watermillonce.MinDelay || !strings.Contains(err.Error(), "r1")) {
				t.Errorf("%s: %v after %s, %d came back", what, err, d, len(later.got))
			}
			if !c.aside && (err != nil || len(later.got) != 1) {
				t.Errorf("%s: %v, %d came back", what, err, len(later.got))
			}
		})
	}
}

// In a router: Retry inside is one run; the poison queue outside gets what PutAside says.
func TestInRouter(t *testing.T) {
	open(t, func(s *shop) {
		bus := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		poison, err := middleware.PoisonQueueWithFilter(bus, "aside", watermillonce.PutAside)
		if err != nil {
			t.Fatal(err)
		}
		ones, err := watermillonce.Middleware(s.lock, &watermillonce.Options{Once: once.Options{MaxRuns: 1}})
		if err != nil {
			t.Fatal(err)
		}
		retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Second, Multiplier: 1}
		var mu sync.Mutex
		tries, numbers := map[string]int{}, map[int]int{}
		router.AddConsumerHandler("charge", "orders", bus, func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			tries[msg.UUID]++
			numbers[watermillonce.RunFrom(msg.Context()).Number]++
			if msg.UUID == "good" && tries["good"] == 2 {
				return nil
			}
			return errors.New("not today")
		}).AddMiddleware(poison, ones, retry.Middleware)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		aside, err := bus.Subscribe(ctx, "aside")
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("x", 513) // a key that no lock can have, first in the queue
		if err := bus.Publish("orders", order(long), order("good"), order("good"), order("bad")); err != nil {
			t.Fatal(err)
		}
		msg := <-aside
		msg.Ack()
		if msg.UUID != long || !strings.Contains(msg.Metadata.Get(middleware.ReasonForPoisonedKey), "charge") {
			t.Errorf("put aside: %s, %v", msg.UUID, msg.Metadata)
		}
		msg = <-aside
		msg.Ack()
		mu.Lock()
		defer mu.Unlock()
		if msg.UUID != "bad" || tries["good"] != 2 || tries["bad"] != 3 || len(numbers) != 1 || !strings.Contains(msg.Metadata.Get(middleware.ReasonForPoisonedKey), "suspended") {
			t.Errorf("put aside: %s, %v; tries %v in runs %v", msg.UUID, msg.Metadata, tries, numbers)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = bus.Close()
	})
}
