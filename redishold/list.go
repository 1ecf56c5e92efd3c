package redishold

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

const (
	scanCount = 500 // keys looked at by one SCAN: a fraction of a millisecond
	lookCount = 500 // slots read by one script: likewise
	// listAge is how old the names may be that a further page is made from.
	listAge = 30 * time.Second
)

// listCache keeps the names found for the first page of a list, because Redis has no order and finding them means a look
// at every key of the database: once for each walk, and not once for each page.
type listCache struct {
	mu     sync.Mutex
	prefix string
	keys   []string // sorted
	made   time.Time
}

// List implements driver.Lister. The first page (after is empty) goes through all keys of the database, in small steps;
// the following pages use the names it found, for half a minute. So a term that starts during a walk may be missed by it.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	if err := d.usable(ctx, "list", ""); err != nil {
		return nil, err
	}
	keys, err := d.names(ctx, &d.lists, "}", prefix, after)
	if err != nil {
		return nil, d.failed("list", prefix, err)
	}
	from, found := slices.BinarySearch(keys, after)
	if found {
		from++
	}
	var terms []driver.Term
	for keys = keys[from:]; len(keys) > 0 && len(terms) < limit; {
		n := min(len(keys), lookCount)
		some, err := d.look(ctx, keys[:n])
		if err != nil {
			return nil, d.failed("list", prefix, err)
		}
		terms, keys = append(terms, some...), keys[n:]
	}
	return terms[:min(limit, len(terms))], nil
}

// names returns the keys with the prefix of all that is called like a slot, but ends otherwise, in order. end is a pattern.
func (d *Driver) names(ctx context.Context, c *listCache, end, prefix, after string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if after != "" && c.prefix == prefix && time.Since(c.made) < listAge {
		return c.keys, nil
	}
	made := time.Now()
	keys, err := bounded(ctx, d, func(ctx context.Context) ([]string, error) { return d.scan(ctx, prefix, end) })
	if err != nil {
		return nil, err
	}
	c.prefix, c.keys, c.made = prefix, keys, made
	return keys, nil
}

func (d *Driver) scan(ctx context.Context, prefix, end string) ([]string, error) {
	var mu sync.Mutex
	var keys []string
	slots := d.slotPrefix()
	tail := len(end)
	if i := strings.IndexByte(end, '['); i >= 0 { // a set of signs is one sign
		tail = i + 1
	}
	one := func(ctx context.Context, node redis.Cmdable) error {
		it := node.Scan(ctx, 0, globEscape(slots+prefix)+"*"+end, scanCount).Iterator()
		for it.Next(ctx) {
			mu.Lock()
			keys = append(keys, it.Val()[len(slots):len(it.Val())-tail])
			mu.Unlock()
		}
		return it.Err()
	}
	var err error
	if d.cluster != nil {
		err = d.cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return one(ctx, c) })
	} else {
		err = one(ctx, d.client)
	}
	slices.Sort(keys)
	return slices.Compact(keys), err // SCAN may show a key twice
}

// globEscape makes every sign of s mean itself in a pattern.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Inspect implements driver.Lister.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	if err := d.usable(ctx, "inspect", key); err != nil {
		return driver.Term{}, false, err
	}
	terms, err := d.look(ctx, []string{key})
	if err != nil {
		return driver.Term{}, false, d.failed("inspect", key, err)
	}
	if len(terms) == 0 {
		return driver.Term{}, false, nil
	}
	if err := terms[0].Damaged; err != nil {
		return driver.Term{}, false, d.failed("inspect", key, err)
	}
	return terms[0], true, nil
}

// look returns the terms of those of the keys that are taken. It asks the primary, never a replica.
func (d *Driver) look(ctx context.Context, keys []string) ([]driver.Term, error) {
	if d.cluster == nil {
		return d.lookTogether(ctx, keys)
	}
	return readEach(ctx, d, d.scripts.look, keys, func(key string) *slotCall { return &slotCall{keys: d.keys(key)} }, d.looked)
}

func (d *Driver) lookTogether(ctx context.Context, keys []string) ([]driver.Term, error) {
	var slots []string
	for _, key := range keys {
		slots = append(slots, d.keys(key)...)
	}
	reply, err := d.call(ctx, d.scripts.look, slots)
	return d.looked(keys, reply, err)
}

// looked judges the reply about some keys.
func (d *Driver) looked(keys []string, reply any, err error) ([]driver.Term, error) {
	if err != nil {
		return nil, err
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) != len(keys)+1 {
		return nil, fmt.Errorf("the script answered %v", reply)
	}
	var now int64
	var terms []driver.Term
	for i, p := range parts {
		s, _ := p.(string)
		if i == 0 {
			if now, err = strconv.ParseInt(s, 10, 64); err != nil {
				return nil, fmt.Errorf("the script answered %v", reply)
			}
			continue
		}
		t, taken, err := d.term(keys[i-1], s, now)
		if s == "?" {
			err = errKind
		}
		if err != nil {
			t, taken = driver.Term{Key: keys[i-1], Damaged: fmt.Errorf("%w: %s: %w", driver.ErrDamaged, d.slotKey(keys[i-1]), err)}, true
		}
		if taken {
			terms = append(terms, t)
		}
	}
	return terms, nil
}
