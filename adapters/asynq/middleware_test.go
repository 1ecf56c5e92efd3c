//go:build unix

package asynqonce

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/redishold"
)

const kind = "mail"

// A bench is a Redis with asynq's queue and the locks in it.
type bench struct {
	t      *testing.T
	redis  *testenv.Redis
	locks  *holdlock.Client
	client *asynq.Client
	look   *asynq.Inspector
}

func openLocks(addr string, observer holdlock.Observer) (*holdlock.Client, func()) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	c, err := redishold.Open(rdb, &redishold.Options{Client: holdlock.ClientOptions{Observer: observer}})
	if err != nil {
		panic(err)
	}
	return c, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Shutdown(ctx)
		_ = rdb.Close()
	}
}

func start(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, redis: testenv.StartRedis(t)}
	var end func()
	b.locks, end = openLocks(b.redis.Addr, nil)
	b.client, b.look = asynq.NewClient(b.at()), asynq.NewInspector(b.at())
	t.Cleanup(func() {
		end()
		_, _ = b.client.Close(), b.look.Close()
	})
	return b
}

func (b *bench) at() asynq.RedisClientOpt { return asynq.RedisClientOpt{Addr: b.redis.Addr} }

// quick is a server that does not wait for seconds.
func quick() asynq.Config {
	return asynq.Config{
		Concurrency: 8, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
		ShutdownTimeout: 5 * time.Second, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}
}

// serve handles tasks once until the test ends, and tells outer of every delivery.
func (b *bench) serve(locks *holdlock.Client, opts *Options, outer asynq.MiddlewareFunc, handle asynq.HandlerFunc) {
	b.t.Helper()
	cfg := quick()
	if opts.Key == nil {
		opts.Key = PayloadKey
	}
	opts.Redis = b.at()
	jobs, err := New(locks, &cfg, opts)
	if err != nil {
		b.t.Fatal(err)
	}
	mux := asynq.NewServeMux()
	if outer != nil {
		mux.Use(outer)
	}
	mux.Use(jobs.Middleware)
	mux.Handle(kind, handle)
	server := asynq.NewServer(b.at(), cfg)
	if err := server.Start(mux); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		server.Shutdown()
		_ = jobs.Close()
	})
}

func (b *bench) enqueue(payload string, opts ...asynq.Option) *asynq.TaskInfo {
	b.t.Helper()
	info, err := b.client.Enqueue(asynq.NewTask(kind, []byte(payload)), opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return info
}

// left are the tasks that are not done, of each kind.
func (b *bench) left() asynq.QueueInfo {
	info, err := b.look.GetQueueInfo("default")
	if err != nil {
		return asynq.QueueInfo{Pending: -1}
	}
	return *info
}

func (b *bench) drained(archived int) {
	b.t.Helper()
	testenv.Eventually(b.t, "the queue is empty", func() bool {
		q := b.left()
		return q.Pending+q.Active+q.Retry+q.Scheduled == 0 && q.Archived == archived
	})
}

// tally counts by key.
type tally struct {
	mu sync.Mutex
	n  map[string]int
	at map[string][]time.Time
}

func (c *tally) add(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n, c.at = map[string]int{}, map[string][]time.Time{}
	}
	c.n[key]++
	c.at[key] = append(c.at[key], time.Now())
	return c.n[key]
}

func (c *tally) of(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[key]
}

// deliveries is a middleware that counts what asynq hands out, by the ID with which each was enqueued first.
func (c *tally) deliveries(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		id, _, _ = strings.Cut(id, copied)
		c.add(id)
		return next.ProcessTask(ctx, t)
	})
}

// Tasks that are published twice have their effect once, and all of them are acknowledged. Without this each has it twice.
func TestDuplicatesRunOnce(t *testing.T) {
	t.Parallel()
	for _, with := range []bool{true, false} {
		b := start(t)
		const n = 60
		var effects tally
		handle := func(_ context.Context, t *asynq.Task) error { effects.add(string(t.Payload())); return nil }
		for range 2 {
			for i := range n {
				b.enqueue(fmt.Sprint(i))
			}
		}
		if with {
			b.serve(b.locks, &Options{}, nil, handle)
		} else {
			server := asynq.NewServer(b.at(), quick())
			if err := server.Start(asynq.HandlerFunc(handle)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Shutdown)
		}
		b.drained(0)
		want := 1
		if !with {
			want = 2 // or the test tells nothing
		}
		for i := range n {
			if got := effects.of(fmt.Sprint(i)); got != want {
				t.Errorf("with the middleware %v: task %d had its effect %d times, want %d", with, i, got, want)
			}
		}
	}
}

// A task whose job runs elsewhere comes back, at most twice a second, without using up its retries; and is done when the job
// is. So does one that has no retries, also if its time is shorter than its twin runs, with all of its settings.
func TestARunningTwinComesBack(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{1, 0} {
		b := start(t)
		var deliveries, runs tally
		finish, running := make(chan struct{}), make(chan struct{}, 2)
		b.serve(b.locks, &Options{}, deliveries.deliveries, func(_ context.Context, t *asynq.Task) error {
			runs.add("job")
			running <- struct{}{}
			<-finish
			return nil
		})
		b.enqueue("job")
		<-running
		deadline := time.Now().Add(time.Hour).Truncate(time.Second)
		twin := b.enqueue("job", asynq.MaxRetry(retries), asynq.Timeout(4*time.Second), asynq.Deadline(deadline), asynq.Retention(time.Hour))
		testenv.Eventually(t, "the twin has been delivered", func() bool { return deliveries.of(twin.ID) >= 3 })
		if retries > 0 {
			info, err := b.look.GetTaskInfo("default", twin.ID)
			if err != nil || info.Retried != 0 || info.State == asynq.TaskStateArchived || info.LastErr == "" {
				t.Errorf("the twin, delivered %d times: %+v, %v", deliveries.of(twin.ID), info, err)
			}
		} else {
			var all []*asynq.TaskInfo
			testenv.Eventually(t, "the twin waits to come back", func() (there bool) {
				var err error
				all, err = b.look.ListScheduledTasks("default")
				return err == nil && len(all) == 1
			})
			info := all[0]
			if !strings.HasPrefix(info.ID, twin.ID+copied) || strings.Count(info.ID, copied) != 1 || info.MaxRetry != 0 || info.Timeout != 4*time.Second ||
				!info.Deadline.Equal(deadline) || info.Retention != time.Hour || info.Type != kind || string(info.Payload) != "job" {
				t.Errorf("the twin %s has become %+v", twin.ID, info)
			}
		}
		deliveries.mu.Lock()
		at := deliveries.at[twin.ID]
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap < 500*time.Millisecond {
				t.Errorf("it was delivered again after %v", gap)
			}
		}
		deliveries.mu.Unlock()
		close(finish)
		b.drained(0)
		if n := runs.of("job"); n != 1 {
			t.Errorf("the job ran %d times", n)
		}
	}
	// The control: asynq's own way with such an error uses up the only retry, and then archives the task.
	b := start(t)
	cfg := quick()
	server := asynq.NewServer(b.at(), cfg)
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return ErrRunning })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	b.enqueue("job", asynq.MaxRetry(1))
	b.drained(1)
}

// What a job comes to is what becomes of its task.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	b := start(t)
	var runs tally
	errNo := errors.New("no")
	// What the handler says of another job, in which it has found itself, is its own failure.
	another := map[string]error{"another is suspended": once.ErrSuspended, "another's input": once.ErrOtherInput, "another runs": ErrRunning, "another's store": ErrStore, "another is damaged": driver.ErrDamaged}
	handle := func(ctx context.Context, task *asynq.Task) error {
		p := string(task.Payload())
		n := runs.add(p)
		switch {
		case p == "fails twice" && n <= 2, p == "fails":
			return errNo
		case p == "panics" && n == 1:
			panic("!")
		case another[p] != nil && n <= 2:
			return fmt.Errorf("mail of the order: %w", another[p])
		case p == "skips":
			return fmt.Errorf("%w: %w", errNo, asynq.SkipRetry)
		}
		if id, ok := asynq.GetTaskID(ctx); !ok || id == "" || once.KeyFrom(ctx) == "" {
			t.Error("the context lacks what asynq or once has put there")
		}
		return nil
	}
	key := func(task *asynq.Task) (string, error) {
		switch p := string(task.Payload()); p {
		case "no key":
			return "", nil
		case "bad key":
			return "", errNo
		case "long key":
			return strings.Repeat("x", 513), nil
		case "one", "another":
			return "shared", nil
		default:
			return p, nil
		}
	}
	b.serve(b.locks, &Options{Key: key, Once: once.Options{MaxRuns: 4}}, nil, handle)
	expect := func(payload string, state asynq.TaskState, ran, retried int, word string) {
		t.Helper()
		info := b.enqueue(payload, asynq.Retention(time.Hour), asynq.MaxRetry(10))
		var got *asynq.TaskInfo
		testenv.Eventually(t, payload+" is "+state.String(), func() bool {
			got, _ = b.look.GetTaskInfo("default", info.ID)
			return got != nil && (got.State == asynq.TaskStateCompleted || got.State == asynq.TaskStateArchived)
		})
		if got.State != state || runs.of(payload) != ran || got.Retried != retried || !strings.Contains(got.LastErr, word) {
			t.Errorf("%s: %v after %d runs and %d retries, last error %q; want %v, %d, %d, %q", payload, got.State, runs.of(payload),
				got.Retried, got.LastErr, state, ran, retried, word)
		}
	}
	expect("succeeds", asynq.TaskStateCompleted, 1, 0, "")
	expect("succeeds", asynq.TaskStateCompleted, 1, 0, "") // a duplicate
	expect("fails twice", asynq.TaskStateCompleted, 3, 2, "no")
	expect("panics", asynq.TaskStateCompleted, 2, 1, "panic")
	expect("fails", asynq.TaskStateArchived, 4, 3, "suspended") // by MaxRuns, before its retries are used up
	expect("fails", asynq.TaskStateArchived, 4, 0, "settle")    // a duplicate of it
	expect("skips", asynq.TaskStateArchived, 1, 0, "no")
	expect("one", asynq.TaskStateCompleted, 1, 0, "")
	expect("another", asynq.TaskStateArchived, 0, 0, "another input")
	expect("no key", asynq.TaskStateArchived, 0, 0, "empty")
	expect("bad key", asynq.TaskStateArchived, 0, 0, "lock asynq: the key of a task of type mail")
	expect("long key", asynq.TaskStateArchived, 0, 0, "Options.Key")
	expect("a\x00b", asynq.TaskStateArchived, 0, 0, "NUL")
	expect("\xff", asynq.TaskStateArchived, 0, 0, "UTF-8")
	for payload := range another {
		expect(payload, asynq.TaskStateCompleted, 3, 2, "")
	}
}

// The handler's context ends when the lease is lost; the run is not recorded, and follows as a lapse.
func TestTheLeaseReachesTheHandler(t *testing.T) {
	t.Parallel()
	b := start(t)
	var runs tally
	running := make(chan struct{}, 2)
	causes := make(chan error, 2)
	b.serve(b.locks, &Options{Lock: holdlock.LockOptions{TTL: time.Second}}, nil, func(ctx context.Context, _ *asynq.Task) error {
		if runs.add("job") > 1 {
			return nil
		}
		running <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	})
	b.enqueue("job")
	<-running
	term, ok, err := b.locks.Inspect(t.Context(), "asynq", keyOf(t, "job"))
	if err != nil || !ok {
		t.Fatalf("Inspect: %v, %v", ok, err)
	}
	if err := b.locks.Break(t.Context(), "asynq", keyOf(t, "job"), term.Token, holdlock.BreakOptions{By: "test", Now: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-causes; !errors.Is(err, holdlock.ErrLost) {
		t.Errorf("the handler's context ended with %v, want ErrLost", err)
	}
	b.drained(0)
	if n := runs.of("job"); n != 2 {
		t.Errorf("it ran %d times, want once more", n)
	}
}

func keyOf(t *testing.T, payload string) string {
	t.Helper()
	key, err := PayloadKey(asynq.NewTask(kind, []byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// When the locks cannot be reached nothing runs, and no retry is used up.
func TestTheStoreIsDown(t *testing.T) {
	t.Parallel()
	b := start(t)
	other := testenv.StartRedis(t)
	locks, end := openLocks(other.Addr, nil)
	t.Cleanup(end)
	var deliveries tally
	var runs atomic.Int64
	other.Kill()
	b.serve(locks, &Options{}, deliveries.deliveries, func(context.Context, *asynq.Task) error { runs.Add(1); return nil })
	ids := []string{b.enqueue("job", asynq.MaxRetry(1)).ID, b.enqueue("last job", asynq.MaxRetry(0)).ID}
	testenv.Eventually(t, "they have come back", func() bool { return deliveries.of(ids[0]) >= 3 && deliveries.of(ids[1]) >= 3 })
	if info, err := b.look.GetTaskInfo("default", ids[0]); err != nil || info.Retried != 0 || info.State == asynq.TaskStateArchived || runs.Load() != 0 {
		t.Errorf("the task: %+v, %v; %d runs", info, err, runs.Load())
	}
	other.Restart(t)
	b.drained(0)
	if n := runs.Load(); n != 2 {
		t.Errorf("%d runs of two jobs", n)
	}
}

// What cannot be read now, nor later, is archived, and does not come back for ever. What a newer release has written may be read by another
// worker.
func TestDamaged(t *testing.T) {
	t.Parallel()
	b := start(t)
	var deliveries, runs tally
	b.serve(b.locks, &Options{Key: func(t *asynq.Task) (string, error) { return string(t.Payload()), nil }}, deliveries.deliveries,
		func(_ context.Context, t *asynq.Task) error { runs.add(string(t.Payload())); return nil })
	b.enqueue("job")
	b.enqueue("slot")
	b.drained(0)
	at := func(key string) (record, slot string) {
		t.Helper()
		for name := range strings.FieldsSeq(b.redis.Do(t, "KEYS", "*"+key+"*")) {
			switch {
			case strings.HasPrefix(name, "asynq:"):
			case strings.HasPrefix(b.redis.Do(t, "GET", name), "1D"):
				record = name
			default:
				slot = name
			}
		}
		if record == "" || slot == "" {
			t.Fatalf("of %s there are record %q and slot %q", key, record, slot)
		}
		return record, slot
	}
	record, _ := at("job")
	good := b.redis.Do(t, "GET", record)
	gone, slot := at("slot")
	b.redis.Do(t, "DEL", gone)
	b.redis.Do(t, "SET", slot, "hello")
	b.redis.Do(t, "SET", record, "hello")
	for i, payload := range []string{"job", "job", "slot"} {
		info := b.enqueue(payload, asynq.MaxRetry(10*i))
		var got *asynq.TaskInfo
		testenv.Eventually(t, payload+" is archived", func() bool {
			got, _ = b.look.GetTaskInfo("default", info.ID)
			return got != nil && got.State == asynq.TaskStateArchived
		})
		if n := deliveries.of(info.ID); n != 1 || !strings.Contains(got.LastErr, fmt.Sprintf("key %q", payload)) {
			t.Errorf("%s: delivered %d times, last error %q", payload, n, got.LastErr)
		}
	}
	b.redis.Do(t, "SET", record, "2"+good[1:])
	ids := []string{b.enqueue("job", asynq.MaxRetry(0)).ID, b.enqueue("job", asynq.MaxRetry(1)).ID}
	testenv.Eventually(t, "they come back", func() bool { return deliveries.of(ids[0]) >= 3 && deliveries.of(ids[1]) >= 3 })
	b.redis.Do(t, "SET", record, good)
	b.drained(3)
	if runs.of("job") != 1 || runs.of("slot") != 1 {
		t.Errorf("%d and %d runs", runs.of("job"), runs.of("slot"))
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	locks, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locks.Shutdown(context.Background()) }()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	plain, err := redishold.Open(rdb, &redishold.Options{PlainKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Shutdown(context.Background()) }()
	key := func(*asynq.Task) (string, error) { return "k", nil }
	at := asynq.RedisClientOpt{Addr: "127.0.0.1:1"} // which New does not ask
	for word, o := range map[string]*Options{
		"Redis is required": {Key: key},
		"":                  {Redis: at, Key: key},
		"Key is required":   {Redis: at},
		"lock asynq: Again": {Redis: at, Key: key, Again: time.Second},
		"Wait is":           {Redis: at, Key: key, Lock: holdlock.LockOptions{Wait: time.Second}},
		"OnRunning":         {Redis: at, Key: key, Once: once.Options{OnRunning: once.Skip}},
		"asynqonce: ":       {Redis: at, Key: key, Name: "a/b"},
		"OnLapse 9":         {Redis: at, Key: key, Once: once.Options{OnLapse: 9}},
		"OnError 9":         {Redis: at, Key: key, Once: once.Options{OnError: 9}},
		"Keep -1":           {Redis: at, Key: key, Once: once.Options{Keep: -1}},
		"lock m: MaxRuns":   {Redis: at, Key: key, Name: "m", Once: once.Options{MaxRuns: -1}},
		"refused":           {Redis: at, Key: key, Lock: holdlock.LockOptions{DoubleRun: holdlock.Harmful}},
		"shadow":            {Redis: at, Key: key, Lock: holdlock.LockOptions{DoubleRun: holdlock.Costly, Mode: holdlock.Shadow}},
	} {
		jobs, err := New(locks, &asynq.Config{}, o)
		if (err == nil) != (word == "") || err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("want %q: %v", word, err)
		}
		if err == nil {
			_ = jobs.Close()
		}
	}
	if _, err := New(nil, &asynq.Config{}, &Options{Redis: at, Key: key}); !errors.Is(err, holdlock.ErrInvalid) {
		t.Errorf("without a client: %v", err)
	}
	if _, err := New(locks, nil, &Options{Redis: at, Key: key}); err == nil {
		t.Error("without a configuration: no error")
	}
	if _, err := New(plain, &asynq.Config{}, &Options{Redis: at, Key: key}); !errors.Is(err, holdlock.ErrUnsupported) {
		t.Errorf("on a store without records: %v", err)
	}
	// What was set is asked about the rest.
	asked := errors.New("asked")
	cfg := asynq.Config{
		IsFailure:      func(err error) bool { return !errors.Is(err, asked) },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	}
	jobs, err := New(locks, &cfg, &Options{Redis: at, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer jobs.Close()
	task := asynq.NewTask(kind, nil)
	if cfg.IsFailure(asked) || !cfg.IsFailure(driver.ErrGone) || cfg.IsFailure(ErrRunning) || cfg.RetryDelayFunc(1, asked, task) != time.Hour ||
		cfg.RetryDelayFunc(1, ErrStore, task) > 3*time.Second {
		t.Error("the configuration is not asked")
	}
}
