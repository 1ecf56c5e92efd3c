package sqlitehold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Waiting processes are woken by datagrams. A process that watches has one socket with a random name that no file stands
// for, so nothing is left of it when the process dies; the line of waiters stands in the file. Whoever releases a key
// finds the first waiter in the same statement, and sends its process the key when the release is committed.

const (
	stopBudget = time.Second // how long stop may wait for a locked file
	lineStep   = 64          // waiters that are read at once
)

// watches are the watches of this process.
type watches struct {
	mu      sync.Mutex
	closed  bool
	name    string              // random; all addresses of this driver begin with it
	inboxes int                 // how many there have been
	inbox   *inbox              // nil while nobody watches
	line    map[string][]*watch // by key, in the order in which they came
	left    []waiter            // rows that could not be removed in time

	out outbox
}

// A watch is one caller that waits for one key.
type watch struct {
	key   string
	hints chan struct{} // holds one value
	row   waiter
	stop  sync.Once
}

var _ driver.Waiter = (*Driver)(nil)

// Watch implements driver.Waiter.
func (d *Driver) Watch(ctx context.Context, key string) (hints <-chan struct{}, stop func(), err error) {
	v, err := d.join(key)
	if err != nil {
		return nil, nil, err
	}
	var seq int64
	err = d.call(ctx, "watch", key, func(w *writer) error {
		_, err := w.row(watchStatement, []any{d.namespace, key, d.net, v.row.address, d.boot, int64(d.now())}, &seq)
		return err
	})
	if err != nil {
		d.leave(v) // if there is a row all the same, whoever finds it sees that nobody stands behind it
		return nil, nil, err
	}
	d.watches.mu.Lock()
	v.row.seq = seq
	d.watches.mu.Unlock()
	return v.hints, func() { v.stop.Do(func() { d.leave(v) }) }, nil
}

// join puts a watch in the line of this process, before it is in that of the file, so that no hint finds nobody.
func (d *Driver) join(key string) (*watch, error) {
	ws := &d.watches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return nil, d.gate.unapplied("watch", key, "", driver.ErrClosed)
	}
	if ws.inbox == nil {
		if ws.name == "" {
			var b [16]byte
			rand.Read(b[:])                                         // never fails
			ws.name = "@holdlock-" + hex.EncodeToString(b[:]) + "-" // @: an abstract address, not a file
		}
		ws.inboxes++
		in, err := listen(ws.name+strconv.Itoa(ws.inboxes), d.deliver)
		if err != nil {
			return nil, d.gate.unapplied("watch", key, "making a socket", err)
		}
		ws.inbox, ws.line = in, map[string][]*watch{}
	}
	v := &watch{key: key, hints: make(chan struct{}, 1), row: waiter{address: ws.inbox.address}}
	ws.line[key] = append(ws.line[key], v)
	return v, nil
}

// leave ends a watch. A hint that it has not read is passed on.
func (d *Driver) leave(v *watch) {
	ws := &d.watches
	ws.mu.Lock()
	i := slices.Index(ws.line[v.key], v)
	if i < 0 { // the driver was closed
		ws.mu.Unlock()
		return
	}
	var last *inbox
	if ws.line[v.key] = slices.Delete(ws.line[v.key], i, i+1); len(ws.line[v.key]) == 0 {
		if delete(ws.line, v.key); len(ws.line) == 0 {
			last, ws.inbox = ws.inbox, nil
		}
	}
	var rows []waiter
	if v.row.seq != 0 {
		rows, ws.left = append(ws.left, v.row), nil
	}
	ws.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), stopBudget)
	defer cancel()
	if len(rows) > 0 {
		d.removeWaiters(ctx, v.key, rows)
	}
	if len(v.hints) > 0 {
		d.passOn(ctx, v.key)
	}
	if last != nil {
		for _, key := range last.close() {
			d.passOn(ctx, key)
		}
	}
}

// removeWaiters takes rows out of the line of the file, now or together with the next ones.
func (d *Driver) removeWaiters(ctx context.Context, key string, rows []waiter) {
	if err := d.call(ctx, "stop watching", key, func(w *writer) error { return w.unwatch(rows) }); err != nil {
		d.watches.mu.Lock()
		d.watches.left = append(d.watches.left, rows...)
		d.watches.mu.Unlock()
	}
}

// closeWatches ends all watches; their stop functions do nothing from then on.
func (d *Driver) closeWatches() {
	ws := &d.watches
	ws.mu.Lock()
	in, rows := ws.inbox, ws.left
	var unread []string
	for key, vs := range ws.line {
		for _, v := range vs {
			if rows = append(rows, v.row); len(v.hints) > 0 {
				unread = append(unread, key)
			}
		}
	}
	ws.closed, ws.inbox, ws.line, ws.left = true, nil, nil, nil
	ws.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), stopBudget)
	defer cancel()
	if len(rows) > 0 {
		d.removeWaiters(ctx, "", rows)
	}
	if in != nil {
		unread = append(unread, in.close()...)
	}
	for _, key := range unread {
		d.passOn(ctx, key)
	}
	ws.out.close()
}

// forAll stands behind the key in a datagram that is for every watch of it. No key holds that; a process of a release that
// does not know it finds no such key, and that is all.
const forAll = "\x00"

// deliver hands a hint to the first watch of the key that has read its last one, or to all. It runs on the reader of the
// inbox.
func (d *Driver) deliver(ctx context.Context, key string) {
	key, all := strings.CutSuffix(key, forAll)
	ws := &d.watches
	ws.mu.Lock()
	line := ws.line[key]
	for _, v := range line {
		select {
		case v.hints <- struct{}{}:
			if !all {
				ws.mu.Unlock()
				return
			}
		default:
		}
	}
	ws.mu.Unlock()
	if len(line) > 0 || all {
		return // they have all been told
	}
	ctx, cancel := context.WithTimeout(ctx, stopBudget)
	defer cancel()
	d.passOn(ctx, key)
}

// wake tells the first waiter that the key may be free, or the next one that can be told.
func (d *Driver) wake(ctx context.Context, key, first string) {
	if d.watches.out.send(first, key) != sent {
		d.passOn(ctx, key)
	}
}

// wakeAll tells the first waiters, as many as are read at once, that the job of the key is done. The rest poll.
func (d *Driver) wakeAll(ctx context.Context, key string) {
	var line []waiter
	var v waiter
	err := d.call(ctx, "wake the waiters of", key, func(w *writer) error {
		line = line[:0]
		return w.all(lineStatement, []any{d.namespace, key, d.boot, d.net, lineStep}, []any{&v.seq, &v.address},
			func() { line = append(line, v) })
	})
	if err != nil {
		return // they poll as well
	}
	told := map[string]bool{}
	for _, v := range line {
		if !told[v.address] {
			told[v.address] = true
			d.watches.out.send(v.address, key+forAll) // who is dead is removed by whoever wakes one
		}
	}
}

// passOn tells the first waiter that can be told, and removes those before it whose process is gone.
func (d *Driver) passOn(ctx context.Context, key string) {
	for {
		var line, dead []waiter
		var v waiter
		err := d.call(ctx, "wake the waiters of", key, func(w *writer) error {
			line = line[:0]
			return w.all(lineStatement, []any{d.namespace, key, d.boot, d.net, lineStep}, []any{&v.seq, &v.address},
				func() { line = append(line, v) })
		})
		if err != nil {
			return // the waiters poll as well
		}
		told := slices.ContainsFunc(line, func(v waiter) bool {
			if d.hasLeft(key, v) {
				dead = append(dead, v)
				return false
			}
			switch d.watches.out.send(v.address, key) {
			case sent:
				return true
			case refused:
				dead = append(dead, v)
			}
			return false
		})
		if len(dead) > 0 {
			_ = d.call(ctx, "remove dead waiters of", key, func(w *writer) error { return w.unwatch(dead) })
		}
		if told || len(dead) < lineStep {
			return
		}
	}
}

// hasLeft says whether a row is of a watch of this driver that has ended.
func (d *Driver) hasLeft(key string, v waiter) bool {
	ws := &d.watches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.name != "" && strings.HasPrefix(v.address, ws.name) &&
		!slices.ContainsFunc(ws.line[key], func(w *watch) bool { return w.row.address == v.address })
}
