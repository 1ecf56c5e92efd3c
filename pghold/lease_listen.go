package pghold

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

const (
	helloWait  = 2 * time.Second  // for our own notification, which a pooler swallows
	pingEvery  = 30 * time.Second // how often a silent connection is tried
	pingBudget = 5 * time.Second
	redialMin  = 250 * time.Millisecond
	redialMax  = 5 * time.Second
)

// listen makes sure that hints are heard, by notification or by polling.
func (h *hub) listen(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return &unsentError{ctx.Err()}
	}
	h.mu.Lock()
	mode, closed := h.mode, h.closed
	h.mu.Unlock()
	switch {
	case closed:
		return driver.ErrClosed
	case mode != deaf:
		return nil
	}
	conn, alive, err := h.tune(ctx)
	if err != nil && !errors.Is(err, errPooler) {
		return &unsentError{err} // no term has been touched
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		if conn != nil {
			hangUp(conn)
		}
		return driver.ErrClosed
	}
	if err != nil {
		h.poll(err)
		return nil
	}
	h.mode, h.alive = listening, &alive
	h.running.Go(func() { h.hear(conn) })
	return nil
}

// poll changes to polling for good. The caller holds the mutex.
func (h *hub) poll(why error) {
	h.mode, h.alive = polling, nil
	h.d.log.Warn("waiting works by polling: notifications of PostgreSQL do not come through", "store", h.d.traits.Location, "error", why)
	h.running.Go(h.ask)
}

// errPooler: the connections of clients are not the connections of the server.
var errPooler = errors.New("a pooler in between shares connections by transaction")

// tune takes a connection out of the pool for good and listens on it. It also takes the advisory lock that tells others that we
// live. The error is errPooler if listening is of no use.
func (h *hub) tune(ctx context.Context) (_ *pgx.Conn, alive int64, err error) {
	first, err := h.d.pool.Acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	conn := first.Hijack()
	defer func() {
		if err != nil {
			hangUp(conn)
		}
	}()
	other, err := h.d.pool.Acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer other.Release()
	if err := mustBePrivate(ctx, conn, other.Conn()); err != nil {
		return nil, 0, err
	}
	for _, sql := range []string{
		"LISTEN " + h.channel,
		// An administrator's limit for idle sessions is not meant for one that listens.
		`SELECT pg_catalog.set_config('idle_session_timeout', '0', false)
			WHERE pg_catalog.current_setting('server_version_num')::int >= 140000`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, 0, err
		}
	}
	// The check above can miss a pooler that has backends to spare. So let us hear ourselves.
	if _, err := other.Exec(ctx, "SELECT pg_catalog.pg_notify($1, 'hello')", h.channel); err != nil {
		return nil, 0, err
	}
	wait, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	if _, err := conn.WaitForNotification(wait); err != nil {
		if wait.Err() == nil || ctx.Err() != nil {
			return nil, 0, err
		}
		_, _ = conn.Exec(ctx, "UNLISTEN "+h.channel) // it stays with a backend that others will use
		return nil, 0, fmt.Errorf("%w, or takes notifications for itself", errPooler)
	}
	alive = randomID()
	var locked bool
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_lock($1)", alive).Scan(&locked); err != nil {
		return nil, 0, err
	}
	if !locked {
		return nil, 0, errors.New("the number of an advisory lock that was chosen at random is taken")
	}
	return conn, alive, nil
}

// mustBePrivate finds out by behaviour whether a connection has a backend of its own: it must be the same one before and
// while another connection is in a transaction, and not that one's. A pooler gives an idle client's backend away.
func mustBePrivate(ctx context.Context, conn, other *pgx.Conn) error {
	const whoAmI = "SELECT pg_catalog.pg_backend_pid()"
	var before, during, others int32
	if err := conn.QueryRow(ctx, whoAmI).Scan(&before); err != nil {
		return err
	}
	tx, err := other.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := tx.QueryRow(ctx, whoAmI).Scan(&others); err != nil {
		return err
	}
	if others == before {
		return errPooler
	}
	if err := conn.QueryRow(ctx, whoAmI).Scan(&during); err != nil {
		return err
	}
	if during != before {
		return errPooler
	}
	return nil
}

// randomID returns a number for an advisory lock that nobody else uses.
func randomID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // cannot fail
	return int64(binary.BigEndian.Uint64(b[:]))
}

// hangUp closes connections, and waits for the cancel request that pgx sends about a call which was given up: pgbouncer before
// 1.19 ends itself if the client of such a request goes away before it was heard, as it does when the process ends.
func hangUp(conns ...*pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), stopBudget)
	defer cancel()
	for _, conn := range conns {
		_ = conn.Close(ctx)
	}
	for _, conn := range conns {
		select {
		case <-conn.PgConn().CleanupDone():
		case <-ctx.Done():
			return
		}
	}
}

// hear hands on notifications until the hub is closed, over any number of connections.
func (h *hub) hear(conn *pgx.Conn) {
	for {
		h.follow(conn)
		hangUp(conn)
		h.mu.Lock()
		h.alive = nil
		h.mu.Unlock()
		if conn = h.redial(); conn == nil {
			return
		}
	}
}

// follow reads notifications from a connection until it fails.
func (h *hub) follow(conn *pgx.Conn) {
	for {
		ctx, cancel := context.WithTimeout(h.ctx, pingEvery)
		n, err := conn.WaitForNotification(ctx)
		cancel()
		switch {
		case err == nil:
			h.deliver(n.Payload)
			continue
		case h.ctx.Err() != nil || conn.IsClosed():
			return
		}
		ctx, cancel = context.WithTimeout(h.ctx, pingBudget)
		err = conn.Ping(ctx)
		cancel()
		if err != nil {
			return
		}
	}
}

// redial listens anew and puts everybody into line again. It returns nil when the hub is closed, or polls from now on.
func (h *hub) redial() *pgx.Conn {
	for pause := redialMin; ; pause = min(2*pause, redialMax) {
		select {
		case <-h.ctx.Done():
			return nil
		case <-time.After(pause):
		}
		ctx, cancel := context.WithTimeout(h.ctx, 2*pingBudget)
		conn, alive, err := h.tune(ctx)
		cancel()
		h.mu.Lock()
		if errors.Is(err, errPooler) && !h.closed {
			h.poll(err)
			h.mu.Unlock()
			return nil
		}
		if err != nil {
			h.mu.Unlock()
			continue
		}
		h.alive = &alive
		var all []*watch
		for _, w := range h.watches {
			all = append(all, w)
		}
		h.mu.Unlock()
		h.running.Go(func() { h.lineUp(all) })
		return conn
	}
}

// lineUp puts watchers into their places after a lost connection, and hints to them, as hints may have been lost with it.
func (h *hub) lineUp(all []*watch) {
	for _, w := range all {
		h.mu.Lock()
		there := h.watches[w.id] == w && !h.closed
		if there {
			w.woken = true
			w.again.Reset(0)
		}
		h.mu.Unlock()
		if there {
			w.hint()
		}
	}
}

// freed has a poll look soon, since this process has just given something back.
func (h *hub) freed() {
	select {
	case h.kick <- struct{}{}:
	default: // nobody polls, or will look soon
	}
}

// ask polls for all watchers of the process.
func (h *hub) ask() {
	pause := pollFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.kick:
			if pause > pollFirst { // else it looks soon anyway
				pause = pollFirst
				timer.Reset(pause)
			}
			continue
		case <-timer.C:
		}
		h.mu.Lock()
		n := len(h.watches)
		h.mu.Unlock()
		if n == 0 {
			pause = pollLast
			timer.Reset(time.Hour) // the next one kicks
			continue
		}
		ctx, cancel := context.WithTimeout(h.ctx, pingBudget)
		pause = min(2*pause, pollLast)
		err := h.d.step(ctx, "watch", "", h.d.sql.poll, []any{h.channel}, func(rows pgx.Rows) error {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			h.deliver(id)
			pause = pollFirst
			return nil
		})
		cancel()
		if err != nil {
			pause = pollLast
		}
		timer.Reset(pause)
	}
}
