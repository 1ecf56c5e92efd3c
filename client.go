package holdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Token, Holder and Traits are the driver's types under the names that users of locks see.
type (
	// Token is the fencing token of a lease; it rises with every lease of a key.
	Token = driver.Token
	// Holder says who holds a lease. It is for people: nothing is decided by it.
	Holder = driver.Holder
	// Traits are facts about a store: how far it excludes, what it can forget, what its tokens are worth.
	Traits = driver.Traits
)

// ClientOptions are the settings of a Client. The zero value, and nil, are good defaults.
type ClientOptions struct {
	// Label is what this program calls itself in messages and lists. Default: the name of its executable.
	Label string
	// Logger receives warnings about lapses, losses and failing renewals, and the rest at debug level. nil is silent.
	Logger *slog.Logger
	// Observer receives every event. nil is none.
	Observer Observer
	// Recorder counts what happens, for reviews. It serves one client, and one that has served another is refused (ErrInvalid). nil is none: then no review knows of these locks.
	Recorder Recorder
	// CallTimeout bounds every call of the store; a hung store costs this much and no more. Renewals are bounded further,
	// by a quarter of the TTL, so that there is time for another try. Default 5 s.
	CallTimeout time.Duration
	// ConfirmGrants makes Acquire and Do confirm a grant that was handed over in line before they return, so that the lease
	// begins with its full TTL: one more call. Without it such a lease begins with up to driver.Provisional (3 s), which its first
	// renewal extends. It is for callers who do not look at the lease's end again, or give it more than that to end in.
	ConfirmGrants bool
}

// A Client holds locks in one store. Open one per store and program, with the Open function of the store's package, and
// shut it down at the end. Its methods are safe for concurrent use.
type Client struct {
	drv      driver.Driver
	batch    driver.BatchRenewer // the driver's abilities; nil if it lacks one
	line     *line               // nil if the store keeps no waiting lines
	waiter   driver.Waiter
	lister   driver.Lister
	breaker  driver.Breaker
	losses   driver.LossNotifier
	journal  driver.Journal
	traits   driver.Traits
	holder   driver.Holder
	log      *slog.Logger
	observer Observer
	recorder Recorder
	timeout  time.Duration
	confirm  bool // ConfirmGrants, or the store needs it
	clock    clock
	keeper   *keeper
	undoer   *undoer
	hung     hungCalls

	closing chan struct{} // closed when Shutdown begins: nothing new is granted, waits end
	mu      sync.Mutex
	shut    bool
	open    int           // leases that are not over, waits, and Do calls whose work has not returned
	drained chan struct{} // closed when shut and open is 0
}

// NewClient makes a client on a driver. Programs use the Open function of a store's package instead; this is for those
// packages and for tests. The client owns the driver from here on and closes it in Shutdown; if there is an error the caller still
// does. That is an *InvalidError, or what the Recorder says.
func NewClient(drv driver.Driver, opts *ClientOptions) (*Client, error) {
	if opts == nil {
		opts = &ClientOptions{}
	}
	if opts.CallTimeout < 0 {
		return nil, &InvalidError{"CallTimeout", opts.CallTimeout.String(), "0 for the default, or a positive duration"}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	c := &Client{
		drv: drv, traits: drv.Traits(), log: opts.Logger, observer: opts.Observer, recorder: opts.Recorder,
		holder:  driver.Holder{Host: host, PID: os.Getpid(), Label: opts.Label},
		timeout: opts.CallTimeout, confirm: opts.ConfirmGrants || drv.Traits().Forgets == driver.OnFailover, clock: realClock(),
		closing: make(chan struct{}), drained: make(chan struct{}),
	}
	c.batch, _ = driver.As[driver.BatchRenewer](drv)
	if queue, ok := driver.As[driver.Queue](drv); ok {
		c.line = newLine(c, queue)
	}
	c.waiter, _ = driver.As[driver.Waiter](drv)
	c.lister, _ = driver.As[driver.Lister](drv)
	c.breaker, _ = driver.As[driver.Breaker](drv)
	c.losses, _ = driver.As[driver.LossNotifier](drv)
	c.journal, _ = driver.As[driver.Journal](drv)
	if c.timeout == 0 {
		c.timeout = 5 * time.Second
	}
	if c.holder.Label == "" {
		c.holder.Label = filepath.Base(os.Args[0])
	}
	if c.recorder != nil {
		ledger, _ := driver.As[driver.Ledger](drv)
		if err := c.recorder.Start(ledger, host); err != nil {
			return nil, err
		}
	}
	c.keeper = newKeeper(c)
	c.undoer = newUndoer(c)
	c.hookTests()
	return c, nil
}

// Traits returns facts about the store: its location, what it can forget, what its tokens are worth.
func (c *Client) Traits() Traits { return c.traits }

// begin counts one thing that Shutdown has to wait for.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return ErrShutdown
	}
	c.open++
	return nil
}

func (c *Client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.shut && c.open == 0 {
		close(c.drained)
	}
}

// running returns ErrShutdown if the client has ended.
func (c *Client) running() error {
	err := c.begin()
	if err == nil {
		c.end()
	}
	return err
}

// gone is the error of a caller whose ctx has ended. It is ErrShutdown as well on a client that is shut down, so that an adapter can find that
// out without asking the store.
func (c *Client) gone(ctx context.Context) error {
	select {
	case <-c.closing:
		return fmt.Errorf("%w; %w", ErrShutdown, waitError(ctx))
	default:
		return waitError(ctx)
	}
}

// also runs f beside the caller, who is counted by begin. Shutdown waits for f too.
func (c *Client) also(f func()) {
	c.mu.Lock()
	c.open++
	c.mu.Unlock()
	go func() {
		defer c.end()
		f()
	}()
}

// Shutdown ends the client. It refuses new leases and ends waits at once, waits for the work of Do calls and for manual
// leases to be released, and closes the store. If ctx ends first, the leases that are left end with LossShutdown and are
// no longer renewed: their keys become free when their TTL has passed, not before, because their work may still run. The
// error then says how many there were. No goroutine of the client is left in either case, except calls of a store that
// hangs against its contract. A second call returns ErrShutdown.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	if c.shut {
		c.mu.Unlock()
		return ErrShutdown
	}
	c.shut = true
	close(c.closing)
	if c.open == 0 {
		close(c.drained)
	}
	c.mu.Unlock()

	var err error
	select {
	case <-c.drained:
	case <-ctx.Done():
		if n := c.keeper.endAll(); n > 0 {
			err = fmt.Errorf("holdlock: shut down with leases still held: %d, free after their TTL: %w",
				n, waitError(ctx))
		}
	}
	if c.line != nil {
		c.line.stop()
	}
	c.undoer.stop(ctx)
	c.keeper.stop()
	if c.recorder != nil {
		err = errors.Join(err, c.stopRecorder(ctx))
	}
	return errors.Join(err, c.drv.Close())
}

// recorderGrace is how long counts may take to be written when a Shutdown is late already.
const recorderGrace = 500 * time.Millisecond

// stopRecorder gives the recorder as much time as a call, and if ctx ends meanwhile or has ended, no more than a moment from then on.
func (c *Client) stopRecorder(ended context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ended), c.timeout)
	defer cancel()
	stop := context.AfterFunc(ended, func() { time.AfterFunc(recorderGrace, cancel) })
	defer stop()
	if err := c.recorder.Stop(ctx); err != nil {
		return fmt.Errorf("holdlock: the usage of locks since the last time could not be recorded: %w", err)
	}
	return nil
}
