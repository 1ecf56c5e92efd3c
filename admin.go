package holdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Info describes a lock that is held, for operators.
type Info struct {
	Name, Key string
	Store     string
	Token     Token // names the term: Break wants it back
	Holder    Holder
	Since     time.Time // by the store's wall clock
	// FreeIn is the time until the key is free unless its holder renews, as of the answer. 0 where Traits.FrozenBlocks: the time is
	// over, and a holder that stands still keeps the key; Break with Now ends that.
	FreeIn  time.Duration
	Cooling bool   // the job is over; MinHold keeps the key
	Broken  string // not empty once an operator has broken the term: who and why
}

func (c *Client) info(t *driver.Term) Info {
	name, key := splitStoreKey(t.Key)
	return Info{
		Name: name, Key: key, Store: c.traits.Location, Token: t.Token, Holder: t.Holder, Since: t.Acquired,
		FreeIn: t.Remaining, Cooling: t.Cooling, Broken: t.Broken,
	}
}

const listPage = 500

// List yields what is held or cooling, of all locks whose name starts with prefix, in order of name and key. It reads in
// pages, so it is not a snapshot. The last value carries the error if the store fails. A value in between with an error, which
// is ErrDamaged, is a key that cannot be read; its Name and Key are set, and others follow.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if c.lister == nil {
			yield(Info{}, fmt.Errorf("listing locks: %w", ErrUnsupported))
			return
		}
		err := pages(ctx, c, prefix, func(ctx context.Context, after string) ([]driver.Term, error) {
			return c.lister.List(ctx, prefix, after, listPage)
		}, func(t *driver.Term) string { return t.Key }, func(t *driver.Term) bool {
			if t.Damaged != nil {
				i := c.info(t)
				return yield(i, fmt.Errorf("lock %s in %s: %w", describe(i.Name, i.Key), c.traits.Location, t.Damaged))
			}
			return yield(c.info(t), nil)
		})
		if err != nil {
			yield(Info{}, fmt.Errorf("listing locks of %s: %w", c.traits.Location, unread(err)))
		}
	}
}

// pages asks the store for page after page of what has the prefix, in the order of keys, until each returns false.
func pages[T any](
	ctx context.Context, c *Client, prefix string,
	page func(ctx context.Context, after string) ([]T, error), key func(*T) string, each func(*T) (more bool),
) error {
	for after := ""; ; {
		items, err := call(ctx, c, c.timeout, func(ctx context.Context) ([]T, error) { return page(ctx, after) }, discard)
		if err != nil {
			return err
		}
		for i := range items {
			if !strings.HasPrefix(key(&items[i]), prefix) || !each(&items[i]) {
				return nil
			}
		}
		if len(items) < listPage {
			return nil
		}
		after = key(&items[len(items)-1])
	}
}

// Inspect returns who holds one lock. key is "" for a lock without keys. ok is false if it is free.
func (c *Client) Inspect(ctx context.Context, name, key string) (info Info, ok bool, err error) {
	term, ok, err := c.inspect(ctx, name, key)
	if err != nil || !ok {
		return Info{}, false, err
	}
	return c.info(&term), true, nil
}

func (c *Client) inspect(ctx context.Context, name, key string) (term driver.Term, ok bool, err error) {
	if c.lister == nil {
		return term, false, fmt.Errorf("inspecting lock %s: %w", describe(name, key), ErrUnsupported)
	}
	if _, _, err := ParseName(storeKey(name, key)); err != nil {
		return term, false, err
	}
	type found struct {
		term driver.Term
		ok   bool
	}
	f, err := call(ctx, c, c.timeout, func(ctx context.Context) (found, error) {
		t, ok, err := c.lister.Inspect(ctx, storeKey(name, key))
		return found{t, ok}, err
	}, discard)
	if err != nil {
		return term, false, fmt.Errorf("inspecting lock %s in %s: %w", describe(name, key), c.traits.Location, unread(err))
	}
	return f.term, f.ok, nil
}

// unread is why something could not be shown: the store was not reached, or was, and cannot say.
func unread(err error) error {
	if errors.Is(err, ErrDamaged) || errors.Is(err, driver.ErrBadRecord) || errors.Is(err, driver.ErrAbstains) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// BreakOptions say how a lock is broken.
type BreakOptions struct {
	// By says who breaks it and why. It is kept with the term and shown to its holder and its successor. Required.
	By string
	// Now frees the key at once, although its holder may still be at work: the job can then run twice. Without it the
	// holder is told at its next renewal, and the key becomes free when the present term ends, so nobody overlaps.
	Now bool
}

// ErrStaleToken is returned by Break if the term it names is not the current one.
var ErrStaleToken = errors.New("another term holds the lock, or none")

// Break ends the term of a lock that has the given token, against its holder's will. Read the token from Inspect or List:
// it makes sure that the term that was looked at is the one that is broken. The error is ErrStaleToken if it is over.
func (c *Client) Break(ctx context.Context, name, key string, token Token, opts BreakOptions) error {
	if c.breaker == nil {
		return fmt.Errorf("breaking lock %s: %w", describe(name, key), ErrUnsupported)
	}
	if opts.By == "" {
		return &InvalidError{"By", `""`, "say who breaks the lock and why"}
	}
	stale := func(now string) error {
		return fmt.Errorf("breaking lock %s, token %d: %w (%s); look again before you break it",
			describe(name, key), token, ErrStaleToken, now)
	}
	term, held, err := c.inspect(ctx, name, key)
	switch {
	case err != nil:
		return err
	case !held:
		return stale("it is free")
	case term.Token != token:
		return stale(fmt.Sprintf("the current token is %d", term.Token))
	}
	_, err = call(ctx, c, c.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.breaker.Break(ctx, &driver.BreakRequest{
			Ref: driver.Ref{Key: term.Key, Nonce: term.Nonce}, By: opts.By, Now: opts.Now,
		})
	}, discard)
	switch {
	case errors.Is(err, driver.ErrGone):
		return stale("it has just ended")
	case errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("breaking lock %s in %s: %w: %w", describe(name, key), c.traits.Location, ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("breaking lock %s in %s: %w: %w", describe(name, key), c.traits.Location, ErrUnknown, err)
	}
	c.emit(Event{Kind: BrokenByUs, Name: name, Key: key, Token: token, Holder: &term.Holder})
	return nil
}
