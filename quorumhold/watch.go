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

// Watch implements driver.Waiter.
func (d *Driver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if err := d.usable(ctx, "watch", key); err != nil {
		return nil, nil, err
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	first := int(h.Sum32() % uint32(len(d.nodes)))
	w := &watch{hints: make(chan struct{}, 1), stopped: make(chan struct{})}
	var failed error
	for k := 0; k < len(d.nodes) && len(w.sources) < watchAt; k++ {
		n := d.nodes[(first+k)%len(d.nodes)]
		if err := d.watchNode(ctx, n, key, w); err != nil {
			failed = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(w.sources) == 0 || !d.background(function(func() { w.forward() })) {
		w.stop()
		if err := d.interrupted(ctx); err != nil {
			return nil, nil, fmt.Errorf("quorumhold: watch %q: %w (%w)", key, err, driver.ErrNotApplied)
		}
		return nil, nil, failure("watch", key, failed)
	}
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.watches[w] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		w.stop()
		return nil, nil, failure("watch", key, driver.ErrClosed)
	}
	return w.hints, func() {
		d.mu.Lock()
		delete(d.watches, w)
		d.mu.Unlock()
		w.stop()
	}, nil
}

// A watch hands on the hints of some nodes.
type watch struct {
	hints   chan struct{}
	stopped chan struct{}
	once    sync.Once
	sources []<-chan struct{}
	stops   []func()
}

// watchNode adds one node, if it answers in time.
func (d *Driver) watchNode(ctx context.Context, n *node, key string, w *watch) error {
	waiter, ok := driver.As[driver.Waiter](n.Driver)
	if !ok {
		return fmt.Errorf("node %s sends no hints", n.name)
	}
	type source struct {
		hints <-chan struct{}
		stop  func()
		err   error
	}
	// Whoever comes second, the answer or the end of the wait for it, stops a watch that nobody hears.
	var mu sync.Mutex
	given := false
	answer := make(chan source, 1)
	needed := func(time.Duration) bool {
		mu.Lock()
		defer mu.Unlock()
		return !given
	}
	askNode(d, n, errand{limit: d.opts.NodeTimeout, needed: needed}, func(ctx context.Context) (source, error) {
		hints, stop, err := waiter.Watch(ctx, key)
		return source{hints, stop, err}, err
	}, func(s source, err error) {
		s.err = err
		mu.Lock()
		defer mu.Unlock()
		if given && err == nil {
			s.stop()
		}
		answer <- s
	})
	select {
	case s := <-answer:
		if s.err != nil {
			return fmt.Errorf("node %s: %w", n.name, foreign{s.err})
		}
		w.sources, w.stops = append(w.sources, s.hints), append(w.stops, s.stop)
		return nil
	case <-ctx.Done():
	case <-d.closing:
	}
	mu.Lock()
	given = true
	mu.Unlock()
	select {
	case s := <-answer:
		if s.err == nil {
			s.stop()
		}
	default:
	}
	return d.interrupted(ctx)
}

// forward hands on hints until the watch is stopped. It takes no further hint from a node while its own is not taken: so
// the nodes see a waiter that does not listen, and wake the next one.
func (w *watch) forward() {
	sources := []reflect.SelectCase{recv(w.stopped)}
	for _, s := range w.sources {
		sources = append(sources, recv(s))
	}
	for {
		if i, _, ok := reflect.Select(sources); i == 0 || !ok {
			return
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
	all := append(sources[:len(sources):len(sources)], recv(timer.C))
	for {
		switch i, _, ok := reflect.Select(all); {
		case i == 0 || !ok:
			return false
		case i == len(all)-1:
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
	w.once.Do(func() {
		close(w.stopped)
		var all sync.WaitGroup
		for _, stop := range w.stops {
			all.Go(stop)
		}
		all.Wait()
	})
}
