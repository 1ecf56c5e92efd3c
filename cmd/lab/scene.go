package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/cmd/lab/verifier"
	"github.com/holdlock/holdlock/cmd/lab/worker"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// A scene is one case while it is played.
type scene struct {
	ctx    context.Context
	stage  *stage
	job    string
	brief  time.Duration // the expiry of a lock that is to expire
	long   time.Duration // of one that is not
	rand   *rand.Rand
	res    *resource.Resource
	start  time.Duration
	actors []*actor

	mu     sync.Mutex
	events []Event

	believed []step // which the schedule needs to have been taken under a lock
	acks     []verifier.Ack
	replies  []worker.Reply // to acks
}

// A step is one that the resource has seen.
type step struct {
	worker string
	what   resource.What
}

// errVoid says that a schedule could not be kept because the machine was too slow.
var errVoid = errors.New("the machine was too slow for the schedule")

// An actor is one worker in a scene.
type actor struct {
	*worker.Process
	scene *scene
	name  string
	begun bool
}

func (s *scene) note(at time.Duration, who, what, text string, r worker.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := Event{At: at - s.start, Who: who, What: what, Text: text, Token: r.Token, Until: r.Until}
	if r.Until != 0 && r.Until != resource.Always {
		e.Until -= s.start
	}
	s.events = append(s.events, e)
}

// worker starts a worker.
func (s *scene) worker(name string) (*actor, error) {
	cfg := s.stage.config
	cfg.Name, cfg.Resource = name, s.res.URL
	p, err := worker.Start(cfg)
	if err != nil {
		return nil, err
	}
	a := &actor{Process: p, scene: s, name: name}
	s.actors = append(s.actors, a)
	return a, nil
}

// workers starts A, B, and so on.
func (s *scene) workers(n int) ([]*actor, error) {
	for i := range n {
		if _, err := s.worker(string(rune('A' + i))); err != nil {
			return nil, err
		}
	}
	return s.actors, nil
}

// patience is how long the lab waits for something that must happen.
const patience = 2 * time.Minute

func (a *actor) answer() (worker.Reply, error) {
	ctx, cancel := context.WithTimeout(a.scene.ctx, patience)
	defer cancel()
	return a.Answer(ctx)
}

// do has the worker take one step.
func (a *actor) do(step worker.Step) (worker.Reply, error) {
	if err := a.Send(step); err != nil {
		return worker.Reply{}, err
	}
	r, err := a.answer()
	if err != nil {
		return r, err
	}
	a.took(step, r)
	return r, nil
}

// took notes a step. What the resource has seen comes from its log instead.
func (a *actor) took(step worker.Step, r worker.Reply) {
	s := a.scene
	switch step.Do {
	case worker.Begin, worker.Write, worker.End:
		if r.Outcome == worker.OK || r.Outcome == worker.Refused {
			what := map[string]resource.What{worker.Begin: resource.Begin, worker.Write: resource.Write, worker.End: resource.End}[step.Do]
			s.acks = append(s.acks, verifier.Ack{Job: s.job, Worker: a.name, What: what, Refused: r.Outcome == worker.Refused})
			s.replies = append(s.replies, r)
		} else {
			s.note(r.At, a.name, r.Outcome, fmt.Sprintf("%s: %s", step.Do, brief(r.Text)), r)
		}
	case worker.Release:
		text := ""
		if r.Outcome != worker.OK {
			text = brief(r.Text)
		}
		s.note(r.At, a.name, Releases, text, r)
	default:
		text := brief(r.Text)
		switch r.Outcome {
		case worker.Unchecked:
			return
		case worker.Held: // by whom, the timeline shows
			text = ""
		}
		s.note(r.At, a.name, r.Outcome, text, r)
	}
}

// brief is what an error of the library says besides what the timeline shows anyway: which lock it is, and what to think of it.
func brief(text string) string {
	if _, why, ok := strings.Cut(text, " was lost: "); ok {
		why, _, _ = strings.Cut(why, ";")
		return why
	}
	if cut := []rune(text); len(cut) > 160 {
		return string(cut[:160]) + "…"
	}
	return text
}

// A request is what is asked of a lock.
type request struct {
	ttl     time.Duration
	wait    bool
	noRenew bool
}

// ask asks for the lock. Where that waits inside a server, the outcome is Waits, and settle has the end of it.
func (a *actor) ask(q request) (outcome string, err error) {
	s := a.scene
	s.note(bootclock.Now(), a.name, Asks, "", worker.Reply{})
	first := worker.Step{Do: worker.Acquire, Job: s.job, TTL: q.ttl, Wait: q.wait, NoRenew: q.noRenew}
	if err := a.Send(first); err != nil {
		return "", err
	}
	if s.stage.config.Mechanism != worker.Postgres {
		return a.settle()
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	for {
		select {
		case r, ok := <-a.Answered():
			if !ok {
				return a.settle() // which says how it ended
			}
			return a.asked(r)
		case <-ctx.Done():
			return "", fmt.Errorf("worker %s neither holds the lock nor waits for it: %w", a.name, ctx.Err())
		case <-tick.C:
		}
		waits, err := s.stage.waits(ctx, a.name)
		if err != nil {
			return "", err
		}
		if waits {
			s.note(bootclock.Now(), a.name, Waits, "for the transaction that is under way", worker.Reply{})
			return Waits, nil
		}
	}
}

// settle waits for the answer to ask.
func (a *actor) settle() (outcome string, err error) {
	r, err := a.answer()
	if err != nil {
		return "", err
	}
	return a.asked(r)
}

// asked notes the answer to ask. No schedule has a place for a store that cannot be reached in time, or for a grant that comes when
// it is over.
func (a *actor) asked(r worker.Reply) (outcome string, err error) {
	a.took(worker.Step{Do: worker.Acquire}, r)
	if r.Outcome == worker.Failed {
		return "", fmt.Errorf("%w, or the store failed: worker %s asked for the lock: %s", errVoid, a.name, r.Text)
	}
	return r.Outcome, nil
}

// hold asks for the lock, which must be free, and begins the job.
func (a *actor) hold(q request) error {
	outcome, err := a.ask(q)
	if err == nil && outcome != worker.Granted {
		err = fmt.Errorf("worker %s asked for a lock that is free and got: %s", a.name, outcome)
	}
	if err != nil {
		return err
	}
	return a.begin()
}

func (a *actor) begin() error {
	r, err := a.do(worker.Step{Do: worker.Begin})
	if err != nil {
		return err
	}
	if r.Outcome != worker.OK {
		return fmt.Errorf("worker %s could not begin: %s: %s", a.name, r.Outcome, r.Text)
	}
	a.begun = true
	a.scene.believed = append(a.scene.believed, step{a.name, resource.Begin})
	return a.believes(r)
}

// believes finds out whether a worker had reason to believe, when it was answered, that it holds its lock, as the schedule
// needs it.
func (a *actor) believes(r worker.Reply) error {
	if r.Outcome == worker.LostIt || r.Until != 0 && r.Until < r.At {
		return fmt.Errorf("%w: worker %s was to hold its lock (%s)", errVoid, a.name, r.Text)
	}
	return nil
}

// trusts has a worker ask its lock, which it must hold.
func (a *actor) trusts() error {
	r, err := a.do(worker.Step{Do: worker.Check})
	if err != nil {
		return err
	}
	return a.believes(r)
}

// write writes, without a check, ends and releases.
func (a *actor) write() error {
	_, err := a.wrote()
	return err
}

func (a *actor) wrote() (worker.Reply, error) {
	r, err := a.do(worker.Step{Do: worker.Write})
	if err != nil {
		return r, err
	}
	if r.Outcome == worker.Failed { // its transaction is over
		_, err := a.do(worker.Step{Do: worker.Release})
		return r, err
	}
	ended := resource.Done
	if r.Outcome == worker.Refused {
		ended = resource.Lost
	}
	return r, a.end(ended)
}

func (a *actor) end(how string) error {
	if _, err := a.do(worker.Step{Do: worker.End, Ended: how}); err != nil {
		return err
	}
	_, err := a.do(worker.Step{Do: worker.Release})
	return err
}

// finish writes while the lock is held, as it must be.
func (a *actor) finish() error {
	if err := a.trusts(); err != nil {
		return err
	}
	r, err := a.wrote()
	if err != nil {
		return err
	}
	a.scene.believed = append(a.scene.believed, step{a.name, resource.Write})
	return a.believes(r)
}

// heed writes if the worker does not know that its lock is lost.
func (a *actor) heed() error {
	r, err := a.do(worker.Step{Do: worker.Check})
	if err != nil {
		return err
	}
	if r.Outcome == worker.LostIt {
		return a.end(resource.Lost)
	}
	return a.write()
}

// rest plays the rest of a delivery, whatever has become of asking for the lock.
func (a *actor) rest(outcome string) (err error) {
	if outcome == Waits {
		if outcome, err = a.settle(); err != nil {
			return err
		}
	}
	if outcome != worker.Granted {
		return nil
	}
	if !a.begun {
		if err := a.begin(); err != nil {
			return err
		}
	}
	return a.finish()
}

func (a *actor) stop() error {
	err := a.Stop(a.scene.ctx)
	a.scene.note(bootclock.Now(), a.name, Stopped, "", worker.Reply{})
	return err
}

func (a *actor) goOn() error {
	a.scene.note(bootclock.Now(), a.name, Continued, "", worker.Reply{})
	return a.Continue()
}

func (a *actor) kill() {
	a.Kill()
	a.scene.note(bootclock.Now(), a.name, WasKilled, "", worker.Reply{})
}

// happen notes what is done to a server.
func (s *scene) happen(text string) { s.note(bootclock.Now(), "lab", Happens, text, worker.Reply{}) }

// close ends all workers. After a failure one may wait for a lock, so it is not asked.
func (s *scene) close(failed bool) {
	var all sync.WaitGroup
	for _, a := range s.actors {
		all.Go(func() {
			if failed {
				a.Kill()
			}
			a.Close()
		})
	}
	all.Wait()
}

// kept says whether workers had reason to believe that they hold their locks where the schedule needs it, also when what they
// sent arrived.
func (s *scene) kept(log []resource.Entry) error {
	for _, e := range log {
		if e.Until != 0 && !e.Believed() && slices.Contains(s.believed, step{e.Worker, e.What}) {
			return fmt.Errorf("%w: worker %s was to hold its lock until its %s arrives", errVoid, e.Worker, e.What)
		}
	}
	return nil
}

// timeline is what happened, in order: what workers said, what was done to them, and what the resource has logged.
func (s *scene) timeline(log []resource.Entry) []Event {
	begun := map[string]int{} // the place of each run
	n := 0
	for _, e := range log {
		r := worker.Reply{Token: e.Token, Until: e.Until}
		what, text := "", ""
		switch e.What {
		case resource.Begin:
			what, begun[e.Worker] = Begins, n
			n++
		case resource.Write:
			if what = Writes; begun[e.Worker] < n-1 {
				what = Stale
			}
		case resource.End:
			if what = Ends; e.Ended != resource.Done {
				what = GivesUp
			}
			if e.Ended == resource.Lost {
				text = "it was told that its lock is lost"
			}
		default:
			continue
		}
		if e.Refused {
			what, text = IsRefused, fmt.Sprintf("token %d, and the resource has seen %d", e.Token, e.Seen)
		}
		s.note(e.At, e.Worker, what, text, r)
	}
	if s.stage.pg != nil {
		s.rolledBack(log)
	}
	slices.SortStableFunc(s.events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return s.events
}

// rolledBack notes what workers did in transactions that were not committed: the resource knows nothing of it.
func (s *scene) rolledBack(log []resource.Entry) {
	for i, a := range s.acks {
		committed := slices.ContainsFunc(log, func(e resource.Entry) bool { return e.Worker == a.Worker && e.What == a.What })
		what := map[resource.What]string{resource.Begin: Begins, resource.Write: Writes, resource.End: Ends}[a.What]
		if !committed {
			s.note(s.replies[i].At, a.Worker, RolledBack, what+", in a transaction that is rolled back later", worker.Reply{})
		}
	}
}
