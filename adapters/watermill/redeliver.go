package watermillonce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Redeliver returns middleware that makes a message come back later whose handler says that it cannot be handled now: because
// its twin is at work or another lock is held (holdlock.ErrHeld), because the store failed (ErrUnreachable, ErrUnknown), or because
// the lease was lost (ErrLost). Other errors pass. Before one for which PutAside is true it waits for Delay, so that nothing spins where
// nobody puts the message aside; but not if this very run has suspended the job.
//
// It is part of Middleware. Alone it is for handlers that take a lock themselves.
func Redeliver(r *Redelivery) (message.HandlerMiddleware, error) {
	var f Redelivery
	if r != nil {
		f = *r
	}
	if err := f.fill(); err != nil {
		return nil, err
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return f.handle(msg, h) }
	}, nil
}

func (r *Redelivery) handle(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	again := msg
	if r.Later != nil {
		again = msg.CopyWithContext() // a handler may change what it gets
	}
	made, err := h(msg)
	var about *holdlock.JobError
	switch {
	case err == nil || msg.Context().Err() != nil:
		return made, err
	case comesBack(err):
		return nil, r.later(again, err)
	case errors.As(err, &about), errors.Is(err, ErrNoKey), driver.Damaged(err), refused(err):
		r.wait(msg.Context())
	}
	return made, err
}

// comesBack says whether the same message can be handled after a while without anybody doing anything about it.
func comesBack(err error) bool {
	if PutAside(err) {
		return false
	}
	for _, e := range []error{holdlock.ErrHeld, holdlock.ErrLost, holdlock.ErrUnreachable, holdlock.ErrUnknown} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refused says whether no message at all can be handled as things are set up.
func refused(err error) bool {
	return errors.Is(err, holdlock.ErrUnsupported) || errors.Is(err, holdlock.ErrInvalid) || errors.Is(err, holdlock.ErrShutdown)
}

// later makes the message come back. Its error is nil if the message is where it will come back from.
func (r *Redelivery) later(msg *message.Message, why error) error {
	if r.Later == nil {
		r.wait(msg.Context())
		return why
	}
	err := r.Later.Publish(r.LaterTopic, msg)
	if err == nil {
		return nil
	}
	r.wait(msg.Context()) // the broker delivers again what is not acknowledged, and that at once
	return fmt.Errorf("%w; and it cannot be sent to come back later: %w", why, err)
}

func (r *Redelivery) wait(ctx context.Context) {
	timer := time.NewTimer(r.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
