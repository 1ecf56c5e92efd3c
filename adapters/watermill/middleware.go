package watermillonce

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/adapters/watermill/internal/produced"
	"github.com/holdlock/holdlock/once"
)

// Middleware returns middleware under which each job runs once. lock names the kind of job and says what is needed of its
// store; its keys are made by opts.Key. The handler's message has a context that ends when the lease is lost; RunFrom and
// once.KeyFrom find the run in it.
func Middleware(lock *holdlock.Lock, opts *Options) (message.HandlerMiddleware, error) {
	o, err := opts.filled()
	if err != nil {
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

// JobOf returns the lock that is the job of a message: lock with the key that opts make of it.
func JobOf(lock *holdlock.Lock, opts *Options, msg *message.Message) (*holdlock.Lock, error) {
	o, err := opts.filled()
	if err != nil {
		return nil, err
	}
	key, err := o.Key(msg)
	if err != nil || key == "" { // a lock without a key would be one job for all messages
		return nil, fmt.Errorf("lock %s: message %q: %w", lock.Name(), msg.UUID, errors.Join(ErrNoKey, err))
	}
	return lock.For(key), nil
}

// handle runs the handler for one delivery, or says why not.
func handle(lock *holdlock.Lock, o *Options, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	job, err := JobOf(lock, o, msg)
	if err != nil {
		return nil, err
	}
	policies := o.Once
	policies.Input = o.Input(msg)
	ctx := msg.Context()
	var made []*message.Message
	out, err := once.Do(ctx, job, &policies, func(work context.Context, run *once.Run) ([]byte, error) {
		msg.SetContext(context.WithValue(work, runKey{}, run))
		defer msg.SetContext(ctx) // what is around has to go on when the lease is given back
		var err error
		if made, err = h(msg); err != nil {
			return nil, err
		}
		return produced.Pack(made)
	})
	switch {
	case out.Status == once.AlreadyDone && out.NoResult:
		return nil, fmt.Errorf("message %q: job %s/%s is done, but the messages that it returned were not kept: %w", msg.UUID, job.Name(), job.Key(), once.ErrNoResult)
	case out.Status == once.AlreadyDone:
		return unpack(job, msg, out.Result)
	case errors.Is(err, once.ErrResultTooLarge): // done, and this delivery still has what was made
		return made, nil
	case err != nil:
		return made, fmt.Errorf("message %q: %w", msg.UUID, err)
	}
	return made, nil
}

func unpack(job *holdlock.Lock, msg *message.Message, result []byte) ([]*message.Message, error) {
	made, err := produced.Unpack(result)
	if err != nil {
		return nil, fmt.Errorf("message %q: job %s/%s is done, but the messages that it returned cannot be read: %w: %w", msg.UUID, job.Name(), job.Key(), once.ErrNoResult, err)
	}
	return made, nil
}

type runKey struct{}

// RunFrom returns the run of a job that a message's context belongs to, or nil if it belongs to none.
func RunFrom(ctx context.Context) *once.Run {
	run, _ := ctx.Value(runKey{}).(*once.Run)
	return run
}
