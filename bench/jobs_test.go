package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/redishold"
)

// What it costs to run a job once, and to skip a duplicate of it, without the work.
//
//	go test -run '^$' -bench Job -benchtime 300x     # rounds, which are short since machines are noisy
//
// asynq's Unique is part of an enqueue, which costs a request in any case, and forgets a job when it is done: it is printed
// beside the same enqueue without it. The hand-written one is SET NX before the work and DEL if that fails; it loses a job
// whose worker dies, and has no result.

// A runner is one way to do that.
type runner struct {
	name string
	run  func(ctx context.Context, key string) error // a job that was not seen before
	skip func(ctx context.Context, key string) error // one that was
	end  func()
}

var (
	errRanAgain = errors.New("a duplicate ran")
	errSkipped  = errors.New("a job was skipped that is not done")
)

const bareJobs = "holdlock's scripts bare, go-redis"

func runners(addr string) (all []runner, err error) {
	for _, open := range []func(addr string) (runner, error){onceRunner, bareRunner, handWritten, asynqUnique, asynqPlain} {
		r, err := open(addr)
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

func onceRunner(addr string) (runner, error) { return onceOn(recommended(addr)) }

func onceOn(rdb *redis.Client) (runner, error) {
	c, err := redishold.Open(rdb, nil)
	if err != nil {
		return runner{}, err
	}
	lock, err := c.NewLock("job", &holdlock.LockOptions{TTL: 30 * time.Second})
	if err != nil {
		return runner{}, err
	}
	deliver := func(ctx context.Context, key string, want once.Status) error {
		out, err := once.Do(ctx, lock.For(key), nil, func(context.Context, *once.Run) ([]byte, error) { return []byte("receipt"), nil })
		if err == nil && out.Status != want {
			err = fmt.Errorf("%v, want %v", out.Status, want)
		}
		return err
	}
	return runner{
		name: "holdlock, once.Do",
		run:  func(ctx context.Context, key string) error { return deliver(ctx, key, once.Ran) },
		skip: func(ctx context.Context, key string) error { return deliver(ctx, key, once.AlreadyDone) },
		end: func() {
			_ = c.Shutdown(context.Background())
			_ = rdb.Close()
		},
	}, nil
}

// bareRunner sends the very calls that once.Do makes, with other keys and nonces.
func bareRunner(addr string) (runner, error) {
	calls, err := recordJob(addr)
	if err != nil {
		return runner{}, err
	}
	rdb := recommended(addr)
	send := func(ctx context.Context, i int, key, nonce string) (string, error) {
		var args []any
		for _, a := range calls[i].fill(key, nonce) {
			args = append(args, a)
		}
		cmd := redis.NewSliceCmd(ctx, args...)
		_ = rdb.Process(ctx, cmd)
		answer, err := cmd.Result()
		if err != nil || len(answer) == 0 {
			return "", err
		}
		return fmt.Sprint(answer[0]), nil
	}
	return runner{
		name: bareJobs,
		run: func(ctx context.Context, key string) error {
			nonce := newToken()
			for i, want := range []string{"G", "K"} {
				if word, err := send(ctx, i, key, nonce); err != nil || word != want {
					return errors.Join(err, errSkipped)
				}
			}
			return nil
		},
		skip: func(ctx context.Context, key string) error {
			if word, err := send(ctx, 0, key, newToken()); err != nil || word != "D" {
				return errors.Join(err, errRanAgain)
			}
			return nil
		},
		end: func() { _ = rdb.Close() },
	}, nil
}

// recordJob lets holdlock run a job once and returns its two calls.
func recordJob(addr string) (calls [2]template, err error) {
	rdb := recommended(addr)
	r, err := onceOn(rdb)
	if err != nil {
		return calls, err
	}
	defer r.end()
	if err := r.run(context.Background(), "first"); err != nil { // the server has to be told the scripts
		return calls, err
	}
	var seen recorder
	rdb.AddHook(&seen)
	const key = "the-recorded-job"
	if err := r.run(context.Background(), key); err != nil {
		return calls, err
	}
	if len(seen.seen) != 2 {
		return calls, fmt.Errorf("a job took %d calls, want 2", len(seen.seen))
	}
	nonce := sharedNonce(seen.seen[0], seen.seen[1])
	for i, args := range seen.seen {
		calls[i] = templateOf(args, key, nonce)
	}
	return calls, nil
}

func handWritten(addr string) (runner, error) {
	rdb := recommended(addr)
	begin := func(ctx context.Context, key string) (bool, error) {
		return rdb.SetNX(ctx, "naive:"+key, "begun", time.Hour).Result()
	}
	return runner{
		name: "SET NX, DEL if it fails, by hand",
		run: func(ctx context.Context, key string) error { // one that fails, so that both are sent
			first, err := begin(ctx, key)
			if err != nil || !first {
				return errors.Join(err, errSkipped)
			}
			if err := rdb.Del(ctx, "naive:"+key).Err(); err != nil {
				return err
			}
			return nil
		},
		skip: func(ctx context.Context, key string) error {
			first, err := begin(ctx, "duplicate")
			if err != nil || first && key != "warm" {
				return errors.Join(err, errRanAgain)
			}
			return nil
		},
		end: func() { _ = rdb.Close() },
	}, nil
}

func asynqUnique(addr string) (runner, error) {
	return enqueuing(addr, "unique", asynq.Unique(time.Hour))
}

func asynqPlain(addr string) (runner, error) { return enqueuing(addr, "plain") }

func enqueuing(addr, queue string, opts ...asynq.Option) (runner, error) {
	c := asynq.NewClient(asynq.RedisClientOpt{Addr: addr})
	opts = append(opts, asynq.Queue(queue))
	enqueue := func(ctx context.Context, key string) error {
		_, err := c.EnqueueContext(ctx, asynq.NewTask("job", []byte(key)), opts...)
		return err
	}
	r := runner{name: "asynq, Enqueue with Unique", run: enqueue, end: func() { _ = c.Close() }}
	r.skip = func(ctx context.Context, key string) error {
		if err := enqueue(ctx, "duplicate"); !errors.Is(err, asynq.ErrDuplicateTask) && key != "warm" {
			return errors.Join(err, errRanAgain)
		}
		return nil
	}
	if queue == "plain" {
		r.name, r.skip = "asynq, Enqueue without it", nil
	}
	return r, nil
}

// rate returns how often a second several callers do f.
func rate(ctx context.Context, callers int, window time.Duration, f func(ctx context.Context, n int64) error) (float64, error) {
	var n, failed atomic.Int64
	var last atomic.Value
	began := time.Now()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for time.Since(began) < window && failed.Load() == 0 {
				if err := f(ctx, n.Add(1)); err != nil {
					failed.Add(1)
					last.Store(err)
				}
			}
		})
	}
	all.Wait()
	if err, _ := last.Load().(error); err != nil {
		return 0, err
	}
	return float64(n.Load()) / time.Since(began).Seconds(), nil
}

// jobRates measures all runners in turn, in so many rounds: by name, jobs and duplicates a second in each round.
func jobRates(ctx context.Context, s *server, callers, rounds int, window time.Duration) (jobs, skips map[string][]float64, names []string, err error) {
	all, err := runners(s.addr)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		for _, r := range all {
			r.end()
		}
	}()
	jobs, skips = map[string][]float64{}, map[string][]float64{}
	order := slices.Clone(all)
	for _, r := range all {
		names = append(names, r.name)
	}
	for round := range rounds {
		for _, r := range order {
			prefix := fmt.Sprintf("%s/%d/%d/", r.name, callers, round)
			got, err := rate(ctx, callers, window, func(ctx context.Context, n int64) error { return r.run(ctx, prefix+fmt.Sprint(n)) })
			if err != nil {
				return nil, nil, nil, fmt.Errorf("%s: %w", r.name, err)
			}
			jobs[r.name] = append(jobs[r.name], got)
			if r.skip == nil {
				continue
			}
			_ = r.skip(ctx, "warm") // something to be a duplicate of
			if got, err = rate(ctx, callers, window, func(ctx context.Context, _ int64) error { return r.skip(ctx, prefix+"1") }); err != nil {
				return nil, nil, nil, fmt.Errorf("%s, a duplicate: %w", r.name, err)
			}
			skips[r.name] = append(skips[r.name], got)
		}
		slices.Reverse(order)
		if round%20 != 0 {
			continue
		}
		if err := s.admin.FlushDB(ctx).Err(); err != nil {
			return nil, nil, nil, err
		}
	}
	return jobs, skips, names, nil
}

// ratioTo is the median of the ratios within the rounds.
func ratioTo(floor, got []float64) float64 {
	var ratios []float64
	for i := range got {
		ratios = append(ratios, got[i]/floor[i])
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

func BenchmarkJob(b *testing.B) {
	s, err := startServer()
	if err != nil {
		b.Fatal(err)
	}
	defer s.stop()
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers, " callers"), func(b *testing.B) {
			jobs, skips, names, err := jobRates(context.Background(), s, callers, b.N, 10*time.Millisecond)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(0, "ns/op") // a round
			if b.N == 1 {
				return // the benchmark tries itself
			}
			for _, name := range names {
				mid := slices.Sorted(slices.Values(jobs[name]))
				line := fmt.Sprintf("%-36s %7.0f jobs/s, %.2f of the bare scripts", name, mid[len(mid)/2], ratioTo(jobs[bareJobs], jobs[name]))
				if got := skips[name]; len(got) > 0 {
					mid := slices.Sorted(slices.Values(got))
					line += fmt.Sprintf("; %7.0f duplicates/s, %.2f", mid[len(mid)/2], ratioTo(skips[bareJobs], got))
				}
				b.Log(line)
			}
		})
	}
}

// A tiny round, so that what is compared works; what it sends is counted.
func TestJobsWork(t *testing.T) {
	s := testServer(t)
	if _, _, _, err := jobRates(t.Context(), s, 2, 2, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
}
