package redishold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// Waiting: a watcher stands in a line (a list beside the slot) as "process watch", 16 hex digits and a number. Whoever
// frees the key takes the first out of the line and publishes its number on the channel of its process, to which each
// process subscribes once. A watcher that was woken and goes on waiting takes its place at the front again. What gets lost
// with a process or a connection costs the caller one interval of its poll.
const (
	lineTTL    = time.Minute
	lineAgain  = 20 * time.Second       // how often a watcher makes sure that it stands in line
	wokenAgain = 150 * time.Millisecond // after which a woken one does
	stopBudget = time.Second
	closeGrace = 200 * time.Millisecond // for what hangs in the client library
	barredFor  = time.Minute            // how long the lack of rights is remembered
)

// hub is the one subscription of this process and those who listen to it.
type hub struct {
	d  *Driver
	id string

	subscribing sync.Mutex // held while the subscription is made
	mu          sync.Mutex
	sub         *redis.PubSub
	barredFor   time.Duration
	barred      time.Time         // until then there is no use in trying
	warned      bool              // of that, since the process last listened
	hear        func(driver.Push) // the caller of Listen
	watches     map[string]*watch
	last        int
	closed      bool
	running     sync.WaitGroup
}

type watch struct {
	hub   *hub
	key   string
	id    string
	hints chan struct{}
	again *time.Timer // looks after the place in line
	woken bool        // it was taken out of the line; under hub.mu
}

func newHub(d *Driver) *hub {
	return &hub{d: d, id: randomHex(8), barredFor: barredFor, watches: map[string]*watch{}}
}

// Watch implements driver.Waiter. Without the right to subscribe it fails, and the caller polls.
func (d *Driver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if err := d.usable(ctx, "watch", key); err != nil {
		return nil, nil, err
	}
	h := d.hub
	if _, err := bounded(ctx, d, func(ctx context.Context) (struct{}, error) { return struct{}{}, h.subscribe(ctx) }); err != nil {
		return nil, nil, failure("watch", key, err)
	}
	w, err := h.add(key)
	if err == nil {
		if err = w.stand(ctx, false); err != nil {
			w.stop()
		}
	}
	if err != nil {
		return nil, nil, failure("watch", key, err)
	}
	return w.hints, w.stop, nil
}

// subscribe makes sure that the process listens. It returns when the server has confirmed it.
func (h *hub) subscribe(ctx context.Context) error {
	h.subscribing.Lock()
	defer h.subscribing.Unlock()
	h.mu.Lock()
	have, barred := h.sub != nil || h.closed, time.Now().Before(h.barred)
	h.mu.Unlock()
	if barred {
		return errBarred
	}
	if have || ctx.Err() != nil {
		return ctx.Err()
	}
	sub := h.d.client.Subscribe(ctx, h.d.channel()+h.id)
	timeout := stopBudget
	if end, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(end), time.Millisecond)
	}
	if _, err := sub.ReceiveTimeout(ctx, timeout); err != nil {
		_ = sub.Close()
		if redis.HasErrorPrefix(err, "NOPERM") {
			h.bar(err)
		}
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return sub.Close()
	}
	h.sub, h.warned = sub, false
	h.running.Go(func() { h.listen(sub) })
	return nil
}

var errBarred = fmt.Errorf("the user may not subscribe (%w)", driver.ErrNotApplied)

// bar remembers that the user may not subscribe, or is not let in, and says so once.
func (h *hub) bar(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.barred = time.Now().Add(h.barredFor)
	if !h.warned {
		h.warned = true
		why := "may not subscribe to the channels of holdlock"
		if wrongLogin(err) {
			why = "is not let in"
		}
		h.d.log.Warn("waiting works by polling: the Redis user "+why,
			"store", h.d.traits.Location, "channels", h.d.channel()+"*", "error", err)
	}
}

// pingEvery is how long the connection may be silent before it is asked whether it lives, and how long it may take to answer.
const pingEvery = 3 * time.Second

// listen reads what is published to this process. It reads by itself, because whoever waits would wait for one more change
// of goroutines if the client library did. A connection that fails is made anew by the library with the next read.
func (h *hub) listen(sub *redis.PubSub) {
	ctx := context.Background()
	asked := false
	for {
		event, err := sub.ReceiveTimeout(ctx, pingEvery)
		h.mu.Lock()
		over := h.sub != sub
		h.mu.Unlock()
		if over {
			return
		}
		var silent net.Error
		switch e := event.(type) {
		case *redis.Message:
			h.deliver(e.Payload)
		case *redis.Subscription: // the connection was lost and made anew, and messages may have been lost with it
			h.mu.Lock()
			h.barred, h.warned = time.Time{}, false
			for _, w := range h.watches {
				w.hint()
			}
			h.mu.Unlock()
			h.handOver(driver.Push{})
		}
		switch {
		case err == nil:
			asked = false
		case errors.As(err, &silent) && silent.Timeout() && !asked:
			asked = sub.Ping(ctx) == nil
		case !asked && redis.HasErrorPrefix(err, "NOPERM"), // nothing else was sent: it may not subscribe any more
			wrongLogin(err): // each try would be in the server's log
			if sub = h.refused(sub, err); sub == nil {
				return
			}
		case asked:
			asked = false
			if sub = h.again(sub); sub == nil {
				return
			}
		default:
			select {
			case <-time.After(time.Duration(50+rand.IntN(100)) * time.Millisecond):
			case <-h.d.closing:
			}
		}
	}
}

// refused waits until there is use in subscribing anew. The library does not: its connection lives on with nothing to hear.
func (h *hub) refused(old *redis.PubSub, err error) *redis.PubSub {
	_ = old.Close()
	h.bar(err)
	select {
	case <-time.After(h.barredFor):
	case <-h.d.closing:
	}
	return h.again(old)
}

// again replaces a connection that does not answer. Nil means that the driver was closed.
func (h *hub) again(old *redis.PubSub) *redis.PubSub {
	_ = old.Close()
	sub := h.d.client.Subscribe(context.Background())
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		_ = sub.Close()
		return nil
	}
	h.sub = sub
	h.mu.Unlock()
	_ = sub.Subscribe(context.Background(), h.d.channel()+h.id) // what fails is tried again by the next read
	return sub
}

// deliver hands a push to the caller of Listen, and a hint to its watcher.
func (h *hub) deliver(payload string) {
	if len(payload) >= pushLen {
		if p, err := h.d.parsePush(payload); err == nil {
			h.handOver(p)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watches[payload]; w != nil {
		w.woken = true
		w.again.Reset(wokenAgain)
		w.hint()
	}
}

func (w *watch) hint() {
	select {
	case w.hints <- struct{}{}:
	default:
	}
}

func (h *hub) add(key string) (*watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, driver.ErrClosed
	}
	h.last++
	w := &watch{hub: h, key: key, id: strconv.Itoa(h.last), hints: make(chan struct{}, 1)}
	w.again = time.AfterFunc(lineAgain, w.lookAfter)
	h.watches[w.id] = w
	return w, nil
}

// stand puts the watcher into the line if it is not there.
func (w *watch) stand(ctx context.Context, front bool) error {
	d := w.hub.d
	reply, err := d.call(ctx, d.scripts.watch, d.withAll(w.key),
		w.hub.id+w.id, digit(front), lineTTL.Milliseconds())
	if err == nil && front && reply == int64(1) {
		w.hint() // it was freed while nobody stood in line
	}
	return err
}

// lookAfter is called by the timer.
func (w *watch) lookAfter() {
	h := w.hub
	h.mu.Lock()
	if h.closed || h.watches[w.id] != w {
		h.mu.Unlock()
		return
	}
	h.running.Add(1)
	defer h.running.Done()
	front := w.woken
	h.mu.Unlock()

	next := lineAgain
	if front && len(w.hints) > 0 {
		next = wokenAgain // it has not taken its hint: it is slow or dead, and must not hold up the line
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), stopBudget)
		defer cancel()
		if w.stand(ctx, front) != nil {
			next = stopBudget
		}
	}
	h.mu.Lock()
	gone := h.watches[w.id] != w
	if !gone && !h.closed {
		if next == lineAgain && front {
			w.woken = false
		}
		w.again.Reset(next)
	}
	h.mu.Unlock()
	if gone {
		w.leave() // stopped meanwhile
	}
}

// stop ends the watch. Whoever was woken and goes without taking the key passes the hint on.
func (w *watch) stop() {
	h := w.hub
	h.mu.Lock()
	present := h.watches[w.id] == w
	delete(h.watches, w.id)
	w.again.Stop()
	h.mu.Unlock()
	if present {
		w.leave()
	}
}

func (w *watch) leave() {
	d := w.hub.d
	ctx, cancel := context.WithTimeout(context.Background(), stopBudget)
	defer cancel()
	// If it fails, the place in line goes by its TTL, or costs one hint.
	_, _ = d.call(ctx, d.scripts.leave, d.withAll(w.key), w.hub.id+w.id)
}

// close ends the subscription. Watches that have not been stopped get no more hints. A connection that is being made to a server
// that hangs is left to end by the client library's timeouts, which heeds no context until then.
func (h *hub) close() {
	h.mu.Lock()
	sub := h.sub
	h.sub, h.closed = nil, true
	for _, w := range h.watches {
		w.again.Stop()
	}
	h.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if sub != nil {
			_ = sub.Close()
		}
		h.running.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(closeGrace):
	}
}
