//go:build unix

package redishold

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// sharing is a sharer in virtual time, and a server that is played: what was sent has been done at once, and the answer comes
// when the gate is open. wrong collects what is not as it should be, so that rules that are switched off can be seen.
type sharing struct {
	t *testing.T
	s *sharer
	*played

	ends  []context.CancelFunc
	wrong []string
}

// played is the server and the client library.
type played struct {
	deaf bool // calls do not end with their contexts

	mu      sync.Mutex
	shut    []chan struct{}
	closed  bool            // the last gate is shut
	unknown map[string]bool // scripts that the server has forgotten, by hash
	done    map[string]int  // how often something was done, by its argument
	sizes   []int           // of pipelines
	flying  int             // requests without an answer
	again   bool            // the client library may send something again
}

// Scripts that the server knows. It answers the argument of the first two, and turns for the others.
var (
	playedEcho   = &script{"echo", "sha of echo", "sha of echo"}
	playedOther  = &script{"other", "sha of other", "sha of other"}
	playedTurns  = &script{"turns", "sha of turns", "sha of turns"}
	playedTurns2 = &script{"more turns", "sha of more turns", "sha of more turns"}
)

func playSharing(t *testing.T, b broken, trial func(*sharing)) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance})
		defer client.Close()
		p := &played{unknown: map[string]bool{}, done: map[string]int{}}
		client.AddHook(p)
		r := &sharing{t: t, s: newSharer(client), played: p}
		r.s.broken = b
		trial(r)
		p.open()
		for _, end := range r.ends {
			end()
		}
		synctest.Wait()
		r.s.close()
		if p.again {
			r.complain("the client library may send a call again")
		}
		wrong = r.wrong
	})
	return wrong
}

func (r *sharing) complain(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// want complains unless ok.
func (r *sharing) want(ok bool, format string, args ...any) {
	if !ok {
		r.complain(format, args...)
	}
}

// sharedCall is a call, and what its caller was told.
type sharedCall struct {
	r    *member
	end  context.CancelFunc
	took time.Duration // -1: not yet
	outcome
}

func (a *sharedCall) back() bool { return a.took >= 0 }

// call makes one call. Its caller can give up.
func (r *sharing) call(s *script, arg string) *sharedCall {
	ctx, end := context.WithCancel(context.Background())
	return r.callIn(ctx, end, s, arg)
}

// within makes one call that ends by its budget alone.
func (r *sharing) within(budget time.Duration, arg string) *sharedCall {
	ctx, end := driver.WithBudget(context.Background(), budget)
	return r.callIn(ctx, end, playedEcho, arg)
}

func (r *sharing) callIn(ctx context.Context, end context.CancelFunc, s *script, arg string) *sharedCall {
	a := &sharedCall{r: &member{script: s, keys: []string{"k"}}, end: end, took: -1}
	if s == playedTurns || s == playedTurns2 {
		a.r.turn.packed = arg
	} else {
		a.r.args = []any{arg}
	}
	r.ends = append(r.ends, end)
	began := time.Now()
	go func() {
		a.reply, a.err = r.s.do(ctx, a.r)
		a.took = time.Since(began)
	}()
	synctest.Wait()
	return a
}

// fill shuts the gate and sends as many as may be under way.
func (r *sharing) fill() (all []*sharedCall) {
	r.shutGate()
	for i := range maxFlights {
		all = append(all, r.call(playedEcho, fmt.Sprint("first ", i)))
	}
	return all
}

// crowd makes n calls that come while a flight is starting.
func (r *sharing) crowd(n int) (all []*sharedCall) {
	r.s.mu.Lock()
	r.s.starting = true
	r.s.mu.Unlock()
	for i := range n {
		all = append(all, r.call(playedEcho, fmt.Sprint(i)))
	}
	r.s.mu.Lock()
	r.s.starting = false
	r.s.dispatch()
	r.s.mu.Unlock()
	synctest.Wait()
	return all
}

// shutGate holds back the answers to what comes from now on.
func (p *played) shutGate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut, p.closed = append(p.shut, make(chan struct{})), true
}

// letThrough is for what comes from now on: it is answered at once. What is held back stays so.
func (p *played) letThrough() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
}

// openFirst opens the gate that was shut first.
func (p *played) openFirst() {
	p.mu.Lock()
	close(p.shut[0])
	if p.shut = p.shut[1:]; len(p.shut) == 0 {
		p.closed = false
	}
	p.mu.Unlock()
	synctest.Wait()
}

// open opens all gates.
func (p *played) open() {
	p.mu.Lock()
	n := len(p.shut)
	p.mu.Unlock()
	for range n {
		p.openFirst()
	}
	synctest.Wait()
}

func (p *played) did(arg string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[arg]
}

func (p *played) underWay() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flying
}

func (p *played) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *played) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.serve(ctx, []redis.Cmder{cmd})
		return cmd.Err()
	}
}

func (p *played) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.serve(ctx, cmds)
		return nil
	}
}

func (p *played) serve(ctx context.Context, cmds []redis.Cmder) {
	p.mu.Lock()
	p.sizes = append(p.sizes, len(cmds))
	p.flying++
	answers := make([]any, len(cmds))
	for i, cmd := range cmds {
		p.again = p.again || !cmd.NoRetry()
		answers[i] = p.do(cmd.Args())
	}
	var gate chan struct{}
	if p.closed {
		gate = p.shut[len(p.shut)-1]
	}
	p.mu.Unlock()
	var err error
	if gate != nil {
		err = p.wait(ctx, gate)
	}
	for i, cmd := range cmds {
		refused, no := answers[i].(refusal)
		switch {
		case err != nil:
			cmd.SetErr(err)
		case no:
			cmd.SetErr(refused)
		default:
			cmd.(interface{ SetVal(any) }).SetVal(answers[i])
			cmd.SetErr(nil)
		}
	}
	p.mu.Lock()
	p.flying--
	p.mu.Unlock()
}

// wait waits for an answer as long as the context allows, by its deadline and not only its channel.
func (p *played) wait(ctx context.Context, gate chan struct{}) error {
	if p.deaf {
		<-gate
		return nil
	}
	var up <-chan time.Time
	if end, ok := ctx.Deadline(); ok {
		timer := time.NewTimer(time.Until(end))
		defer timer.Stop()
		up = timer.C
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-up:
		return context.DeadlineExceeded
	}
}

// do is what the server does: args are the verb, the script, the number of keys, keys and arguments.
func (p *played) do(args []any) any {
	which := fmt.Sprint(args[1])
	if args[0] == "evalsha" {
		if p.unknown[which] {
			return refusal("NOSCRIPT No matching script.")
		}
		which = strings.TrimPrefix(which, "sha of ")
	} else {
		delete(p.unknown, "sha of "+which)
	}
	keys, _ := args[2].(int)
	args = args[3+keys:]
	for _, a := range args {
		p.done[fmt.Sprint(a)]++
	}
	switch which {
	case playedEcho.source, playedOther.source:
		return args[0]
	}
	// Turns: a word that tells the scripts apart, or a general answer.
	words, rest := "", []any{""}
	for _, a := range args {
		switch text := fmt.Sprint(a); {
		case strings.HasPrefix(text, "refused"):
			words, rest = words+"?", append(rest, []any{"!", "ERR " + text})
		case strings.HasPrefix(text, "general"):
			words, rest = words+"?", append(rest, text)
		case which == playedTurns.source:
			words += "n"
		default:
			words += "K"
		}
	}
	if words = "0000000000000001" + words; len(rest) == 1 {
		return words
	}
	rest[0] = words
	return rest
}
