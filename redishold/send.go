package redishold

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// parcel is one command on the wire. It is for one member, or for several turns of the same script.
type parcel struct {
	members []*member
	cmd     *redis.Cmd
	few     [5]any // the arguments of a call for one lock
}

// lone is what one member needs who is sent by himself, as one object.
type lone struct {
	flight flight
	ctx    patient
	parcel parcel
	self   [1]*member
}

// parcels packs those who travel together. On a Cluster nobody does.
func (s *sharer) parcels(batch []*member) []parcel {
	var all []parcel // nearly always one
next:
	for i, r := range batch {
		if r.turn.packed != "" {
			for k := range all {
				if all[k].members[0].script == r.script || s.broken.mixed {
					all[k].members = append(all[k].members, r)
					continue next
				}
			}
		}
		all = append(all, parcel{members: batch[i : i+1 : i+1]})
	}
	return all
}

// call makes the command, by the script's hash or by its source: servers forget scripts whenever they like.
func (p *parcel) call(ctx context.Context, verb string) *redis.Cmd {
	first := p.members[0]
	what := first.script.hash
	if verb == "eval" {
		what = first.script.source
	}
	args := p.few[:0]
	if n := 3 + len(p.members)*(len(first.keys)+1) + len(first.args); n > len(p.few) || p.cmd != nil {
		args = make([]any, 0, n) // those of the call before may still be looked at
	}
	args = append(args, verb, what, nil)
	for _, r := range p.members {
		for _, k := range r.keys {
			args = append(args, k)
		}
	}
	args[2] = len(args) - 3
	if first.turn.packed == "" {
		args = append(args, first.args...)
	} else {
		for _, r := range p.members {
			args = append(args, r.turn.packed)
		}
	}
	p.cmd = redis.NewCmd(ctx, args...)
	p.cmd.SetFirstKeyPos(3)
	return p.cmd
}

func (p *parcel) unknown() bool {
	err := p.cmd.Err()
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// deliver gives the members what was answered.
func (p *parcel) deliver() {
	if first := p.members[0]; first.turn.packed == "" {
		first.reply, first.err = p.cmd.Val(), p.cmd.Err()
		return
	}
	answerTurns(p.members, p.cmd.Val(), p.cmd.Err())
}

// sendOne sends one call by itself.
func sendOne(ctx context.Context, client redis.UniversalClient, r *member) {
	new(lone).send(ctx, client, r)
}

func (l *lone) send(ctx context.Context, client redis.UniversalClient, r *member) {
	l.self[0] = r
	l.parcel.members = l.self[:]
	sendAlone(ctx, client, &l.parcel)
}

func sendAlone(ctx context.Context, client redis.UniversalClient, p *parcel) {
	_ = client.Process(ctx, single{p.call(ctx, "evalsha")})
	if p.unknown() {
		_ = client.Process(ctx, single{p.call(ctx, "eval")})
	}
	p.deliver()
}

// send sends calls together and gives each its own answer.
func (s *sharer) send(batch []*member) {
	if len(batch) == 1 {
		ctx, alone := batch[0].ctx, &lone{}
		if s.direct && batch[0].budget {
			alone.ctx.Context = ctx
			ctx = &alone.ctx
		}
		alone.send(ctx, s.client, batch[0])
		return
	}
	// Nobody's own context: one who gives up must not end the call of the others.
	ctx, cancel := context.WithDeadline(context.Background(), s.lastDeadline(batch))
	defer cancel()
	if s.broken.own {
		ctx = batch[0].ctx
	}
	all := s.parcels(batch)
	if len(all) == 1 {
		sendAlone(ctx, s.client, &all[0])
		return
	}
	pipe := s.client.Pipeline()
	for i := range all {
		_ = pipe.Process(ctx, s.kept(all[i].call(ctx, "evalsha")))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	again := 0
	for i := range all {
		if all[i].unknown() && !s.broken.forgotten || s.broken.everybody {
			again++
			_ = pipe.Process(ctx, s.kept(all[i].call(ctx, "eval")))
		}
	}
	if again > 0 {
		_, _ = pipe.Exec(ctx)
	}
	for i := range all {
		all[i].deliver()
	}
	if s.broken.same {
		for _, r := range batch {
			r.reply, r.turn, r.err = batch[0].reply, batch[0].turn, batch[0].err
		}
	}
}

// noDeadline is for callers without one: the client's own timeouts end the call.
const noDeadline = time.Hour

func (s *sharer) lastDeadline(batch []*member) (last time.Time) {
	if s.broken.first {
		batch = batch[:1]
	}
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

// single is a command that the client library sends once only. A retry of its own would hide whether an error is certain,
// and take the time for one of ours.
type single struct{ *redis.Cmd }

// NoRetry is part of redis.Cmder.
func (single) NoRetry() bool { return true }

// kept is a command that is sent once only, as single is, and that keeps the answer it got: when a connection fails in
// the middle of a pipeline, the client library gives that failure to all of its commands, also to those before.
type kept struct {
	*redis.Cmd
	read bool
}

func (s *sharer) kept(cmd *redis.Cmd) redis.Cmder {
	if s.broken.bare {
		return cmd
	}
	return &kept{Cmd: cmd}
}

// NoRetry is part of redis.Cmder.
func (*kept) NoRetry() bool { return true }

// SetErr is part of redis.Cmder. It is called with the outcome of reading the reply first.
func (a *kept) SetErr(err error) {
	if a.read {
		return
	}
	var reply redis.Error
	a.read = err == nil && a.Val() != nil || errors.As(err, &reply)
	a.Cmd.SetErr(err)
}
