package lab

import (
	"fmt"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/cmd/lab/worker"
)

// A schedule is the order of events of a case.
type schedule struct {
	title string
	play  func(s *scene) error
}

// steps plays steps until one fails.
func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// duplicate: B is given the job while A is at work.
func duplicate(s *scene) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := a.hold(request{ttl: s.long}); err != nil {
		return err
	}
	got, err := b.ask(request{ttl: s.long})
	if err != nil {
		return err
	}
	if got == worker.Granted {
		if err := b.begin(); err != nil {
			return err
		}
	}
	return steps(a.finish, func() error { return b.rest(got) })
}

// late: B is given the job when A is through.
func late(s *scene) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := steps(func() error { return a.hold(request{ttl: s.long}) }, a.finish); err != nil {
		return err
	}
	got, err := b.ask(request{ttl: s.long})
	if err != nil {
		return err
	}
	return b.rest(got)
}

// killedBefore: A dies before its write; the queue gives the job to B, which waits.
func killedBefore(s *scene) error { return killed(s, false) }

// killedAfter: A dies after its write, before it could say so.
func killedAfter(s *scene) error { return killed(s, true) }

func killed(s *scene, after bool) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := a.hold(request{ttl: s.brief}); err != nil {
		return err
	}
	if after {
		if _, err := a.do(worker.Step{Do: worker.Write}); err != nil {
			return err
		}
	}
	a.kill()
	got, err := b.ask(request{ttl: s.long, wait: true})
	if err != nil {
		return err
	}
	return b.rest(got)
}

// killedUnasked: B is given the job while A is at work, and skips it. Then A dies, and nobody asks again.
func killedUnasked(s *scene) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := a.hold(request{ttl: s.long}); err != nil {
		return err
	}
	got, err := b.ask(request{ttl: s.long})
	if err != nil {
		return err
	}
	if err := a.trusts(); err != nil {
		return err
	}
	a.kill()
	return b.rest(got)
}

// pausedChecks: A is stopped right before its check.
func pausedChecks(s *scene) error { return paused(s, (*actor).heed) }

// pausedBlind: A is stopped between its check and its write.
func pausedBlind(s *scene) error { return paused(s, (*actor).write) }

func paused(s *scene, then func(*actor) error) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := steps(func() error { return a.hold(request{ttl: s.brief}) }, a.trusts, a.stop); err != nil {
		return err
	}
	got, err := b.ask(request{ttl: s.long, wait: true})
	if err != nil {
		return err
	}
	if got != Waits { // else it is A's turn
		if err := b.rest(got); err != nil {
			return err
		}
	}
	if err := steps(a.goOn, func() error { return then(a) }); err != nil || got != Waits {
		return err
	}
	return b.rest(got)
}

// slowChecks: A works on past its expiry, and asks before it writes.
func slowChecks(s *scene) error { return slow(s, (*actor).heed) }

// slowBlind: A works on past its expiry, and writes.
func slowBlind(s *scene) error { return slow(s, (*actor).write) }

func slow(s *scene, then func(*actor) error) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := a.hold(request{ttl: s.brief, noRenew: true}); err != nil {
		return err
	}
	got, err := b.ask(request{ttl: s.long, wait: true})
	if err != nil {
		return err
	}
	if got == worker.Granted {
		if err := b.begin(); err != nil {
			return err
		}
	}
	return steps(func() error { return then(a) }, func() error { return b.rest(got) })
}

// staleRelease: A gives up without an effect, and its release is delayed until B has the lock. Then C is given the job.
func staleRelease(s *scene) error {
	w, err := s.workers(3)
	if err != nil {
		return err
	}
	a, b, c := w[0], w[1], w[2]
	err = steps(
		func() error { return a.hold(request{ttl: s.brief, noRenew: true}) },
		func() error {
			_, err := a.do(worker.Step{Do: worker.End, Ended: resource.Failed})
			return err
		},
		a.stop)
	if err != nil {
		return err
	}
	got, err := b.ask(request{ttl: s.long, wait: true})
	if err != nil {
		return err
	}
	if got == worker.Granted {
		if err := b.begin(); err != nil {
			return err
		}
	}
	if err := a.goOn(); err != nil {
		return err
	}
	if _, err := a.do(worker.Step{Do: worker.Release}); err != nil {
		return err
	}
	if got == Waits {
		if got, err = b.settle(); err != nil {
			return err
		}
		if got == worker.Granted {
			if err := b.begin(); err != nil {
				return err
			}
		}
	}
	third, err := c.ask(request{ttl: s.long})
	if err != nil {
		return err
	}
	if third == Waits {
		return steps(func() error { return b.rest(got) }, func() error { return c.rest(third) })
	}
	return steps(func() error { return c.rest(third) }, func() error { return b.rest(got) })
}

// emptied: A holds the lock when nodes of the store are killed and start again; then B asks.
func emptied(s *scene) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := a.hold(request{ttl: s.long}); err != nil {
		return err
	}
	what, err := s.stage.restart(s.ctx, s.rand)
	if err != nil {
		return fmt.Errorf("restarting servers: %w", err)
	}
	s.happen(what)
	return underHolder(s, a, b)
}

// failedOver: A holds the lock when the primary dies, of whose writes the replica has got nothing for a while.
func failedOver(s *scene) error {
	w, err := s.workers(2)
	if err != nil {
		return err
	}
	a, b := w[0], w[1]
	if err := s.stage.stopReplication(s.ctx); err != nil {
		return fmt.Errorf("stopping replication: %w", err)
	}
	s.happen("replication stops")
	if err := a.hold(request{ttl: s.long}); err != nil {
		return err
	}
	if err := s.stage.failOver(s.ctx); err != nil {
		return fmt.Errorf("failing over: %w", err)
	}
	s.happen("the primary is killed, the replica takes over")
	return underHolder(s, a, b)
}

// underHolder: B asks, and both go on as their locks let them.
func underHolder(s *scene, a, b *actor) error {
	got, err := b.ask(request{ttl: s.long})
	if err != nil {
		return err
	}
	if got == worker.Granted {
		if err := b.begin(); err != nil {
			return err
		}
	}
	return steps(a.finish, func() error { return b.rest(got) })
}
