package watermillonce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/adapters/watermill/internal/origin"
	"github.com/holdlock/holdlock/driver"
)

// Redeliver returns middleware that makes a message come back later whose handler says that it cannot be handled now: because
// its twin is at work or another lock is held (holdlock.ErrHeld), because the store failed (ErrUnreachable, ErrUnknown), or because
// the lease was lost (ErrLost).
//
// It is part of Middleware, and of package intx. There it waits for Delay before any other error that is not the handler's own, so that nothing
// spins, whatever is wrong and if nobody puts the message aside. A handler's own error passes at once, also if it has suspended the job.
//
// Alone it is for handlers that take a lock themselves. There it knows the errors of holdlock only: before them it waits, and others pass.
func Redeliver(r *Redelivery) (message.HandlerMiddleware, error) {
	var f Redelivery
	if r != nil {
		f = *r
	}
	if err := f.fill(); err != nil {
		return nil, err
	}
	b := &returns{Redelivery: f}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return b.handle(msg, h) }
	}, nil
}

// returns are the messages that come back by one middleware.
type returns struct {
	Redelivery

	mu     sync.Mutex
	told   time.Time // when the last line was written
	untold int       // messages that came back since
}

func (r *returns) handle(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	again := msg
	if r.Later != nil {
		again = msg.CopyWithContext() // a handler may change what it gets
	}
	made, err := h(msg)
	var from *origin.Error
	switch {
	case err == nil || msg.Context().Err() != nil:
		return made, err
	case comesBack(err):
		return nil, r.later(again, err)
	case errors.As(err, &from):
		if from.Handler == nil {
			r.wait(msg.Context())
		}
	case PutAside(err), refused(err):
		r.wait(msg.Context())
	}
	return made, err
}

// comesBack says whether the same message can be handled after a while without anybody doing anything about it.
func comesBack(err error) bool {
	return !PutAside(err) && !driver.Damaged(err) && isAny(err, holdlock.ErrHeld, holdlock.ErrLost, holdlock.ErrUnreachable, holdlock.ErrUnknown)
}

// refused says whether holdlock has refused what it was asked, in a handler that asks it itself.
func refused(err error) bool {
	return isAny(err, holdlock.ErrRefused, holdlock.ErrUnsupported, holdlock.ErrInvalid, holdlock.ErrShutdown)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// later makes the message come back. Its error is nil if the message is where it will come back from.
func (r *returns) later(msg *message.Message, why error) error {
	if r.Later == nil {
		r.wait(msg.Context())
		return why
	}
	err := r.Later.Publish(r.LaterTopic, msg)
	if err == nil {
		r.tell(msg, why)
		return nil
	}
	r.wait(msg.Context()) // the broker delivers again what is not acknowledged, and that at once
	return fmt.Errorf("%w; and it cannot be sent to come back later: %w", why, err)
}

// tellEvery is how often the log is told why messages come back.
const tellEvery = time.Minute

// tell writes down, now and then, why messages come back that no twin keeps waiting: what is acknowledged has no error that anybody sees.
func (r *returns) tell(msg *message.Message, why error) {
	var from *origin.Error
	if handlers := errors.As(why, &from) && from.Handler != nil; !handlers && errors.Is(why, holdlock.ErrHeld) {
		return
	}
	r.mu.Lock()
	r.untold++
	n, now := r.untold, time.Now()
	if !r.told.IsZero() && now.Sub(r.told) < tellEvery {
		r.mu.Unlock()
		return
	}
	r.told, r.untold = now, 0
	r.mu.Unlock()
	r.Logger.Error("A message could not be handled and comes back later", why, watermill.LogFields{"message_uuid": msg.UUID, "topic": r.LaterTopic, "messages": n})
}

func (r *returns) wait(ctx context.Context) {
	timer := time.NewTimer(r.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
