//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// What the sharing of calls promises, and the rules without which it would not be kept: each is switched off in turn, and the
// same trial has to see it.
func TestSharingKeepsItsPromises(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, trial := range sharingTrials {
		t.Run(trial.name, func(t *testing.T) {
			if wrong := playSharing(t, broken{}, trial.run); len(wrong) > 0 {
				t.Errorf("%s", strings.Join(wrong, "\n"))
			}
		})
		for name, off := range trial.rules {
			var b broken
			off(&b)
			if b == (broken{}) {
				t.Fatalf("%s switches off nothing", name)
			}
			seen[fmt.Sprintf("%+v", b)] = true
			t.Run(trial.name+"/without "+name, func(t *testing.T) {
				wrong := playSharing(t, b, trial.run)
				if len(wrong) == 0 {
					t.Error("nothing was wrong, so the trial tells nothing about this rule")
				}
				t.Logf("seen: %s", strings.Join(wrong, "; "))
			})
		}
	}
	if n := reflect.TypeFor[broken]().NumField(); len(seen) != n {
		t.Errorf("%d rules of %d are tried", len(seen), n)
	}
}

type rules map[string]func(*broken)

type sharingTrial struct {
	name  string
	run   func(*sharing)
	rules rules // that it sees the lack of
}

var sharingTrials = []sharingTrial{
	{"each has his own answer", ownAnswers, rules{
		"telling scripts apart": func(b *broken) { b.mixed = true },
		"an answer for each":    func(b *broken) { b.same = true },
	}},
	{"an end is an end", oneEnd, rules{
		"one end for each": func(b *broken) { b.twice = true },
	}},
	{"who gives up in the queue is not sent", givesUpQueued, rules{
		"taking him out of the queue": func(b *broken) { b.stays = true },
		"telling that it is certain":  func(b *broken) { b.vague = true },
	}},
	{"who runs out of time in the queue is not sent", runsOutQueued, rules{
		"taking him out of the queue": func(b *broken) { b.stays = true },
		"telling that it is certain":  func(b *broken) { b.vague = true },
	}},
	{"who gives up on the way harms nobody", givesUpOnTheWay, rules{
		"a context of its own":         func(b *broken) { b.own = true },
		"telling that nothing is sure": func(b *broken) { b.sure = true },
	}},
	{"who runs out of time on the way harms nobody", runsOutOnTheWay, rules{
		"the last deadline":            func(b *broken) { b.first = true },
		"telling that nothing is sure": func(b *broken) { b.sure = true },
	}},
	{"flights that hang are replaced", hangs, rules{
		"looking for late flights": func(b *broken) { b.patient = true },
	}},
	{"so many hang at most", hangForEver, rules{
		"a bound": func(b *broken) { b.endless = true },
	}},
	{"who was replaced does not go on", replacedReturns, rules{
		"ending late flights": func(b *broken) { b.returned = true },
	}},
	{"what the server has forgotten is sent again, for those alone", forgotten, rules{
		"sending it again":           func(b *broken) { b.forgotten = true },
		"leaving the others alone":   func(b *broken) { b.everybody = true },
		"keeping the client from it": func(b *broken) { b.bare = true },
	}},
	{"nothing is sent after close", closes, rules{
		"refusing calls":          func(b *broken) { b.open = true },
		"emptying the queue":      func(b *broken) { b.pending = true },
		"telling what is certain": func(b *broken) { b.vague = true },
		"telling what is not":     func(b *broken) { b.sure = true },
	}},
	{"budgets end in time", budgetsEnd, rules{
		"looking for them":           func(b *broken) { b.forever = true },
		"looking for sooner ones":    func(b *broken) { b.later = true },
		"looking for those that are": func(b *broken) { b.once = true },
	}},
	{"nobody waits for company", company, rules{
		"setting off at once": func(b *broken) { b.company = true },
	}},
	{"a crowd sets off at once, in parts", crowds, rules{
		"a flight for the rest": func(b *broken) { b.rest = true },
		"a greatest length":     func(b *broken) { b.long = true },
	}},
}

// Callers with calls of several kinds go together, and each is told what was answered to him.
func ownAnswers(r *sharing) {
	r.fill()
	calls := map[string]*sharedCall{}
	for _, c := range []struct {
		s   *script
		arg string
	}{
		{playedEcho, "a"},
		{playedTurns, "turn 1"},
		{playedTurns2, "turn 2"},
		{playedTurns, "general 3"},
		{playedEcho, "b"},
		{playedTurns, "turn 4"},
		{playedTurns, "refused 5"},
		{playedTurns2, "general 6"},
		{playedTurns, "general 7"},
		{playedOther, "c"},
	} {
		calls[c.arg] = r.call(c.s, c.arg)
	}
	r.open()
	for arg, a := range calls {
		r.want(a.back(), "%s has no answer", arg)
		switch t := a.r.turn; {
		case strings.HasPrefix(arg, "refused"):
			r.want(a.err != nil && strings.Contains(a.err.Error(), arg), "%s: %v", arg, a.err)
		case a.err != nil:
			r.complain("%s: %v", arg, a.err)
		case strings.HasPrefix(arg, "general"):
			r.want(t.word == wordGeneral && t.rest == arg, "%s was told %q %v", arg, t.word, t.rest)
		case strings.HasPrefix(arg, "turn"):
			want := byte('n')
			if a.r.script == playedTurns2 {
				want = wordKept
			}
			r.want(t.word == want && t.now == 1 && t.rest == nil, "%s was told %q %v", arg, t.word, t.rest)
		default:
			r.want(a.reply == arg, "%s was told %v", arg, a.reply)
		}
		r.want(r.did(arg) == 1, "%s was done %d times", arg, r.did(arg))
	}
}

// An answer that has come is not lost to an end of the wait in the same moment.
func oneEnd(r *sharing) {
	m := &member{done: make(chan struct{}, 1)}
	r.s.settle(m, answered)
	r.s.leave(m)
	r.want(m.state.Load() == answered, "answered, and then told that it was not")
}

func givesUpQueued(r *sharing) {
	r.fill()
	a := r.call(playedEcho, "given up")
	b := r.call(playedEcho, "stays")
	a.end()
	synctest.Wait()
	r.want(errors.Is(a.err, context.Canceled) && errors.Is(a.err, driver.ErrNotApplied), "it was told %v", a.err)
	r.open()
	r.want(r.did("given up") == 0, "it was sent all the same")
	r.want(b.back() && b.err == nil, "who came after him: %v", b.err)
}

func runsOutQueued(r *sharing) {
	r.fill()
	a := r.within(flightIsLate/2, "ran out")
	b := r.within(time.Minute, "stays")
	time.Sleep(flightIsLate * 3 / 4)
	synctest.Wait()
	r.want(errors.Is(a.err, context.DeadlineExceeded) && errors.Is(a.err, driver.ErrNotApplied), "it was told %v", a.err)
	r.open()
	r.want(r.did("ran out") == 0, "it was sent all the same")
	r.want(b.back() && b.err == nil, "who came after him: %v", b.err)
}

func givesUpOnTheWay(r *sharing) {
	r.fill()
	a := r.call(playedEcho, "given up")
	b := r.call(playedEcho, "stays")
	r.shutGate()
	r.openFirst()
	r.want(r.did("given up") == 1 && r.did("stays") == 1, "they are not under way")
	a.end()
	synctest.Wait()
	r.want(errors.Is(a.err, context.Canceled) && !errors.Is(a.err, driver.ErrNotApplied), "it was done, and told %v", a.err)
	r.open()
	r.want(b.back() && b.err == nil, "his companion: %v", b.err)
}

func runsOutOnTheWay(r *sharing) {
	r.fill()
	a := r.within(time.Second, "ran out")
	b := r.within(time.Minute, "stays")
	r.shutGate()
	r.openFirst()
	r.want(r.did("ran out") == 1 && r.did("stays") == 1, "they are not under way")
	time.Sleep(2 * time.Second)
	synctest.Wait()
	r.want(a.took == time.Second && errors.Is(a.err, context.DeadlineExceeded), "it was told %v after %v", a.err, a.took)
	r.want(!errors.Is(a.err, driver.ErrNotApplied), "it was done, and told %v", a.err)
	r.open()
	r.want(b.back() && b.err == nil, "his companion: %v", b.err)
}

func hangs(r *sharing) {
	r.deaf = true
	r.fill()
	r.letThrough()
	a := r.within(time.Minute, "behind them")
	time.Sleep(time.Hour)
	synctest.Wait()
	r.want(a.err == nil && a.took <= 2*flightIsLate, "behind flights that hang: %v, %v", a.took, a.err)
	b := r.within(time.Minute, "after them")
	r.want(b.back() && b.err == nil && b.took == 0, "later: %v, %v", b.took, b.err)
}

func hangForEver(r *sharing) {
	r.deaf = true
	r.shutGate()
	most, refused := 0, 0
	for i := range 3 * maxHung {
		a := r.within(2*flightIsLate, fmt.Sprint("round ", i))
		b := r.within(2*flightIsLate, fmt.Sprint("as well ", i))
		time.Sleep(3 * flightIsLate)
		synctest.Wait()
		if errors.Is(a.err, errHung) {
			refused++
			r.want(errors.Is(a.err, driver.ErrNotApplied) && r.did(fmt.Sprint("round ", i)) == 0, "refused, and sent")
		}
		most = max(most, r.underWay())
		_ = b
	}
	r.want(refused > 0, "nobody was refused")
	r.want(most <= maxHung+maxFlights, "%d hung", most)
	r.open()
	a := r.within(time.Minute, "well again")
	r.want(a.back() && a.err == nil, "when they have returned: %v", a.err)
}

func replacedReturns(r *sharing) {
	r.deaf = true
	r.fill()
	r.shutGate() // for their successors
	r.call(playedEcho, "behind")
	time.Sleep(flightIsLate * 3 / 2)
	synctest.Wait()
	for i := range maxFlights {
		r.call(playedEcho, fmt.Sprint("more ", i)) // the last one queues
	}
	r.want(r.underWay() == 2*maxFlights, "%d are under way, so this tells nothing", r.underWay())
	r.openFirst()
	r.want(r.underWay() <= maxFlights, "%d are under way when those that were late have returned", r.underWay())
}

func forgotten(r *sharing) {
	r.fill()
	r.unknown[playedOther.sha] = true
	a, f, b := r.call(playedEcho, "a"), r.call(playedOther, "forgotten"), r.call(playedEcho, "b")
	r.open()
	for arg, c := range map[string]*sharedCall{"a": a, "forgotten": f, "b": b} {
		r.want(c.back() && c.err == nil && c.reply == arg, "%s: %v, %v", arg, c.reply, c.err)
		r.want(r.did(arg) == 1, "%s was done %d times", arg, r.did(arg))
	}
	r.unknown[playedTurns.sha] = true
	c := r.call(playedTurns, "alone")
	r.want(c.back() && c.err == nil && c.r.turn.word == 'n', "alone: %v, %v", c.r.turn, c.err)
	r.want(r.did("alone") == 1, "done %d times", r.did("alone"))
}

func closes(r *sharing) {
	first := r.fill()
	q := r.call(playedEcho, "queued")
	r.s.close()
	synctest.Wait()
	r.want(errors.Is(q.err, driver.ErrClosed) && errors.Is(q.err, driver.ErrNotApplied), "who queued was told %v", q.err)
	for _, a := range first {
		r.want(errors.Is(a.err, driver.ErrClosed) && !errors.Is(a.err, driver.ErrNotApplied), "who was under way was told %v", a.err)
	}
	late := r.call(playedEcho, "late")
	r.want(errors.Is(late.err, driver.ErrClosed) && errors.Is(late.err, driver.ErrNotApplied), "who came later was told %v", late.err)
	r.open()
	direct := r.within(time.Minute, "direct")
	r.want(errors.Is(direct.err, driver.ErrClosed), "who came last was told %v", direct.err)
	for _, arg := range []string{"queued", "late", "direct"} {
		r.want(r.did(arg) == 0, "%s was sent", arg)
	}
}

func budgetsEnd(r *sharing) {
	r.deaf = true
	r.fill()
	calls := map[time.Duration]*sharedCall{}
	for _, seconds := range []time.Duration{10, 1, 3} {
		budget := seconds * time.Second
		calls[budget] = r.within(budget, budget.String())
	}
	short := flightIsLate / 2
	calls[short] = r.within(short, short.String()) // while it queues
	time.Sleep(time.Minute)
	synctest.Wait()
	for budget, a := range calls {
		r.want(a.took == budget && errors.Is(a.err, context.DeadlineExceeded), "a budget of %v ended after %v: %v", budget, a.took, a.err)
	}
}

func company(r *sharing) {
	r.shutGate()
	for i := range maxFlights {
		arg := fmt.Sprint(i)
		r.call(playedEcho, arg)
		r.want(r.did(arg) == 1, "call %d waits for the others", i)
	}
	r.call(playedEcho, "too many")
	r.want(r.did("too many") == 0, "there is no bound to what is under way")
}

func crowds(r *sharing) {
	r.shutGate()
	const n = maxFlights*maxPipeline - 10
	all := r.crowd(n)
	sent := 0
	for i := range n {
		sent += r.did(fmt.Sprint(i))
	}
	r.want(sent == n, "%d of %d have set off", sent, n)
	r.want(slices.Max(r.sizes) <= maxPipeline, "a pipeline of %d", slices.Max(r.sizes))
	r.open()
	for i, a := range all {
		r.want(a.back() && a.err == nil && a.reply == fmt.Sprint(i), "%d: %v, %v", i, a.reply, a.err)
	}
}

// The parts of an answer to several turns go to those whose they are. Twins that count wrongly are found out.
func TestAnswersOfTurns(t *testing.T) {
	t.Parallel()
	type answers func(members []*member, reply any, err error)
	wrong := func(answer answers) string {
		members := []*member{{}, {}, {}, {}}
		answer(members, []any{"0000000000000007n?t0000000000000005?", "second", []any{"!", "ERR fourth"}}, nil)
		for i, want := range []turn{{word: 'n', now: 7}, {word: '?', now: 7, rest: "second"}, {word: 't', now: 7, last: 5}, {word: '?', now: 7, rest: []any{"!", "ERR fourth"}}} {
			if !reflect.DeepEqual(members[i].turn, want) || (members[i].err != nil) != (i == 3) {
				return fmt.Sprintf("%d: %+v, %v", i, members[i].turn, members[i].err)
			}
		}
		for _, reply := range []any{
			nil, "", "0000000000000007nK", "0000000000000007nKKt000000000000005",
			[]any{"0000000000000007n??K", "one alone"},
			[]any{"0000000000000007nKnK", "too many"},
			"0000000000000007nKnKK", 7,
		} {
			answer(members, reply, nil)
			for i, m := range members {
				if m.err == nil {
					return fmt.Sprintf("%d takes %v for an answer", i, reply)
				}
			}
		}
		lost := errors.New("connection reset")
		answer(members, nil, lost)
		for i, m := range members {
			if !errors.Is(m.err, lost) {
				return fmt.Sprintf("%d was told %v", i, m.err)
			}
		}
		return ""
	}
	if w := wrong(answerTurns); w != "" {
		t.Error(w)
	}
	for name, twin := range map[string]answers{
		"parts by the place of the caller": func(members []*member, reply any, err error) {
			answerTurns(members, reply, err)
			if parts, ok := reply.([]any); ok && len(parts) > 1 {
				for i, m := range members {
					if m.turn.word == wordGeneral {
						m.turn.rest = parts[1+i%(len(parts)-1)]
					}
				}
			}
		},
		"one failure is that of all": func(members []*member, reply any, err error) {
			answerTurns(members, reply, err)
			for _, m := range members {
				m.err = errors.Join(m.err, members[len(members)-1].err)
			}
		},
		"what does not add up is taken": func(members []*member, reply any, err error) {
			answerTurns(members, reply, err)
			if _, ok := reply.([]any); ok && err == nil {
				for _, m := range members[:3] {
					m.err = nil
				}
			}
		},
	} {
		if wrong(twin) == "" {
			t.Errorf("%s: nothing was wrong, so the test tells nothing", name)
		}
	}
}

var _ redis.Error = refusal("")
