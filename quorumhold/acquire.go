package quorumhold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	outvoted    // a majority granted, and could not agree on a token
	outOfReach  // too few nodes answered
	interrupted // the caller's time is over
)

// Acquire implements driver.Driver. It is one attempt, with as many votes as it takes to find out who wins it. Whatever
// nodes have granted to an attempt that fails is given back in the background, so the error always says that nothing was
// changed, and the next attempt needs a nonce of its own.
func (d *Driver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	const verb = "acquire"
	key := req.Ref.Key
	if err := d.usable(ctx, verb, key); err != nil {
		return driver.Grant{}, err
	}
	switch {
	case req.TTL > d.opts.MaxTTL:
		return driver.Grant{}, failure(verb, key, fmt.Errorf("a TTL of %s is longer than MaxTTL %s: a node that has lost its data "+
			"abstains for MaxTTL only (%w)", req.TTL, d.opts.MaxTTL, driver.ErrNotApplied))
	case d.retired.has(req.Ref):
		return driver.Grant{}, failure(verb, key, fmt.Errorf("this attempt has failed and is being given back; "+
			"a new one needs a new nonce (%w)", driver.ErrNotApplied))
	}
	d.stats.acquires.Add(1)
	a := &attempt{d: d, req: req, start: time.Now(), used: map[string]bool{}}
	a.term = d.newTerm(req, req.Ref.Nonce)
	if t := d.known(req.Ref); t != nil {
		a.term.node = t.node
	}
	return a.run(ctx)
}

// An attempt is one call of Acquire.
type attempt struct {
	d     *Driver
	req   *driver.AcquireRequest
	start time.Time // before the first byte is sent: the window counts from here
	term  *term
	used  map[string]bool // nonces that were given back
}

func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	d := a.d
	for round := 0; ; round++ {
		d.stats.rounds.Add(1)
		began := time.Now()
		v := a.vote(ctx)
		pause := min(max(time.Since(began), pauseMin), pauseMax)
		if v == won {
			return a.grant(), nil
		}
		o := a.outlook()
		last := round+1 >= maxRounds || time.Since(a.start) > a.req.TTL/4
		switch {
		case v == taken && o.rival.Nonce == a.term.node.Nonce:
			// My own term, which an operator has broken. It stands until its end, so nothing is given back.
			return driver.Grant{}, &driver.HeldError{Term: o.rival}
		case v == taken && !last && !a.used[o.rival.Nonce] && siblings(o.rival.Nonce, a.req.Ref.Nonce):
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
			a.used[a.term.node.Nonce] = true
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
	var which []int
	t.mu.Lock()
	t.floor = max(a.req.Floor, driver.TokenAt(time.Now().Add(tokenLead)))
	for i := range t.at {
		if s := t.at[i].state; s != asking && s != granted {
			which = append(which, i)
		}
	}
	t.mu.Unlock()
	t.ask(which)

	began := time.Now()
	var settle <-chan time.Time
	for {
		v, raise := t.judge(settle != nil)
		for _, i := range raise {
			a.d.stats.raises.Add(1)
			t.raise(i)
		}
		switch {
		case v == split && settle == nil:
			// A majority is out of reach. Who is ahead is seen only when all have answered, which the slowest may delay a little.
			timer := time.NewTimer(min(max(time.Since(began), pauseMin), pauseMax))
			defer timer.Stop()
			settle = timer.C
			continue
		case v != undecided && v != split:
			return v
		case v == split && t.quiet():
			return v
		}
		select {
		case <-t.changed:
		case <-settle:
			return split
		case <-ctx.Done():
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
func (t *term) judge(settling bool) (v verdict, raise []int) {
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
		for i := range t.at {
			if t.at[i].state == granted {
				t.token = max(t.token, t.at[i].token)
			}
		}
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
	for i := range t.at {
		if p := &t.at[i]; p.state == refused {
			groups[p.other.Nonce] = append(groups[p.other.Nonce], p.other)
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
		r.term = merge(groups[best])
	}
	return r
}

// grant makes the won term the one that is held.
func (a *attempt) grant() driver.Grant {
	t, d := a.term, a.d
	t.mu.Lock()
	t.phase, t.deadline = held, a.start.Add(t.ttl)
	g := driver.Grant{Token: t.token}
	g.Previous, g.Prior = d.endings.take(t.ref.Key)
	for i := range t.at {
		p := &t.at[i]
		if p.state == granted {
			g.Previous, g.Prior = later(g.Previous, g.Prior, p.grant)
		}
		p.grant = driver.Grant{}
		p.other = driver.Term{}
	}
	t.mu.Unlock()
	d.keep(t)
	return g
}

// later chooses between what two nodes say about the term before. That it lapsed or was broken counts if one of them says
// so: the others may have been granted since to attempts that failed, which they call released.
func later(ending driver.Ending, prior *driver.Term, g driver.Grant) (driver.Ending, *driver.Term) {
	rank := func(e driver.Ending, p *driver.Term) driver.Token {
		switch {
		case p != nil:
			return p.Token
		case e == driver.Lapsed || e == driver.Broken:
			return 2
		case e == driver.Released:
			return 1
		}
		return 0
	}
	if rank(g.Previous, g.Prior) > rank(ending, prior) {
		return g.Previous, g.Prior
	}
	return ending, prior
}

// noMajority makes the error of an attempt that failed for the nodes' sake.
func (a *attempt) noMajority(ctx context.Context, v verdict) error {
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
			err = errors.New("taken by " + describe(p.other))
		case asking:
			err = fmt.Errorf("no answer after %s", time.Since(a.start).Round(time.Millisecond))
		case declined:
			if errors.Is(p.err, driver.ErrAbstains) {
				e.Answered++
				e.Abstaining++
			} else if !silent(p.err) {
				e.Answered++
			}
		}
		if err != nil {
			e.Nodes = append(e.Nodes, NodeFailure{d.nodes[i].name, err})
		}
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

// merge makes one term of what several nodes say about it: the token that most of them name, the earliest start, the
// median of what remains.
func merge(terms []driver.Term) driver.Term {
	out := terms[0]
	votes := map[driver.Token]int{}
	remaining := make([]time.Duration, 0, len(terms))
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
	out.Remaining = median(remaining)
	return out
}
