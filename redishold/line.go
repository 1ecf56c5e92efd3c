package redishold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The line of waiters (driver.Queue) is a list beside the slot. acquire.lua puts a place at its end in the step in which it
// finds the key taken; release.lua takes the first live one out and makes it the owner, both by promote in common.lua, which
// also publishes to that process. So a release and an enqueue are all that a hand-over costs. attend.lua is the heartbeat.
// giveup.lua takes many places out that are given up.
//
// There is no line with PlainKeys, because whoever uses those keys without holdlock would never get on, nor with Replicas,
// because WAIT tells about the writes of its own connection and the hand-over was written by another.

// place is what stands in line for a request. It is the same bytes each time, so that it can be looked for.
func (d *Driver) place(req *driver.AcquireRequest, holder string) string {
	return fmt.Sprintf("%s%s%016d%s", req.Ref.Nonce, d.hub.id, micros(max(req.TTL, req.MinHold)), holder)
}

// Enqueue implements driver.Queue.
func (d *Driver) Enqueue(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	return d.acquire(ctx, "enqueue", req, true)
}

// Attend implements driver.Queue. One call is for many places, on a Cluster for those of one key.
func (d *Driver) Attend(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
	out := make([]driver.Standing, len(reqs))
	var groups [][]int
	of := map[string]int{}
	for i, req := range reqs {
		if out[i].Err = d.usable(ctx, "attend", req.Ref.Key); out[i].Err != nil {
			continue
		}
		key := ""
		if d.cluster != nil {
			key = req.Ref.Key
		}
		n, ok := of[key]
		if !ok || len(groups[n]) == attendSize {
			n = len(groups)
			of[key] = n
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], i)
	}
	calls := make([]*slotCall, len(groups))
	for n, which := range groups {
		calls[n] = d.attending(reqs, which)
	}
	d.callEach(ctx, d.scripts.attend, calls)
	for n, which := range groups {
		d.attended(reqs, which, calls[n], out)
	}
	return out
}

// attendSize is how many places one script looks at: few enough that nobody waits for it for more than a moment.
const attendSize = 256

// attending is the call for some places.
func (d *Driver) attending(reqs []*driver.AcquireRequest, which []int) *slotCall {
	keys := make([]string, 0, 2*len(which))
	args := []any{d.hub.id}
	for _, i := range which {
		holder, err := toJSON(reqs[i].Holder)
		if err != nil { // it was possible when the place was taken
			holder = ""
		}
		keys = append(keys, d.slotKey(reqs[i].Ref.Key), d.lineKey(reqs[i].Ref.Key))
		args = append(args, d.place(reqs[i], holder), micros(max(reqs[i].TTL, reqs[i].MinHold)))
	}
	return &slotCall{keys: keys, args: args}
}

// attended judges the reply.
func (d *Driver) attended(reqs []*driver.AcquireRequest, which []int, call *slotCall, out []driver.Standing) {
	parts, ok := call.reply.([]any)
	err := call.err
	if err == nil && (!ok || len(parts) != len(which)) {
		err = fmt.Errorf("the script answered %v", call.reply)
	}
	for n, i := range which {
		key := reqs[i].Ref.Key
		e := err
		if e == nil {
			out[i], e = d.standing(key, parts[n])
		}
		if e != nil {
			out[i] = driver.Standing{Err: d.failure("attend", key, e)}
		}
	}
}

// standing is the answer about one place.
func (d *Driver) standing(key string, reply any) (s driver.Standing, err error) {
	word, rest, err := answer(reply)
	switch {
	case err != nil:
		return s, err
	case word == "U":
		return s, nil
	case word == "G" && len(rest) == 3:
		s.Granted = true
		s.Grant, err = d.granted(key, rest)
		return s, err
	case word == "W" && len(rest) == 2:
		if s.Place, err = strconv.Atoi(rest[0]); err != nil {
			return s, err
		}
		us, err := strconv.ParseInt(rest[1], 10, 64)
		s.Remaining = time.Duration(us) * time.Microsecond
		return s, err
	}
	return s, fmt.Errorf("the script answered %v", reply)
}

// Leave implements driver.Queue. A place is looked for by its own bytes, which the server does without a script.
func (d *Driver) Leave(ctx context.Context, key string, left []driver.Leaving) error {
	const verb = "leave"
	if err := d.usable(ctx, verb, key); err != nil {
		return err
	}
	for some := range slices.Chunk(left, leaveSize) {
		args := make([]any, 1, 1+3*len(some))
		args[0] = randomHex(8)
		for _, l := range some {
			holder, err := d.holder.json(l.Request.Holder)
			if err != nil {
				return d.failure(verb, key, err)
			}
			args = append(args, l.Request.Ref.Nonce, undoing(&driver.ReleaseRequest{Undo: true, Answered: l.Answered}), d.place(l.Request, holder))
		}
		reply, err := d.call(ctx, d.scripts.giveUp, d.withAll(key), args...)
		if err := d.ended(verb, key, reply, err); err != nil && !errors.Is(err, driver.ErrGone) {
			return err
		}
	}
	return nil
}

// leaveSize is how many requests one script gives up.
const leaveSize = 512

// Listen implements driver.Queue.
func (d *Driver) Listen(ctx context.Context, hear func(driver.Push)) error {
	if err := d.usable(ctx, "listen", ""); err != nil {
		return err
	}
	h := d.hub
	h.mu.Lock()
	h.hear = hear
	h.mu.Unlock()
	_, err := bounded(ctx, d, func(ctx context.Context) (struct{}, error) { return struct{}{}, h.subscribe(ctx) })
	if err != nil {
		return failure("listen", "", err)
	}
	return nil
}

// handOver tells the caller of Listen.
func (h *hub) handOver(p driver.Push) {
	h.mu.Lock()
	hear := h.hear
	h.mu.Unlock()
	if hear != nil {
		hear(p)
	}
}

// pushLen is the least length of a message about a hand-over. Those for watchers are shorter.
const pushLen = 65

func (d *Driver) parsePush(s string) (p driver.Push, err error) {
	p.Nonce = s[:32]
	us, err := strconv.ParseInt(s[48:64], 10, 64)
	if err != nil {
		return p, fmt.Errorf("the message is damaged: %w", err)
	}
	p.TTL = time.Duration(us) * time.Microsecond
	p.Grant, err = d.granted("", []string{s[32:48], s[64:65], s[65:]})
	return p, err
}
