package pghold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// A term whose holder stands still past its time is over by its row, and yet nobody gets the key: the session has the advisory
// lock. List and Inspect show it, with nothing remaining, and Break with Now ends the session. A process that runs gives the
// lock back a moment before the row ends, so only what is a second overdue is taken for frozen.

// $1 namespace, $2 prefix, $3 key after which to start, $4 the name of sessions, $5 rows. The number of a key is LockID.
const frozenStatement = `
WITH held AS MATERIALIZED (
	SELECT DISTINCT k.classid::bigint << 32 | k.objid::bigint AS id FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
	WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 AND a.datname = pg_catalog.current_database() AND k.database = a.datid
		AND a.application_name = $4)
SELECT l.key, l.nonce, l.state, l.token, "holdlock".us(l.acquired), 0::bigint, l.holder, l.broken FROM "holdlock".lease l
WHERE EXISTS (SELECT FROM held) AND l.namespace = $1 AND pg_catalog.starts_with(l.key, $2) AND l.key > $3 AND l.state = 1
	AND l.expiry < pg_catalog.clock_timestamp() - interval '1 second'
	AND ('x' || pg_catalog.encode(pg_catalog.substring(pg_catalog.sha256(pg_catalog.convert_to('` + lockIDDomain + `', 'UTF8') || pg_catalog.decode('00', 'hex') ||
		pg_catalog.convert_to(l.namespace, 'UTF8') || pg_catalog.decode('00', 'hex') || pg_catalog.convert_to(l.key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
		IN (SELECT held.id FROM held)
ORDER BY l.key LIMIT $5`

// $1 namespace, $2 key, $3 nonce, $4 by whom and why.
const markFrozenStatement = `UPDATE "holdlock".lease AS l SET broken = $4 WHERE l.namespace = $1 AND l.key = $2 AND l.nonce = $3
	AND l.state = 1 AND l.expiry < pg_catalog.clock_timestamp()`

// frozen returns terms of holders that stand still, in the order of keys.
func (d *SessionDriver) frozen(ctx context.Context, verb, prefix, after string, limit int) (found []driver.Term, err error) {
	err = d.rows.step(ctx, verb, prefix, d.sql.frozen, []any{d.rows.namespace, prefix, after, sessionName, limit}, func(rows pgx.Rows) error {
		var key string
		var r record
		if err := rows.Scan(&key, &r.Nonce, &r.State, &r.Token, &r.Acquired, &r.Remaining, &r.Holder, &r.Broken); err != nil {
			return err
		}
		found = append(found, r.term(key))
		return nil
	})
	return found, err
}

// List implements driver.Lister.
func (d *SessionDriver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	found, err := d.rows.List(ctx, prefix, after, limit)
	if err != nil {
		return nil, err
	}
	late, err := d.frozen(ctx, "list", prefix, after, limit)
	if err != nil || len(late) == 0 {
		return found, err
	}
	for _, t := range late { // one that has been taken over between the two looks is shown as it is now
		if !slices.ContainsFunc(found, func(f driver.Term) bool { return f.Key == t.Key }) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b driver.Term) int { return strings.Compare(a.Key, b.Key) })
	return found[:min(limit, len(found))], nil
}

// Inspect implements driver.Lister.
func (d *SessionDriver) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	term, ok, err := d.rows.Inspect(ctx, key)
	if err != nil || ok {
		return term, ok, err
	}
	return d.frozenOne(ctx, "inspect", key)
}

func (d *SessionDriver) frozenOne(ctx context.Context, verb, key string) (driver.Term, bool, error) {
	late, err := d.frozen(ctx, verb, key, "", 1) // the key itself comes before all that it is a prefix of
	if err != nil || len(late) == 0 || late[0].Key != key {
		return driver.Term{}, false, err
	}
	return late[0], true, nil
}

// breakFrozen ends the session of a term that its holder keeps past its time. The error wraps ErrGone if there is none.
func (d *SessionDriver) breakFrozen(ctx context.Context, req *driver.BreakRequest, by string, id int64) error {
	const verb = "break"
	term, ok, err := d.frozenOne(ctx, verb, req.Ref.Key)
	switch {
	case err != nil:
		return err
	case !ok || term.Nonce != req.Ref.Nonce:
		return goneError(verb, req.Ref.Key, "gone", "")
	case !req.Now:
		return fmt.Errorf("pghold: %s %q: its time is over and its holder stands still, so there is no renewal at which it could be told; only Now "+
			"ends its session (%w)", verb, req.Ref.Key, errors.ErrUnsupported)
	}
	err = d.rows.step(ctx, verb, req.Ref.Key, d.sql.markFrozen, []any{d.rows.namespace, req.Ref.Key, req.Ref.Nonce, by}, nothing)
	if err != nil {
		return err
	}
	return d.terminate(ctx, req.Ref.Key, id)
}

// terminate ends the session that has an advisory lock.
func (d *SessionDriver) terminate(ctx context.Context, key string, id int64) error {
	var ended int
	err := d.rows.step(ctx, "break", key, d.sql.terminate, []any{id, sessionName}, func(rows pgx.Rows) error { return rows.Scan(&ended) })
	if code(err) == noRights {
		return fmt.Errorf("%w; its session is another user's: who may, ends it with SELECT pg_terminate_backend(pid) FROM pg_locks "+
			"WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = %d", err, id)
	}
	return err
}
