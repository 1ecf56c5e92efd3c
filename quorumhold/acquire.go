package quorumhold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdlock/holdlock/driver"
)

const (
	// maxRounds bounds the votes of one call. With it, callers that began together always find a winner.
	maxRounds = 16
	// Between two votes there is a pause of about a round trip, within these bounds.
	pauseMin, pauseMax = 300 * time.Microsecond, 50 * time.Millisecond
	// transitRounds is how often a vote is repeated when somebody has a majority and yet a node is free: it may be going away.
	transitRounds = 2
)

// A verdict is what has come of a vote.
type verdict uint8

const (
	undecided verdict = iota
	won
	taken       // another term has a majority
	split       // nobody has one, as far as could be seen
	disputed    // a majority has granted with different tokens; those who have not answered may yet agree
	outvoted    // a majority granted, and could not agree on a token
	outOfReach  // too few nodes answered
	interrupted // the caller's time is over
)

// Acquire implements driver.Driver. It is one attempt, with as many votes as it takes to find out who wins it. Whatever
// nodes have granted to an attempt that fails is given back in the background, so the error says that nothing was
// changed, and the next attempt needs a nonce of its own. Only if the term stands already, as it was granted by this driver, and cannot be
// confirmed anew, is it left as it is, and the error says so only where no node may have heard of the call.
func (d *Driver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	const verb = "acquire"
	key := req.Ref.Key
	if err := d.usable(ctx, verb, key); err != nil {
		return driver.Grant{}, err
	}
	err := d.tooLong(verb, key, "a TTL", req.TTL)
	if err == nil {
		err = d.tooLong(verb, key, "a MinHold", req.MinHold)
	}
	switch {
	case err != nil:
		return driver.Grant{}, err
	case d.retired.has(req.Ref):
		return driver.Grant{}, failure(verb, key, fmt.Errorf("this attempt has failed and is being given back; "+
			"a new one needs a new nonce (%w)", driver.ErrNotApplied))
	}
	d.stats.acquires.Add(1)
	a := &attempt{d: d, req: req, start: time.Now()}
	a.term = d.newTerm(req, req.Ref.Nonce)
	if t := d.known(req.Ref); t != nil {
		a.term.inherit(t)
	}
	return a.run(ctx)
}

// tooLong refuses what nodes that restart one after the other would forget before its end.
func (d *Driver) tooLong(verb, key, what string, t time.Duration) error {
	if t <= d.opts.MaxTTL {
		return nil
	}
	return failure(verb, key, fmt.Errorf("%s of %s is longer than MaxTTL %s: a node that has lost its data abstains for MaxTTL only; "+
		"raise MaxTTL in all programs, or ask for less (%w)", what, t, d.opts.MaxTTL, driver.ErrNotApplied))
}

// An attempt is one call of Acquire.
type attempt struct {
	d     *Driver
	req   *driver.AcquireRequest
	start time.Time // before the first byte is sent: the window counts from here
	term  *term
	used  []string // nonces that were given back
}

func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	d := a.d
	for round := 0; ; round++ {
		d.stats.rounds.Add(1)
		began := time.Now()
		v := a.vote(ctx)
		took := time.Since(began)
		pause := min(max(took, pauseMin), pauseMax)
		if v != outOfReach && v != interrupted {
			d.pace.Store(int64(took))
		}
		if v == won {
			return a.grant(a.ending(ctx, took)), nil
		}
		if before := a.term.before; v != taken && before != nil && before.stands(0) && !d.broken.again {
			err := a.noMajority(ctx, v)
			err.certain = !a.term.yield()
			return driver.Grant{}, err
		}
		o := a.outlook()
		last := round+1 >= maxRounds || time.Since(a.start) > a.req.TTL/4
		switch {
		case v == taken && o.rival.Nonce == a.term.node.Nonce:
			// My own term, which an operator has broken. It stands until its end, so nothing is given back.
			return driver.Grant{}, &driver.HeldError{Term: o.rival}
		case v == taken && !last && !slices.Contains(a.used, o.rival.Nonce) && siblings(o.rival.Nonce, a.req.Ref.Nonce):
			// The answer to an earlier try of the same attempt was lost: it has won in a later vote.
			a.term.end()
			a.term = d.newTerm(a.req, o.rival.Nonce)
			continue
		case v == taken && !last && round < transitRounds && o.mine > 0 && !o.rival.Cooling:
			// It may be on its way out.
		case v == taken:
			a.term.end()
			return driver.Grant{}, &driver.HeldError{Term: o.rival}
		case v == outOfReach || v == interrupted:
			a.term.end()
			return driver.Grant{}, a.noMajority(ctx, v)
		case last && o.rival.Key != "":
			a.term.end()
			return driver.Grant{}, &driver.HeldError{Term: o.rival}
		case last:
			a.term.end()
			return driver.Grant{}, a.noMajority(ctx, v)
		case v == split && o.leading:
			// Those behind me give back what they have. I keep mine.
		default:
			a.term.end()
			a.used = append(a.used, a.term.node.Nonce)
			a.term = d.newTerm(a.req, sibling(a.term.node.Nonce))
			pause *= 2
		}
		if d.sleep(ctx, pause/2+d.random(pause)) != nil {
			a.term.end()
			return driver.Grant{}, a.noMajority(ctx, interrupted)
		}
	}
}

// vote asks every node that has not granted yet, and waits until the outcome is clear.
func (a *attempt) vote(ctx context.Context) verdict {
	t := a.term
	which := make([]int, 0, len(t.at))
	t.mu.Lock()
	t.floor = max(a.req.Floor, cmp.Or(t.given, driver.TokenAt(time.Now().Add(tokenLead))))
	for i := range t.at {
		if s := t.at[i].state; s != asking && s != granted {
			which = append(which, i)
		}
	}
	t.mu.Unlock()
	t.ask(which)

	end := a.d.limit(ctx, a.start.Add(a.req.TTL)) // a term that is won then has run out
	defer a.d.spare(end)
	began := time.Now()
	var settle <-chan time.Time
	settled := false
	for {
		v, raise := t.judge(settled)
		for _, i := range raise {
			a.d.stats.raises.Add(1)
			t.raise(i)
		}
		var wait time.Duration
		switch v {
		case won, taken, outvoted:
			return v
		case split, disputed:
			// Who is ahead, or whether there is agreement after all, is seen when all have answered. The slowest may delay that by as
			// much as it has taken so far.
			wait = min(max(time.Since(began), pauseMin), pauseMax)
		case outOfReach:
			wait = lookGrace // for a message that is complete
		}
		if v != undecided && (settled || t.quiet()) {
			return v
		}
		if wait > 0 && settle == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			settle = timer.C
		}
		select {
		case <-t.changed:
		case <-settle:
			settled = true
		case <-end.done:
			return interrupted
		case <-end.late:
			if a.d.interrupted(ctx) == nil {
				return outOfReach
			}
			return interrupted
		case <-a.d.closing:
			return interrupted
		}
	}
}

// quiet says whether no answer is outstanding.
func (t *term) quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.at {
		if t.at[i].state == asking {
			return false
		}
	}
	return true
}

// judge looks at the answers so far. It fixes the token when a majority has granted, and returns where it is to be raised.
// A majority that agrees is preferred, and waited for unless settled.
func (t *term) judge(settled bool) (v verdict, raise []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	need := t.d.need
	mine, open, refusals := 0, 0, 0
	for i := range t.at {
		switch t.at[i].state {
		case granted:
			mine++
		case asking:
			open++
		case refused:
			refusals++
		}
	}
	if t.token == 0 && mine >= need {
		var highest driver.Token
		for i := range t.at {
			if p := &t.at[i]; p.state == granted {
				highest = max(highest, p.token)
				if t.votes(p.token) >= need {
					t.token = p.token
				}
			}
		}
		if t.token == 0 && open > 0 && !settled {
			return disputed, nil
		}
		t.token = cmp.Or(t.token, highest)
		for i := range t.at {
			if p := &t.at[i]; p.state == granted && p.token < t.token {
				if t.d.broken.raise {
					p.token = t.token
					continue
				}
				p.moved = true
				raise = append(raise, i)
			}
		}
	}
	switch {
	case t.token != 0:
		acknowledged, possible := 0, open
		for i := range t.at {
			switch p := &t.at[i]; {
			case p.state == granted && p.token == t.token:
				acknowledged++
			case p.moved:
				possible++
			}
		}
		switch {
		case acknowledged >= need:
			return won, raise
		case acknowledged+possible < need:
			return outvoted, raise
		}
	case mine+open >= need:
	case t.rivals().most >= need:
		return taken, nil
	case mine+refusals+open < need:
		return outOfReach, nil
	case open > 0 || mine+refusals >= need:
		return split, nil
	default:
		return outOfReach, nil
	}
	return undecided, raise
}

// votes counts the nodes that have granted with a token. There are few: a map would cost more than to look at each again.
func (t *term) votes(token driver.Token) (n int) {
	for i := range t.at {
		if p := &t.at[i]; p.state == granted && p.token == token {
			n++
		}
	}
	return n
}

// An outlook is what the answers to a vote say about who may win.
type outlook struct {
	mine    int
	leading bool        // nobody who is known to compete has more votes
	rival   driver.Term // who has most votes besides me; its Key is empty if nobody has any
}

func (a *attempt) outlook() outlook {
	t := a.term
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rivals()
	o := outlook{rival: r.term}
	for i := range t.at {
		if t.at[i].state == granted {
			o.mine++
		}
	}
	o.leading = o.mine > r.most || o.mine == r.most && t.node.Nonce > r.term.Nonce
	return o
}

// rivals counts the votes of others.
type rivals struct {
	most int
	term driver.Term
}

// rivals finds who has most votes besides this term. Ties go to the larger nonce: every contender that sees the same votes
// comes to the same result. Runs under t.mu.
func (t *term) rivals() rivals {
	groups := map[string][]driver.Term{}
	unknown := 0
	for i := range t.at {
		switch p := &t.at[i]; p.state {
		case refused:
			groups[p.other.Nonce] = append(groups[p.other.Nonce], *p.other)
		case granted:
		default:
			unknown++
		}
	}
	var r rivals
	var best string
	for nonce, terms := range groups {
		if len(terms) > r.most || len(terms) == r.most && nonce > best {
			r.most, best = len(terms), nonce
		}
	}
	if r.most > 0 {
		r.term = t.d.merge(groups[best], unknown)
	}
	return r
}

// grant makes the won term the one that is held, and tells how the one before ended.
func (a *attempt) grant(g driver.Grant) driver.Grant {
	t := a.term
	t.mu.Lock()
	t.phase, t.deadline = held, a.start.Add(t.ttl)
	g.Token = t.token
	for i := range t.at {
		t.at[i].grant, t.at[i].other = driver.Grant{}, nil
	}
	t.mu.Unlock()
	a.d.keep(t)
	return g
}

// noMajority makes the error of an attempt that failed for the nodes' sake.
func (a *attempt) noMajority(ctx context.Context, v verdict) *NoMajorityError {
	t, d := a.term, a.d
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &NoMajorityError{Verb: "acquire", Key: a.req.Ref.Key, Of: len(d.nodes), Need: d.need, certain: true}
	if v == interrupted {
		e.interruptedErr = d.interrupted(ctx)
	}
	for i := range t.at {
		p := &t.at[i]
		err := p.err
		switch p.state {
		case granted:
			e.Did++
			e.Answered++
			continue
		case refused:
			e.Answered++
			err = errors.New("taken by " + describe(*p.other))
		case asking:
			err = unanswered(time.Since(a.start))
		case declined:
			if errors.Is(p.err, driver.ErrAbstains) {
				e.Answered++
				e.Abstaining++
			} else if spoke(p.err) {
				e.Answered++
			}
		}
		if err != nil {
			e.Nodes = append(e.Nodes, NodeFailure{d.nodes[i].name, err})
		}
	}
	if e.Did >= e.Need {
		e.apart = time.Since(a.start)
	}
	return e
}

func describe(t driver.Term) string {
	if t.Cooling {
		return "its last run's MinHold"
	}
	return fmt.Sprintf("pid %d on %s", t.Holder.PID, t.Holder.Host)
}

// sleep waits, or says why the call has to end first.
func (d *Driver) sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
	case <-d.closing:
	}
	return d.interrupted(ctx)
}

// The last digit of a nonce counts the votes of one attempt, up to 16. A term that was given back must not come back under
// the same nonce while the release is on its way, and the caller knows one nonce only.

// sibling returns the nonce for the next vote.
func sibling(nonce string) string {
	last := len(nonce) - 1
	digit, err := strconv.ParseUint(nonce[last:], 16, 8)
	if err != nil {
		return nonce
	}
	return nonce[:last] + strconv.FormatUint((digit+1)%16, 16)
}

// siblings says whether two nonces are of one attempt.
func siblings(a, b string) bool {
	return len(a) == len(b) && a != "" && a[:len(a)-1] == b[:len(b)-1]
}

// merge makes one term of what several nodes say about it: the token that most of them name, the earliest start, and when a
// majority of nodes will be free of it. unknown is how many nodes have not answered: they may have it for longer.
func (d *Driver) merge(terms []driver.Term, unknown int) driver.Term {
	out := terms[0]
	votes := map[driver.Token]int{}
	var remaining []time.Duration
	for _, t := range terms {
		votes[t.Token]++
		remaining = append(remaining, t.Remaining)
		if !t.Acquired.IsZero() && t.Acquired.Before(out.Acquired) {
			out.Acquired = t.Acquired
		}
		out.Broken = cmp.Or(out.Broken, t.Broken)
	}
	for token, n := range votes {
		if most := votes[out.Token]; n > most || n == most && token < out.Token {
			out.Token = token
		}
	}
	slices.Sort(remaining)
	free := len(d.nodes) - unknown - len(terms) // nodes that do not have it
	out.Remaining = remaining[min(max(d.need-free, 1), len(remaining))-1]
	return out
}
