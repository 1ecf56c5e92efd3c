package watermillonce

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/adapters/watermill/internal/origin"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/once"
)

// MinDelay is the shortest Delay: a message whose twin is at work comes back at most twice a second.
const MinDelay = 500 * time.Millisecond

// Options are for Middleware; nil means all defaults.
type Options struct {
	// Once are the policies: Keep, OnLapse, OnError, MaxRuns. Input and OnRunning are not used: see below.
	Once once.Options
	// Key names the job of a message. Default: the UUID of the message, which its publisher has to keep when it publishes again.
	// An error, a panic, "", or what cannot be the key of a lock (more than 512 bytes, not UTF-8, or with a NUL) is ErrNoKey; nothing is run.
	Key func(*message.Message) (string, error)
	// Input is what the job works on: the same key with another input is an error (once.ErrOtherInput), not a duplicate. Default:
	// the payload. nil is not compared. A panic is ErrNoInput; nothing is run.
	Input func(*message.Message) []byte
	Redelivery
}

// Redelivery says how messages come back that cannot be handled now.
type Redelivery struct {
	// Later publishes to a topic, LaterTopic, whose messages are delivered to the handler again, not before Delay has passed. It has to
	// return nil only when the broker has the message: it is acknowledged then. nil: the handler waits for Delay and fails.
	Later      message.Publisher
	LaterTopic string
	// Delay is at least MinDelay, which is the default. With Later it is the topic's own delay that counts.
	Delay time.Duration
	// Logger is told, with Later, why messages come back for another reason than a twin at work: a store that does not answer, or that was
	// set up wrongly, a lease that was lost. An acknowledged message tells nobody. At most one line a minute, with how many messages came
	// back since the last. Default: watermill.NewSlogLogger(nil), which is slog.Default.
	Logger watermill.LoggerAdapter
}

// ErrNoKey means that the message does not say which job it is, or in a way that no lock can be named after.
var ErrNoKey = errors.New("the message has no key that can name its job")

// ErrNoInput means that Options.Input could not say what the job of the message works on.
var ErrNoInput = errors.New("what the job of the message works on cannot be told")

// PutAside says whether a message failed for a reason that stays until somebody has looked: its job is suspended, its key was used with
// another input, it has no key that can name its job, or no input, its messages were not kept, or the record or lock of its job is damaged
// (driver.Damaged); what a newer release has written is not, as another consumer may read it. What a handler under Middleware has returned does
// not count: it may be about another job. It is the filter for middleware.PoisonQueueWithFilter, whose topic has to
// exist: RabbitMQ drops what is sent to a queue that is not there. When a suspended job is settled so that it is to run again, publish its
// message again.
func PutAside(err error) bool {
	var from *origin.Error
	if errors.As(err, &from) {
		err = from.Ours
	}
	return isAny(err, once.ErrSuspended, once.ErrOtherInput, once.ErrNoResult, ErrNoKey, ErrNoInput) || driver.Damaged(err)
}

func (r *Redelivery) fill() error {
	if r.Delay == 0 {
		r.Delay = MinDelay
	}
	if r.Logger == nil {
		r.Logger = watermill.NewSlogLogger(nil)
	}
	switch {
	case r.Delay < MinDelay:
		return &holdlock.InvalidError{What: "Delay", Value: fmt.Sprint(r.Delay), Why: fmt.Sprintf("at least %s, since a message whose twin is at work comes back that often", MinDelay)}
	case (r.Later == nil) != (r.LaterTopic == ""):
		return &holdlock.InvalidError{What: "LaterTopic", Value: r.LaterTopic, Why: "Later and LaterTopic belong together"}
	}
	return nil
}

// filled returns the options with defaults in place of what is not set.
func (o *Options) filled() (Options, error) {
	var f Options
	if o != nil {
		f = *o
	}
	if f.Key == nil {
		f.Key = func(msg *message.Message) (string, error) { return msg.UUID, nil }
	}
	if f.Input == nil {
		f.Input = func(msg *message.Message) []byte { return msg.Payload }
	}
	switch {
	case f.Once.Input != nil:
		return f, &holdlock.InvalidError{What: "Once.Input", Value: fmt.Sprintf("%.60q", f.Once.Input), Why: "messages differ; use Options.Input"}
	case f.Once.OnRunning != once.Fail:
		return f, &holdlock.InvalidError{What: "Once.OnRunning", Value: fmt.Sprint(f.Once.OnRunning), Why: "a message whose twin is at work comes back later"}
	}
	return f, nil
}
