package asynqonce

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/once"
)

// Options are for New.
type Options struct {
	// Name of the lock; its keys are those of the jobs. Default "asynq".
	Name string
	// Key names the job that a task asks for: two tasks with the same key are the same job. Required, since only you know
	// what makes two tasks the same: an order's number, or PayloadKey. It is called before every run, and may be called
	// from several goroutines.
	Key func(*asynq.Task) (string, error)
	// Redis is where the queues are, as for asynq.NewServer. Required: a task that asynq would archive because it has no retries left is
	// enqueued anew there if its job runs elsewhere.
	Redis asynq.RedisConnOpt
	// Once says how long a job is remembered, and what follows a run that lapsed or failed; see there. If Input is nil it is
	// the payload, so that a key that is used for two different tasks is noticed. OnRunning is not used.
	Once once.Options
	// Lock are the settings of the lock. Wait is not used.
	Lock holdlock.LockOptions
	// Again is after how long a task whose job runs elsewhere is looked at again. Default and least: 2 s, because asynq counts
	// in whole seconds, and a task must not come more than twice a second.
	Again time.Duration
}

const leastAgain = 2 * time.Second

// The errors that a task has in asynq's log and inspector, for errors.Is.
var (
	// ErrRunning: another delivery of the job is at work. The task comes back.
	ErrRunning = errors.New("the job runs elsewhere; its task comes back later")
	// ErrStore: the store of the locks did not answer, so nothing was run. The task comes back.
	ErrStore = errors.New("the job was not run, because its lock's store did not answer; its task comes back later")
)

// Jobs runs tasks once. It is safe for concurrent use.
type Jobs struct {
	lock  *holdlock.Lock
	opts  Options
	tasks *tasks
}

// New returns what runs the tasks of a server once, on a client that keeps records of jobs, which stays yours: shut it down
// after the server. It changes two settings of cfg, from which the server must then be made: IsFailure, so that a task whose
// job runs elsewhere uses up no retry, and RetryDelayFunc, for how soon it comes back. What was set there is asked about
// everything else. Close what New returns after the server.
//
// What no task could pass is an error of New: policies of package once that are not allowed (holdlock.ErrInvalid), a Harmful lock that this store
// or OnLapse: Rerun cannot protect (holdlock.ErrRefused). Neither store nor queues are asked.
func New(client *holdlock.Client, cfg *asynq.Config, opts *Options) (*Jobs, error) {
	if client == nil {
		return nil, fmt.Errorf("asynqonce: %w", &holdlock.InvalidError{What: "client", Value: "nil", Why: "open one on the store of your choice"})
	}
	if opts == nil || opts.Key == nil {
		return nil, errors.New("asynqonce: Options.Key is required: it says which tasks are the same job, for example PayloadKey")
	}
	if opts.Redis == nil {
		return nil, errors.New("asynqonce: Options.Redis is required: it is where the queues are, as for asynq.NewServer, since a task without " +
			"retries is enqueued anew there while its job runs elsewhere")
	}
	if cfg == nil {
		return nil, errors.New("asynqonce: the asynq.Config is nil: it has to be the one that the server is made from")
	}
	o := *opts
	if o.Name == "" {
		o.Name = "asynq"
	}
	if o.Again == 0 {
		o.Again = leastAgain
	}
	switch {
	case o.Again < leastAgain:
		return nil, fmt.Errorf("asynqonce: lock %s: Again is %s; at least %s", o.Name, o.Again, leastAgain)
	case o.Lock.Wait != 0:
		return nil, fmt.Errorf("asynqonce: lock %s: Wait is %s; a task whose job runs elsewhere comes back instead", o.Name, o.Lock.Wait)
	case o.Once.OnRunning != once.Fail:
		return nil, fmt.Errorf("asynqonce: lock %s: OnRunning is set; a task whose job runs elsewhere comes back instead", o.Name)
	}
	if traits := client.Traits(); traits.Records == driver.NoRecords {
		return nil, fmt.Errorf("asynqonce: lock %s: store %s keeps no records of jobs: %w; use one that does (docs/promises.md, column \"records\")",
			o.Name, traits.Location, holdlock.ErrUnsupported)
	}
	lock, err := client.NewLock(o.Name, &o.Lock)
	if err != nil {
		return nil, fmt.Errorf("asynqonce: %w", err)
	}
	if err := once.Usable(lock, &o.Once); err != nil {
		return nil, fmt.Errorf("asynqonce: lock %s: %w", o.Name, err)
	}
	tasks, err := openTasks(o.Redis)
	if err != nil {
		return nil, fmt.Errorf("asynqonce: lock %s: %w", o.Name, err)
	}
	j := &Jobs{lock, o, tasks}
	j.configure(cfg)
	return j, nil
}

// Close closes the connections to the Redis of the queues. The server must have ended.
func (j *Jobs) Close() error { return j.tasks.rdb.Close() }

// comesBack says whether an error means that nothing was run and the task is to come back.
func comesBack(err error) bool { return errors.Is(err, ErrRunning) || errors.Is(err, ErrStore) }

func (j *Jobs) configure(cfg *asynq.Config) {
	failure, delay := cfg.IsFailure, cfg.RetryDelayFunc
	cfg.IsFailure = func(err error) bool {
		if comesBack(err) {
			return false
		}
		return failure == nil || failure(err)
	}
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if comesBack(err) {
			return j.again()
		}
		return delay(n, err, t)
	}
}

// again is after how long a task comes back. It varies, so that many twins do not come together.
func (j *Jobs) again() time.Duration { return j.opts.Again + rand.N(j.opts.Again/4) }

// PayloadKey is an Options.Key by which tasks of the same type and payload are the same job, in whatever queue they are.
func PayloadKey(t *asynq.Task) (string, error) {
	sum := sha256.Sum256(t.Payload())
	return t.Type() + "/" + hex.EncodeToString(sum[:16]), nil
}

// Middleware is for asynq's ServeMux.Use, or around a handler of your own. What handlers write with Task.ResultWriter is
// kept by asynq and not with the job.
func (j *Jobs) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return j.process(ctx, t, next) })
}

func (j *Jobs) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	key, err := j.keyOf(t)
	if err != nil { // another delivery would find the same
		return fmt.Errorf("asynqonce: lock %s: the key of a task of type %s: %w (%w)", j.opts.Name, t.Type(), err, asynq.SkipRetry)
	}
	o := j.opts.Once
	if o.Input == nil {
		o.Input = append([]byte{}, t.Payload()...) // never nil
	}
	for {
		err := j.run(ctx, t, next, key, &o)
		if !comesBack(err) || !last(ctx) {
			return err
		}
		failed := j.tasks.enqueueAnew(ctx, t, j.again())
		if failed == nil {
			return fmt.Errorf("%w: enqueued anew, as it has no retries (%w)", err, asynq.RevokeTask)
		}
		select { // the next look may find the job free
		case <-time.After(j.opts.Again):
		case <-ctx.Done():
			return fmt.Errorf("%w: and it has no retries, and cannot be enqueued anew: %w", err, failed)
		}
	}
}

// keyOf returns the key of a task, which a lock can have.
func (j *Jobs) keyOf(t *asynq.Task) (string, error) {
	key, err := j.opts.Key(t)
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("it is empty")
	}
	if _, _, err := holdlock.ParseName(j.opts.Name + "/" + key); err != nil {
		return "", fmt.Errorf("%w; let Options.Key make one of it that is, a hash for example", err)
	}
	return key, nil
}

// run delivers the job once and says it in asynq's words.
func (j *Jobs) run(ctx context.Context, t *asynq.Task, next asynq.Handler, key string, opts *once.Options) error {
	var failed *words
	out, err := once.Do(ctx, j.lock.For(key), opts, func(ctx context.Context, _ *once.Run) ([]byte, error) {
		err := next.ProcessTask(ctx, t)
		if err != nil {
			failed = &words{err}
			return nil, failed
		}
		return nil, nil
	})
	if err == nil {
		return nil
	}
	if failed == nil {
		return ofThisJob(&out, err)
	}
	switch {
	case err != error(failed):
		return &failure{failed.of, ofThisJob(&out, err)}
	case comesBack(failed.of):
		return &failure{failed.of, nil}
	}
	return failed.of
}

// ofThisJob adds to an error of package once what asynq is to do about it.
func ofThisJob(out *once.Outcome, err error) error {
	switch {
	case errors.Is(err, once.ErrSuspended), errors.Is(err, once.ErrOtherInput):
		return fmt.Errorf("%w (%w)", err, asynq.SkipRetry)
	case out.Status == once.NotRun && driver.Damaged(err): // to look at it again changes nothing; one of a newer release may be read elsewhere
		return fmt.Errorf("%w (%w)", err, asynq.SkipRetry)
	case out.Status == once.RunningElsewhere:
		return fmt.Errorf("%w: %w", ErrRunning, err)
	case out.Status == once.NotRun && (errors.Is(err, holdlock.ErrUnreachable) || errors.Is(err, holdlock.ErrUnknown)):
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return err
}

// last says whether asynq would archive the task whatever error it had.
func last(ctx context.Context) bool {
	retried, known := asynq.GetRetryCount(ctx)
	most, alsoKnown := asynq.GetMaxRetry(ctx)
	return known && alsoKnown && retried >= most
}
