package holdtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/internal/testhook"
	"github.com/holdlock/holdlock/memhold"
)

// patience is how long to wait for what should happen soon. It is long because it only passes when a test fails.
const patience = 10 * time.Second

// A Client is a *holdlock.Client on a store of its own, with the means to make things happen to it. Give the embedded
// Client to the code under test. Its methods are safe for concurrent use.
type Client struct {
	*holdlock.Client
	tb      testing.TB
	hook    testhook.Client
	faults  *faultdriver.Driver // between Client and the store
	store   *memhold.Driver     // the same store without faults: what really stands
	another *holdlock.Client    // another program on it
	lapsed  sync.Map            // the nonces of terms that Expire ended

	mu     sync.Mutex
	theirs []*holdlock.Lease // what HoldByAnother holds
}

// NewClient returns a client on a fresh store. opts may be nil. When the test ends the client is shut down, and the test
// fails if a key is left held or if work under Do does not end. A test that shuts the client down by itself answers for
// what is left.
func NewClient(tb testing.TB, opts *holdlock.ClientOptions) *Client {
	tb.Helper()
	store := &memhold.Options{Store: memhold.NewStore()}
	c := &Client{tb: tb, faults: faultdriver.New(memhold.NewDriver(store), nil), store: memhold.NewDriver(store)}
	ours := &testDriver{Driver: c.faults, lapsed: &c.lapsed}
	theirs := &testDriver{Driver: faultdriver.New(memhold.NewDriver(store), nil), lapsed: &c.lapsed}
	var err1, err2 error
	c.Client, err1 = holdlock.NewClient(ours, opts)
	c.another, err2 = holdlock.NewClient(theirs, &holdlock.ClientOptions{Label: "another program"})
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatalf("holdtest: %v", err)
	}
	c.hook = ours.client
	tb.Cleanup(c.finish)
	return c
}

// finish shuts down and looks for what is left.
func (c *Client) finish() {
	c.tb.Helper()
	c.SetStore(Up)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, l := range c.theirs {
		_ = l.Release(ctx)
	}
	_ = c.another.Shutdown(ctx)
	if err := c.Shutdown(ctx); errors.Is(err, holdlock.ErrShutdown) {
		return
	}
	terms, err := c.store.List(context.Background(), "", "", 100)
	if err != nil {
		c.tb.Errorf("holdtest: looking for leaks: %v", err)
	}
	leaks := 0
	for i := range terms {
		if t := &terms[i]; !t.Cooling {
			leaks++
			c.tb.Errorf("holdtest: lock %q (token %d) is still held after the test: release every lease, "+
				"and wait for the work under Do", t.Key, t.Token)
		}
	}
	if ctx.Err() != nil && leaks == 0 {
		c.tb.Errorf("holdtest: work under Do is still running %s after the test", patience)
	}
}

func describe(name, key string) string {
	if key == "" {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q key %q", name, key)
}
