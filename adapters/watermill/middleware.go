package watermillonce

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/adapters/watermill/internal/origin"
	"github.com/holdlock/holdlock/adapters/watermill/internal/produced"
	"github.com/holdlock/holdlock/once"
)

// Middleware returns middleware under which each job runs once. lock names the kind of job and says what is needed of its
// store; its keys are made by opts.Key. The handler's message has a context that ends when the lease is lost; RunFrom and
// once.KeyFrom find the run in it.
//
// The error says why no message could be handled: options that are not allowed (ErrInvalid), a Harmful lock that this store or OnLapse: Rerun
// cannot protect (ErrRefused), a store without records of jobs (ErrUnsupported). The store is not asked.
func Middleware(lock *holdlock.Lock, opts *Options) (message.HandlerMiddleware, error) {
	if lock == nil {
		return nil, errNoLock
	}
	o, err := opts.filled()
	if err != nil {
		return nil, fmt.Errorf("watermillonce: lock %s: %w", lock.Name(), err)
	}
	if err := once.Usable(lock, &o.Once); err != nil {
		return nil, fmt.Errorf("watermillonce: lock %s: %w", lock.Name(), err)
	}
	again, err := Redeliver(&o.Redelivery)
	if err != nil {
		return nil, fmt.Errorf("watermillonce: lock %s: %w", lock.Name(), err)
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return again(func(msg *message.Message) ([]*message.Message, error) { return handle(lock, &o, msg, h) })
	}, nil
}

var errNoLock = fmt.Errorf("watermillonce: %w", &holdlock.InvalidError{What: "lock", Value: "nil", Why: "declare one with Client.NewLock"})

// JobOf returns the lock that is the job of a message: lock with the key that opts make of it. The error is ErrNoKey if there is none, or one
// that no lock can have.
func JobOf(lock *holdlock.Lock, opts *Options, msg *message.Message) (*holdlock.Lock, error) {
	o, err := opts.filled()
	if err != nil {
		return nil, err
	}
	var key string
	err = asked("Options.Key", func() (err error) { key, err = o.Key(msg); return err })
	switch {
	case err != nil:
		return nil, fmt.Errorf("lock %s: message %.60q: %w: %w", lock.Name(), msg.UUID, ErrNoKey, err)
	case key == "": // a lock without a key would be one job for all messages
		return nil, fmt.Errorf("lock %s: message %.60q: %w: it is empty; let its publisher set what Options.Key looks at", lock.Name(), msg.UUID, ErrNoKey)
	}
	if _, _, err := holdlock.ParseName(lock.Name() + "/" + key); err != nil {
		return nil, fmt.Errorf("lock %s: message %.60q: %w: %w; let Options.Key make one of it that is, a hash for example", lock.Name(), msg.UUID, ErrNoKey, err)
	}
	return lock.For(key), nil
}

// InputOf returns what the job of a message works on, by opts. The error is ErrNoInput.
func InputOf(opts *Options, msg *message.Message) (input []byte, err error) {
	o, err := opts.filled()
	if err != nil {
		return nil, err
	}
	if err := asked("Options.Input", func() error { input = o.Input(msg); return nil }); err != nil {
		return nil, fmt.Errorf("message %.60q: %w: %w", msg.UUID, ErrNoInput, err)
	}
	return input, nil
}

// asked calls a function of the user that looks at a message. One of a shape that it does not expect must not spin: the router gives back at once
// what it has recovered a panic from.
func asked(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s has panicked: %v\n%s", what, v, debug.Stack())
		}
	}()
	return f()
}

// handle runs the handler for one delivery, or says why not. Its error has an *origin.Error.
func handle(lock *holdlock.Lock, o *Options, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	job, err := JobOf(lock, o, msg)
	if err != nil {
		return nil, &origin.Error{Ours: err}
	}
	policies := o.Once
	if policies.Input, err = InputOf(o, msg); err != nil {
		return nil, &origin.Error{Ours: err}
	}
	ctx := msg.Context()
	var made []*message.Message
	var failed *origin.Words
	out, err := once.Do(ctx, job, &policies, func(work context.Context, run *once.Run) ([]byte, error) {
		msg.SetContext(context.WithValue(work, runKey{}, run))
		defer msg.SetContext(ctx) // what is around has to go on when the lease is given back
		var err error
		if made, err = h(msg); err != nil {
			failed = &origin.Words{Of: err}
			return nil, failed
		}
		return produced.Pack(made)
	})
	switch {
	case out.Status == once.AlreadyDone && out.NoResult:
		err = fmt.Errorf("job %s/%s is done, but the messages that it returned were not kept: %w", job.Name(), job.Key(), once.ErrNoResult)
	case out.Status == once.AlreadyDone:
		if made, err = produced.Unpack(out.Result); err != nil {
			err = fmt.Errorf("job %s/%s is done, but the messages that it returned cannot be read: %w: %w", job.Name(), job.Key(), once.ErrNoResult, err)
		}
	case errors.Is(err, once.ErrResultTooLarge): // done, and this delivery still has what was made
		return made, nil
	}
	if err == nil {
		return made, nil
	}
	from := &origin.Error{Ours: err}
	if failed != nil {
		from.Handler = failed.Of
		if err == error(failed) {
			from.Ours = nil
		}
	}
	return made, fmt.Errorf("message %.60q: %w", msg.UUID, from)
}

type runKey struct{}

// RunFrom returns the run of a job that a message's context belongs to, or nil if it belongs to none.
func RunFrom(ctx context.Context) *once.Run {
	run, _ := ctx.Value(runKey{}).(*once.Run)
	return run
}
