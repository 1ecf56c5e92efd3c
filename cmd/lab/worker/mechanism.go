package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencehttp"
)

// A mechanism is one way of keeping a job from running twice, as one process uses it.
type mechanism interface {
	// acquire asks for the lock of a job. The error is one that outcomeOf knows.
	acquire(ctx context.Context, s Step) (hold, error)
	close()
}

// A hold is what acquire has granted.
type hold interface {
	token() uint64
	until() time.Duration // see resource.Entry
	check() error         // nil, errUnchecked, or that the lock is lost
	send(ctx context.Context, e resource.Entry) error
	release(ctx context.Context) error
}

var (
	errUnchecked = errors.New("this lock has nothing to check")
	errAlready   = errors.New("the job is done")
)

// outcomeOf says in one word what an error means.
func outcomeOf(err error) Reply {
	word := Failed
	switch {
	case errors.Is(err, errUnchecked):
		word = Unchecked
	case errors.Is(err, errAlready):
		word = Already
	case errors.Is(err, holdlock.ErrHeld):
		word = Held
	case errors.Is(err, fence.ErrStale):
		word = Refused
	case errors.Is(err, holdlock.ErrLost):
		word = LostIt
	case errors.Is(err, driver.ErrAbstains): // the error has the words of each node
		return Reply{Outcome: Unavailable, Text: "a majority of nodes has restarted and abstains until all that it forgot is over"}
	}
	return Reply{Outcome: word, Text: err.Error()}
}

// open makes the mechanism of a configuration. It connects to nothing yet.
func open(cfg Config) (mechanism, error) {
	post := &poster{url: cfg.Resource, lock: lockName, client: &http.Client{}}
	if cfg.Mechanism == Fenced {
		post.client.Transport = &fencehttp.Transport{}
	}
	switch cfg.Mechanism {
	case NoLock:
		return noLock{post}, nil
	case Naive:
		return &naive{post: post, client: dial(cfg.Redis[0])}, nil
	case Redis, Redlock, Fenced, NoRule:
		return openLeases(cfg, post)
	case Postgres:
		return openTransactions(cfg)
	}
	return nil, fmt.Errorf("there is no mechanism %q", cfg.Mechanism)
}

// lockName is the lock of all jobs; each job is a key of it.
const lockName = "lab"

// poster sends to the resource.
type poster struct {
	url, lock string
	client    *http.Client
}

func (p *poster) send(ctx context.Context, e resource.Entry) error {
	if e.Token != 0 {
		// Without the check that a claim of a lease brings along: whether it is checked is a step of its own.
		ctx = fence.WithClaim(ctx, fence.Claim{Name: p.lock, Key: e.Job, Token: holdlock.Token(e.Token)})
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+e.Values(), nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := fencehttp.Stale(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("the resource answers %s: %s", resp.Status, text)
	}
	return nil
}

// noLock grants everything.
type noLock struct{ *poster }

func (n noLock) acquire(context.Context, Step) (hold, error) { return n, nil }
func (noLock) close()                                        {}
func (noLock) token() uint64                                 { return 0 }
func (noLock) until() time.Duration                          { return 0 }
func (noLock) check() error                                  { return errUnchecked }
func (noLock) release(context.Context) error                 { return nil }
