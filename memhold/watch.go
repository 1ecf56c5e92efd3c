package memhold

import (
	"context"
	"slices"
	"time"
)

// A watcher is a waiting caller.
type watcher struct {
	driver *Driver
	hints  chan struct{} // holds one hint, so that waking never blocks and hints coalesce
}

// Watch implements driver.Waiter. Nobody is woken when a term only runs out: the caller knows from HeldError when to look.
func (d *Driver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if err := d.usable(ctx, "watch", key); err != nil {
		return nil, nil, err
	}
	s, w := d.store, &watcher{driver: d, hints: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[key] = append(s.watchers[key], w)
	return w.hints, func() { s.unwatch(key, w) }, nil
}

// wake gives a hint to the first watcher of the key that has none yet. Runs under s.mu.
func (s *Store) wake(key string) {
	for _, w := range s.watchers[key] {
		if w.driver.closed.Load() {
			continue
		}
		select {
		case w.hints <- struct{}{}:
			return
		default: // it has not taken its last hint: it is slow or dead, and must not hold up the line
		}
	}
}

// wakeAll gives a hint to every watcher of the key: its job is done, and each is to be told. Runs under s.mu.
func (s *Store) wakeAll(key string) {
	for _, w := range s.watchers[key] {
		select {
		case w.hints <- struct{}{}:
		default: // it has one
		}
	}
}

func (s *Store) unwatch(key string, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.watchers[key]
	i := slices.Index(line, w)
	if i < 0 {
		return // stopped before
	}
	if line = slices.Delete(line, i, i+1); len(line) == 0 {
		delete(s.watchers, key)
		return
	}
	s.watchers[key] = line
	// Whoever was woken and goes away without taking the key passes the hint on.
	if at := s.slots[key]; at == nil || !at.taken(time.Now()) {
		s.wake(key)
	}
}
