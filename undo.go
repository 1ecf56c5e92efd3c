package holdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// undoer gives back, in the background, what an unclear acquire may have won, what an unclear release may have kept, and the
// places in line that are given up. A term is tried until the store answers or it would have ended anyway. A place has no such
// end, for it lasts as long as its process sends heartbeats for others: it is tried until the store answers, or the process
// has been silent for so long that its places are skipped. Nor has the claim of a run that never began: its record would say for ever
// that it may have.
//
// It keeps them by key. Where the store keeps lines, one call gives up many of a key, so that neither their number nor the time of a
// call makes the line grow. Failures are of a key too: a node of a Cluster may hang while the others do not. See undo_send.go for what
// is sent when. Nothing is dropped: beyond maxUndos no new acquires are made (see full).
type undoer struct {
	c      *Client
	ctx    context.Context // ended by stop
	cancel context.CancelFunc
	wake   chan struct{}
	n      atomic.Int64 // undos
	most   int64        // of them: maxUndos

	mu      sync.Mutex
	keys    map[string]*undos // by key
	places  map[string]*undo  // by nonce: what may be granted meanwhile
	retired retired           // what was given back and may be granted all the same
	ready   undoHeap          // keys with something to send
	failing undoHeap          // likewise, whose last call failed
	calls   []*undoCall       // under way, the oldest first
	retries int               // of these, calls to keys whose last one failed
	retry   time.Time         // the next of those
	swept   time.Time         // when it was last looked for what is over
	last    time.Time         // by when places are over too: set by stop, else zero
	done    chan struct{}     // closed when the goroutine has ended; nil if none runs
}

// undos is what is to be given back of one key.
type undos struct {
	key    string
	terms  []*undo // each by a call of its own
	leaves []*undo // together, if the store has calls for many; the oldest first
	turn   bool    // it is that of leaves
	calls  int     // under way
	tries  int     // that failed in a row
	told   bool    // that leaving fails
	due    time.Time
	heap   *undoHeap
	index  int // there
}

type undo struct {
	lock      *Lock
	nonce     string
	acquire   bool           // what is unclear is its acquire, which may still be on its way
	claim     bool           // that was of a run of a job, which the store withdraws with its term
	place     bool           // it may stand in line
	record    *driver.Record // of a run whose end is unclear, or nil
	keepUntil time.Time      // the key stays taken until then (MinHold)
	until     time.Time      // the term has ended by itself by then; nothing for a place
	ends      time.Time      // if no work is done under it any more: when the store may let the term end by itself; zero for a place, and where work may go on
	doubt     bool           // the store may have let it end before that: see Lease.forgettable
	tries     int
}

// maxUndos bounds the memory, of some 400 bytes each. Those who wait for a tenth of a second each are 10,000 in a second of a
// thousand callers, so the bound is what is left of a minute of failure.
const maxUndos = 200_000

func newUndoer(c *Client) *undoer {
	ctx, cancel := context.WithCancel(context.Background())
	return &undoer{
		c: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), most: maxUndos, keys: map[string]*undos{}, places: map[string]*undo{},
	}
}

// full says why no acquire can be made that may have to be undone, or nil.
func (u *undoer) full() error {
	if n := u.n.Load(); n >= u.most {
		return fmt.Errorf("%d acquires that were given up are still to be undone; no more are made until the store answers: %w", n, driver.ErrNotApplied)
	}
	return nil
}

// addAcquire gives back a term that may exist, or may come to exist when a request arrives late, or likewise a place in line.
// There was no work under it, so it does not keep its key.
func (u *undoer) addAcquire(a *attempt, ref driver.Ref) {
	claim := a.claim != nil
	u.add(ref.Key, &undo{lock: a.lock, nonce: ref.Nonce, acquire: true, place: a.line, claim: claim}, !claim)
}

// addPlace gives back a place that the store has listed, or the term that it has become.
func (u *undoer) addPlace(l *Lock, ref driver.Ref) {
	u.add(ref.Key, &undo{lock: l, nonce: ref.Nonce, place: true}, true)
}

// addRelease gives back a term under which the work has ended, at now, or, if it is unused, the acquire of one under which none was done.
func (u *undoer) addRelease(l *Lease, keepUntil time.Time, now instant, unused bool) {
	job := ended(l, keepUntil, now)
	job.acquire, job.claim = unused, unused && l.job != nil
	u.add(l.ref.Key, job, false)
}

// addRecord gives back a term under which a run has ended, at now, and records that.
func (u *undoer) addRecord(l *Lease, keepUntil time.Time, now instant, rec *driver.Record) {
	job := ended(l, keepUntil, now)
	job.record = rec
	u.add(l.ref.Key, job, false)
}

func ended(l *Lease, keepUntil time.Time, now instant) *undo {
	return &undo{lock: l.lock, nonce: l.ref.Nonce, keepUntil: keepUntil, ends: l.over(now), doubt: l.forgettable(now)}
}

func (u *undoer) add(key string, job *undo, leaves bool) {
	opts := &job.lock.opts
	job.until = time.Now().Add(max(opts.TTL, opts.MinHold))
	if job.acquire && !job.place { // none ever was
		job.ends = job.until
	}
	u.mu.Lock()
	if u.ctx.Err() != nil {
		u.mu.Unlock()
		u.abandon(job)
		return
	}
	defer u.mu.Unlock()
	g := u.keys[key]
	if g == nil {
		g = &undos{key: key}
		u.keys[key] = g
	}
	if leaves {
		g.leaves = append(g.leaves, job)
	} else {
		g.terms = append(g.terms, job)
	}
	if job.place {
		u.places[job.nonce] = job
	}
	u.n.Add(1)
	u.put(g)
	if u.done == nil {
		u.done = make(chan struct{})
		go u.run(u.done)
		return
	}
	u.poke()
}

func (u *undoer) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// granted says that the store has granted a nonce: if that is to be given back, it is due before all others, and if it was, it is once
// more. It is not to be if it is not here, since a nonce that somebody waits for or has is not.
func (u *undoer) granted(nonce string) {
	u.mu.Lock()
	job := u.places[nonce]
	if job == nil {
		lock := u.retired.lockOf(nonce)
		u.mu.Unlock()
		if lock != nil {
			u.addPlace(lock, driver.Ref{Key: storeKey(lock.name, lock.key), Nonce: nonce})
		}
		return
	}
	defer u.mu.Unlock()
	g := u.keys[storeKey(job.lock.name, job.lock.key)]
	i := slices.Index(g.leaves, job)
	if i < 0 { // it is under way
		return
	}
	g.leaves = slices.Insert(slices.Delete(g.leaves, i, i+1), 0, job)
	if g.tries > 0 {
		u.recovered()
	}
	g.turn, g.due = true, time.Time{}
	u.put(g)
	u.poke()
}

// answers says that the store does again, after it had failed, so that all are due.
func (u *undoer) answers() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.recovered()
}

var errLeftToExpire = errors.New("the store has not confirmed it in time; the term ends by its TTL")

// abandon tells that a term under which work had ended, or never begun, is left to end by itself: whoever comes next would take its holder for dead.
func (u *undoer) abandon(job *undo) {
	if !job.ends.IsZero() {
		var left *driver.Ref
		if !job.doubt {
			left = &driver.Ref{Key: storeKey(job.lock.name, job.lock.key), Nonce: job.nonce}
		}
		u.c.emit(Event{
			Kind: Unreleased, Name: job.lock.name, Key: job.lock.key, Abandoned: true, Left: left, Err: job.lock.storeError("release", errLeftToExpire),
		})
	}
}

// stop lets the undos drain until ctx ends, and then waits for the goroutine. Nothing is accepted afterwards. It is called
// when no more heartbeats are sent, so places are over soon.
func (u *undoer) stop(ctx context.Context) {
	u.mu.Lock()
	u.last = time.Now().Add(driver.Alive)
	done := u.done
	u.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	u.mu.Lock() // so that add does not start the goroutine after this
	u.cancel()
	done = u.done
	u.mu.Unlock()
	if done != nil {
		<-done
	}
}
