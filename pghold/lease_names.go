package pghold

import (
	"context"
	"sync"
	"time"
)

// Locks in transactions leave nothing behind that could be listed, and the server knows them by number. So their names are
// written down, outside the job's transaction and beside it: each name once an hour and process.
const (
	nameAgain = time.Hour
	namesMax  = 10_000 // that a process remembers to have written
	nameQueue = 256    // names that wait to be written; what is more is left for the next use
)

const nameStatement = `INSERT INTO "holdlock".name AS n (id, namespace, key, used)
SELECT q.id, $1, q.key, pg_catalog.now() FROM ROWS FROM (pg_catalog.unnest($2::bigint[]), pg_catalog.unnest($3::text[])) AS q (id, key) ORDER BY q.id
ON CONFLICT (id) DO UPDATE SET used = excluded.used WHERE n.used < excluded.used - interval '1 hour'`

// noting is a store that can write names down.
type noting interface{ note(key string) }

// notebook is what is to be written and what has been.
type notebook struct {
	mu      sync.Mutex
	written map[string]time.Time
	queue   []string
	writing bool
	writer  sync.WaitGroup
	closed  bool
}

// note has a name written down. It does not wait, and is cheap for a name that has been.
func (d *LeaseDriver) note(key string) {
	n := &d.notebook
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, known := n.written[key]; known && time.Since(at) < nameAgain || n.closed || len(n.queue) >= nameQueue {
		return
	}
	if n.written == nil || len(n.written) >= namesMax {
		n.written = map[string]time.Time{}
	}
	n.written[key] = time.Now()
	n.queue = append(n.queue, key)
	if !n.writing {
		n.writing = true
		n.writer.Go(func() { d.writeNames() })
	}
}

// note is for transactions of programs that hold session locks as well.
func (d *SessionDriver) note(key string) { d.rows.note(key) }

func (d *LeaseDriver) writeNames() {
	n := &d.notebook
	for {
		n.mu.Lock()
		keys := n.queue
		n.queue = nil
		if len(keys) == 0 {
			n.writing = false
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		ids := make([]int64, len(keys))
		for i, key := range keys {
			ids[i] = LockID(d.namespace, key)
		}
		ctx, cancel := context.WithTimeout(d.open, collectBudget)
		err := d.step(ctx, "note", keys[0], d.sql.name, []any{d.namespace, ids, keys}, nothing)
		cancel()
		if err != nil { // the next use tries again
			n.mu.Lock()
			for _, key := range keys {
				delete(n.written, key)
			}
			n.mu.Unlock()
		}
	}
}

// close waits for what is being written.
func (n *notebook) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.writer.Wait()
}
