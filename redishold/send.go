package redishold

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// sendOne sends one call by itself.
func sendOne(ctx context.Context, client redis.UniversalClient, r *member) *redis.Cmd {
	cmd := r.script.evalsha(ctx, r.keys, r.args)
	_ = client.Process(ctx, single{cmd})
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = r.script.eval(ctx, r.keys, r.args)
		_ = client.Process(ctx, single{cmd})
	}
	return cmd
}

// send sends calls together and gives each its own answer.
func send(client redis.UniversalClient, batch []*member) {
	if len(batch) == 1 {
		batch[0].cmd = sendOne(batch[0].ctx, client, batch[0])
		return
	}
	// Nobody's own context: one who gives up must not end the call of the others.
	ctx, cancel := context.WithDeadline(context.Background(), lastDeadline(batch))
	defer cancel()
	pipe := client.Pipeline()
	for _, r := range batch {
		r.cmd = r.script.evalsha(ctx, r.keys, r.args)
		_ = pipe.Process(ctx, &answered{Cmd: r.cmd})
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	unknown := 0
	for _, r := range batch {
		if redis.HasErrorPrefix(r.cmd.Err(), "NOSCRIPT") {
			unknown++
			r.cmd = r.script.eval(ctx, r.keys, r.args)
			_ = pipe.Process(ctx, &answered{Cmd: r.cmd})
		}
	}
	if unknown > 0 {
		_, _ = pipe.Exec(ctx)
	}
}

// noDeadline is for callers without one: the client's own timeouts end the call.
const noDeadline = time.Hour

func lastDeadline(batch []*member) (last time.Time) {
	for _, r := range batch {
		end, ok := r.ctx.Deadline()
		if !ok {
			return time.Now().Add(noDeadline)
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// answered is a command that is sent once only, as single is, and that keeps the answer it got: when a connection fails in
// the middle of a pipeline, the client library gives that failure to all of its commands, also to those before.
type answered struct {
	*redis.Cmd
	read bool
}

// NoRetry is part of redis.Cmder.
func (*answered) NoRetry() bool { return true }

// SetErr is part of redis.Cmder. It is called with the outcome of reading the reply first.
func (a *answered) SetErr(err error) {
	if a.read {
		return
	}
	var reply redis.Error
	a.read = err == nil && a.Val() != nil || errors.As(err, &reply)
	a.Cmd.SetErr(err)
}
