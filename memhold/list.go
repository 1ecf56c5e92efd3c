package memhold

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// List implements driver.Lister. It reads all keys for each page, in pieces, so that other callers get in between: a
// term that stands during the whole call is listed, one that comes or goes meanwhile may be.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	if err := d.usable(ctx, "list", prefix); err != nil {
		return nil, err
	}
	s := d.store
	var found []driver.Term
	s.mu.Lock()
	now, seen := time.Now(), 0
	for key, at := range s.slots {
		if seen++; seen%1024 == 0 {
			s.mu.Unlock() // a range over a map allows for changes meanwhile
			if err := d.usable(ctx, "list", prefix); err != nil {
				return nil, err
			}
			s.mu.Lock()
			now = time.Now()
		}
		if key > after && strings.HasPrefix(key, prefix) && at.taken(now) {
			found = append(found, at.describe(key, now))
		}
		if len(found)/2 > max(limit, 1024) {
			found = lowest(found, limit) // the rest is for later pages
		}
	}
	s.mu.Unlock()
	return lowest(found, limit), nil
}

// lowest returns the first n terms in the order of keys.
func lowest(terms []driver.Term, n int) []driver.Term {
	slices.SortFunc(terms, func(a, b driver.Term) int { return cmp.Compare(a.Key, b.Key) })
	return terms[:min(n, len(terms))]
}

// Inspect implements driver.Lister.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	if err := d.usable(ctx, "inspect", key); err != nil {
		return driver.Term{}, false, err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	now, at := time.Now(), d.store.slots[key]
	if at == nil || !at.taken(now) {
		return driver.Term{}, false, nil
	}
	return at.describe(key, now), true, nil
}
