package pghold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// Waiting: whoever waits for a key stands in a line, a row of the table waiter. Who frees the key takes the first one that
// lives out of it, in the same step, and notifies the channel of its process: so nothing is sent when nobody waits. A process
// listens on one connection of its own. A watcher that was woken and goes on waiting takes its old place again. What is
// lost with a process or a connection costs the caller one interval of its poll.
//
// Through a pooler that shares connections by transaction nobody can listen. There one statement a second asks for all
// watchers of the process which of them are first in line for a free key.
const (
	wokenAgain = 150 * time.Millisecond // after which a woken watcher that waits on stands in line again
	stopBudget = time.Second
	pollFirst  = 25 * time.Millisecond // without notifications: doubles from here
	pollLast   = time.Second
)

// hub is what the process has to hear hints with, and those who want them.
type hub struct {
	d       *LeaseDriver
	channel string
	turn    chan struct{} // held while hearing is being set up
	ctx     context.Context
	end     context.CancelFunc

	mu      sync.Mutex
	mode    hearing
	alive   *int64 // the advisory lock that our listening session holds; nil while there is none
	watches map[string]*watch
	last    int
	closed  bool
	kick    chan struct{} // has the poll look soon
	running sync.WaitGroup
}

type hearing uint8

const (
	deaf      hearing = iota // nobody has waited yet, or the last try to listen failed
	listening                // or about to again, after a lost connection
	polling                  // for good: there is a pooler in between
)

type watch struct {
	hub   *hub
	key   string
	id    string
	hints chan struct{}
	again *time.Timer // looks after the place in line once it was woken
	since int64       // its place, in µs since 1970; 0 before it has one. Under hub.mu
	woken bool        // it was taken out of the line; under hub.mu
}

func newHub(d *LeaseDriver) *hub {
	var b [12]byte
	_, _ = rand.Read(b[:]) // cannot fail
	h := &hub{
		d: d, channel: "holdlock_" + hex.EncodeToString(b[:]), turn: make(chan struct{}, 1),
		watches: map[string]*watch{}, kick: make(chan struct{}, 1),
	}
	h.ctx, h.end = context.WithCancel(context.Background())
	return h
}

// Watch implements driver.Waiter. Behind a transaction pooler hints come from a poll, at most a second late.
func (d *LeaseDriver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if err := d.usable(ctx, "watch", key); err != nil {
		return nil, nil, err
	}
	if err := d.hub.listen(ctx); err != nil {
		return nil, nil, leaseFailure("watch", key, err)
	}
	w, err := d.hub.add(key)
	if err != nil {
		return nil, nil, leaseFailure("watch", key, err)
	}
	free, err := w.stand(ctx)
	if err != nil {
		w.stop()
		return nil, nil, err
	}
	if free { // it was freed while nobody stood in line
		w.hint()
	}
	return w.hints, w.stop, nil
}

func (h *hub) add(key string) (*watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, driver.ErrClosed
	}
	h.last++
	w := &watch{hub: h, key: key, id: strconv.Itoa(h.last), hints: make(chan struct{}, 1)}
	w.again = time.AfterFunc(time.Hour, w.standAgain)
	w.again.Stop()
	h.watches[w.id] = w
	return w, nil
}

// stand puts the watcher into its place in line, and says whether the key is free.
func (w *watch) stand(ctx context.Context) (free bool, err error) {
	h := w.hub
	h.mu.Lock()
	alive, mode := h.alive, h.mode
	var since *int64
	if at := w.since; at != 0 {
		since = &at
	}
	h.mu.Unlock()
	if mode == listening && alive == nil {
		return false, nil // the connection is being made anew; it stands in line then
	}
	var place int64
	err = h.d.step(ctx, "watch", w.key, h.d.sql.stand, []any{h.d.namespace, w.key, since, h.channel, w.id, alive},
		func(rows pgx.Rows) error { return rows.Scan(&place, &free) })
	if err != nil {
		return false, err
	}
	h.mu.Lock()
	w.since = place
	h.mu.Unlock()
	h.freed() // perhaps, in the meantime
	return free, nil
}

func (w *watch) hint() {
	select {
	case w.hints <- struct{}{}:
	default:
	}
}

// deliver hands a hint to its watcher. One that has just gone passes it on by itself, see stop.
func (h *hub) deliver(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watches[id]; w != nil {
		w.woken = true
		w.again.Reset(wokenAgain)
		w.hint()
	}
}

// standAgain is called by the timer.
func (w *watch) standAgain() {
	h := w.hub
	h.mu.Lock()
	if h.closed || h.watches[w.id] != w {
		h.mu.Unlock()
		return
	}
	if len(w.hints) > 0 { // it has not taken its hint: it is slow or dead, and must not hold up the line
		w.again.Reset(wokenAgain)
		h.mu.Unlock()
		return
	}
	h.running.Add(1)
	defer h.running.Done()
	h.mu.Unlock()

	ctx, cancel := context.WithTimeout(h.ctx, stopBudget)
	defer cancel()
	free, err := w.stand(ctx)
	h.mu.Lock()
	gone := h.watches[w.id] != w
	switch {
	case gone || h.closed:
	case err != nil:
		w.again.Reset(stopBudget)
	default:
		w.woken = false
		if free { // it was freed while nobody stood in line
			w.hint()
		}
	}
	h.mu.Unlock()
	if gone {
		w.leave() // stopped meanwhile
	}
}

// stop ends the watch. If it was woken, and the key is free all the same, the server wakes the next one.
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
	// If it fails, the place in line goes with our session, or costs one hint.
	_ = d.step(ctx, "watch", w.key, d.sql.leave, []any{d.namespace, w.key, w.hub.channel, w.id}, nothing)
}

// close ends the listening. Watches that have not been stopped get no more hints.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	for _, w := range h.watches {
		w.again.Stop()
	}
	h.mu.Unlock()
	h.end()
	h.running.Wait()
}
