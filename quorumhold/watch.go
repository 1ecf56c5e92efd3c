package quorumhold

import (
	"context"
	"fmt"
	"hash/fnv"
	"reflect"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

const (
	// watchAt is how many nodes a waiter watches: enough that one of them may fail. Behind it there is the caller's poll. All
	// waiters of a key watch the same nodes, so that one of them is woken by a release, and the first.
	watchAt = 2
	// echo is after how long a hint is repeated, because a release may have reached that node before the others.
	echo = 15 * time.Millisecond
)

// Watch implements driver.Waiter. It returns when as many nodes as there should be send hints, and if one of them hangs a moment later,
// with those that do. The others are added when they answer.
func (d *Driver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if err := d.usable(ctx, "watch", key); err != nil {
		return nil, nil, err
	}
	w := &watch{
		d: d, key: key, hints: make(chan struct{}, 1), stopped: make(chan struct{}),
		answers: make(chan answer, len(d.nodes)), added: make(chan (<-chan struct{}), len(d.nodes)), ready: make(chan error, 1),
	}
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.watches[w] = struct{}{}
	}
	d.mu.Unlock()
	stop := func() {
		d.mu.Lock()
		delete(d.watches, w)
		d.mu.Unlock()
		w.stop()
	}
	err := driver.ErrClosed
	if !closed && d.background(function(w.find)) && d.background(function(w.forward)) {
		select {
		case err = <-w.ready:
		case <-ctx.Done():
			err = fmt.Errorf("%w (%w)", ctx.Err(), driver.ErrNotApplied)
		case <-d.closing:
			err = fmt.Errorf("%w (%w)", driver.ErrClosed, driver.ErrNotApplied)
		}
	}
	if err != nil {
		stop()
		return nil, nil, failure("watch", key, err)
	}
	return w.hints, stop, nil
}

// A watch hands on the hints of some nodes.
type watch struct {
	d       *Driver
	key     string
	hints   chan struct{}
	answers chan answer            // of nodes that were asked to send hints
	added   chan (<-chan struct{}) // the hints of one more node
	ready   chan error             // nil when there are nodes that send hints, or why none does
	stopped chan struct{}

	mu    sync.Mutex
	ended bool
	stops []func() // of the nodes that send hints; no more than watchAt
}

// An answer is that of the node that was asked as the given one.
type answer struct {
	at    int
	hints <-chan struct{}
	err   error
}

// find asks nodes, side by side, until enough of them send hints. A node that hangs is not waited for: another one is asked as well, and
// whichever answers first is taken.
func (w *watch) find() {
	nodes := w.d.nodes
	first := firstWatched(w.key, len(nodes))
	grace := time.NewTimer(lookGrace)
	defer grace.Stop()
	asked, late := 0, 0         // how many were, and how many of them some time ago
	found, open, all := 0, 0, 0 // that send hints; from which an answer is expected soon; which have not answered
	var failed error
	for found < watchAt {
		for ; asked < len(nodes) && found+open < watchAt; asked++ {
			open++
			all++
			w.ask(nodes[(first+asked)%len(nodes)], asked)
		}
		if all == 0 {
			break
		}
		select {
		case a := <-w.answers:
			all--
			if a.at >= late {
				open--
			}
			if a.err != nil {
				failed = a.err
				continue
			}
			found++
			w.added <- a.hints
		case <-grace.C:
			late, open = asked, 0
			grace.Reset(lookGrace)
			if found > 0 {
				w.tell(nil)
			}
		case <-w.stopped:
			return
		}
	}
	if found > 0 {
		failed = nil
	}
	w.tell(failed)
}

// firstWatched is which of n nodes a waiter asks first. The others follow in their order.
func firstWatched(key string, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % uint32(n))
}

// tell says, once, what has come of it.
func (w *watch) tell(err error) {
	select {
	case w.ready <- err:
	default:
	}
}

// ask asks one node to send hints.
func (w *watch) ask(n *node, at int) {
	a := answer{at: at}
	waiter, ok := driver.As[driver.Waiter](n.Driver)
	if !ok {
		a.err = fmt.Errorf("node %s sends no hints", n.name)
		w.answers <- a
		return
	}
	askNode(w.d, n, errand{needed: w.wants}, func(ctx context.Context) (stop func(), err error) {
		a.hints, stop, err = waiter.Watch(ctx, w.key)
		return stop, err
	}, func(stop func(), err error) {
		switch {
		case err != nil:
			a.err = fmt.Errorf("node %s: %w", n.name, foreign{err})
		case !w.take(stop):
			stop() // nobody hears it
			return
		}
		w.answers <- a
	})
}

// wants says whether one more node is needed.
func (w *watch) wants(time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended && len(w.stops) < watchAt
}

// take keeps how to end the hints of one more node, if it is needed.
func (w *watch) take(stop func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || len(w.stops) >= watchAt {
		return false
	}
	w.stops = append(w.stops, stop)
	return true
}

// forward hands on hints until the watch is stopped. It takes no further hint from a node while its own is not taken: so
// the nodes see a waiter that does not listen, and wake the next one.
func (w *watch) forward() {
	sources := []reflect.SelectCase{recv(w.stopped), recv(w.added)}
	for {
		i, v, ok := reflect.Select(sources)
		if i == 0 || !ok {
			return
		}
		if i == 1 {
			sources = append(sources, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: v})
			continue
		}
		select {
		case w.hints <- struct{}{}:
		case <-w.stopped:
			return
		}
		if !w.repeat(sources) {
			return
		}
	}
}

// repeat sends one more hint, for the one that came and for all that come meanwhile.
func (w *watch) repeat(sources []reflect.SelectCase) bool {
	timer := time.NewTimer(echo)
	defer timer.Stop()
	all := append([]reflect.SelectCase{sources[0], recv(timer.C)}, sources[2:]...)
	for {
		switch i, _, ok := reflect.Select(all); {
		case i == 0 || !ok:
			return false
		case i == 1:
			select {
			case w.hints <- struct{}{}:
			default:
			}
			return true
		}
	}
}

func recv(c any) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}

// stop ends the watch at once, and at the nodes soon.
func (w *watch) stop() {
	w.mu.Lock()
	stops := w.stops
	first := !w.ended
	w.ended = true
	w.mu.Unlock()
	if !first {
		return
	}
	close(w.stopped)
	var all sync.WaitGroup
	for _, stop := range stops {
		all.Go(stop)
	}
	all.Wait()
}
