package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/quorumhold"
)

// patience is a wait for the lock that also outlasts a store which cannot be reached. The library fails at once when the
// first call meets a broken store, since a wrong password must not look like a long queue; a command that was told to wait,
// often from a crontab and right after a reboot, tells what the store said and goes on.
type patience struct {
	s     *session
	wait  time.Duration
	until time.Time // unless wait is 0 or Forever
	told  bool
	tries int
	last  error // what the store said last
}

const retryFirst, retryLast = 100 * time.Millisecond, 2 * time.Second

func (s *session) patience(wait time.Duration) *patience {
	return &patience{s: s, wait: wait, until: time.Now().Add(wait)}
}

// left is how long is left to wait, as --wait says it.
func (p *patience) left() time.Duration {
	if p.wait == 0 || p.wait == holdlock.Forever {
		return p.wait
	}
	return max(time.Until(p.until), 1) // 0 would be no wait at all
}

// waitOver is the end of --wait, of which it is the length.
type waitOver time.Duration

func (w waitOver) Error() string { return fmt.Sprintf("--wait %s is over", time.Duration(w)) }

// Is makes it the end of a context.
func (w waitOver) Is(target error) bool { return target == context.DeadlineExceeded }

// open opens the store, which for some stores means to reach it.
func (p *patience) open() (*holdlock.Client, error) {
	for {
		c, err := opened(p.s, func(ctx context.Context) (*holdlock.Client, error) {
			return p.s.g.open(ctx, baseName(p.s.g.argv), p.s, p.s.counts)
		})
		if err == nil {
			return c, nil
		}
		if err := p.pause(err); err != nil {
			return nil, err
		}
	}
}

// acquire gets the lock.
func (p *patience) acquire() (*holdlock.Lease, error) {
	for {
		lease, err := p.s.acquire(p.left())
		if err == nil {
			return lease, nil
		}
		if err := p.pause(err); err != nil {
			return nil, err
		}
	}
}

// pause returns nil when it is time to try again, or the error that ends the wait.
func (p *patience) pause(failed error) error {
	if p.wait == 0 || !mayPass(failed) {
		return failed
	}
	if errors.As(failed, new(*holdlock.StoreError)) || p.last == nil {
		p.last = failed
	}
	d := min(retryLast, retryFirst<<min(p.tries, 10))
	d = d/2 + rand.N(d/2+1)
	p.tries++
	if p.wait != holdlock.Forever {
		left := time.Until(p.until)
		if left <= 0 {
			if errors.As(p.last, new(waitOver)) { // it says so
				return p.last
			}
			return fmt.Errorf("%w; gave up waiting: %w", p.last, waitOver(p.wait))
		}
		d = min(d, left)
	}
	if !p.told {
		p.told = true
		how := "until --wait is over"
		if p.wait == holdlock.Forever {
			how = "for as long as it takes"
		}
		p.s.g.say("retry", fmt.Sprintf("the store of lock %s cannot be used and is tried again %s: %v", readable(p.s.r.Lock), how, failed), nil)
	}
	return p.s.sleep(d)
}

// sleep returns nil when the time is over, or how a signal has ended it.
func (s *session) sleep(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	_, err := heed(s, t.C)
	return err
}

// opened returns what open opens, or how a signal has ended that. Then nobody waits for it, however it hangs: this process ends.
func opened[T any](s *session, open func(context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type answer struct {
		v   T
		err error
	}
	got := make(chan answer, 1)
	go func() {
		v, err := open(ctx)
		got <- answer{v, err}
	}()
	a, err := heed(s, got)
	if err != nil {
		return v, err
	}
	return a.v, a.err
}

// heed waits for what comes, and returns how a signal has ended that.
func heed[T any](s *session, comes <-chan T) (v T, err error) {
	for {
		select {
		case v := <-comes:
			return v, nil
		case sig := <-s.signals:
			if n, ok := sig.(syscall.Signal); ok && slices.Contains(ending, n) {
				return v, s.endedBy(n)
			}
		}
	}
}

// endedBy is the end of a wait by a signal.
func (s *session) endedBy(n syscall.Signal) error {
	text := "ended by signal %s before lock %s was ours; nothing was run"
	if s.again {
		text = "ended by signal %s before lock %s was ours again; the command had run, and was ended when the lock was lost"
	}
	return &exitError{code: 128 + int(n), kind: "signal", err: fmt.Errorf(text, n, readable(s.r.Lock))}
}

// mayPass says whether an error is about a store that may be usable later without anybody doing something here: it is not
// reached, starts, is full or has lost its majority. A store that answers that it does not let us in is not.
func mayPass(err error) bool {
	if err == nil {
		return false
	}
	if code, _ := classify(err); code != exitUnavailable || errors.Is(err, holdlock.ErrUnsupported) ||
		errors.Is(err, holdlock.ErrShutdown) {
		return false
	}
	if errors.As(err, new(*quorumhold.NoMajorityError)) || lasts(err) {
		return !lasts(err)
	}
	var ended *pgconn.PgError
	if errors.As(err, &ended) && (strings.HasPrefix(ended.Code, "57P") || strings.HasPrefix(ended.Code, "08")) {
		return true // the server goes down or comes up, or somebody has ended the connection
	}
	var network *pgconn.ConnectError
	var store *holdlock.StoreError
	return errors.As(err, &store) || errors.As(err, &network) || errors.Is(err, driver.ErrAbstains) ||
		errors.Is(err, context.DeadlineExceeded)
}

// lasts is shutOut, also for a store of several: a few nodes with a wrong password do not matter, a majority does.
func lasts(err error) bool {
	var many *quorumhold.NoMajorityError
	if !errors.As(err, &many) {
		return shutOut(err)
	}
	shut := 0
	for _, n := range many.Nodes {
		if shutOut(n.Err) {
			shut++
		}
	}
	return shut > many.Of-many.Need
}

// shutOut says whether the store has answered, and somebody has to change something before it will do.
func shutOut(err error) bool {
	if errors.Is(err, driver.ErrDenied) || errors.Is(err, pghold.ErrSchema) || errors.Is(err, quorumhold.ErrMismatch) {
		return true
	}
	for _, prefix := range []string{"NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	var reply redis.Error
	if errors.As(err, &reply) && strings.Contains(reply.Error(), "The user executing the script can't") { // NOPERM in a script
		return true
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && len(refused.Code) == 5 {
		// Who we are, what we may, and that there is no such database, schema, table or function.
		return slices.Contains([]string{"28", "3D", "3F", "42"}, refused.Code[:2])
	}
	return false
}
