package pghold

import "strings"

// sessionSQL are the statements of session locks. What the common cases need is one plain statement, because a function
// costs as much again; one is for a single call, and one for many.
type sessionSQL struct {
	acquire, acquireMany, acquireRest string
	release, releaseMany, releaseRest string
	wake, renew                       string
	releaseOther, breakTerm           string
	busy, terminate, unlock           string
	frozen, markFrozen                string
}

const (
	// A key that is new, or whose last term was released, is free for who has its advisory lock. The answer is "granted TOKEN
	// PREVIOUS", or else whether the advisory lock was got: "got" or "missed".
	acquireStatement = `WITH tried AS MATERIALIZED (
		SELECT q.*, q.mine OR pg_catalog.pg_try_advisory_lock(q.id) AS got, pg_catalog.clock_timestamp() AS now FROM QUEUE AS q),
	taken AS (
		INSERT INTO "holdlock".lease AS l (namespace, key, nonce, state, token, expiry, acquired, used, holder, previous)
		SELECT $1, t.key, t.nonce, 1, greatest((extract(epoch FROM t.now) * 1000000)::bigint,
			least(t.floor, (extract(epoch FROM t.now) * 1000000)::bigint + 1000000)),
			t.now + t.ttl * interval '1 microsecond', t.now, t.now, t.holder, 0 FROM tried t WHERE t.got
		ON CONFLICT (namespace, key) DO UPDATE SET nonce = excluded.nonce, state = 1, token = greatest(l.token + 1, excluded.token),
			expiry = excluded.expiry, acquired = excluded.acquired, used = excluded.used, holder = excluded.holder, previous = 1
		WHERE l.state = 3 AND l.broken IS NULL AND l.prior IS NULL AND l.undone = '' AND l.token < 9007199254740991
		RETURNING l.key, l.token, l.previous)
	SELECT CASE WHEN k.token IS NOT NULL THEN pg_catalog.concat('granted ', k.token, ' ', k.previous)
		WHEN t.got THEN 'got' ELSE 'missed' END FROM tried t LEFT JOIN taken k USING (key)`

	// The answer is "released"; or "waited" if it is, and somebody has to be woken; or "rest" if there is more to it.
	releaseStatement = `WITH over AS (
		UPDATE "holdlock".lease AS l SET state = 3, expiry = pg_catalog.clock_timestamp(), used = pg_catalog.clock_timestamp(), holder = ''
		FROM QUEUE AS q WHERE l.namespace = $1 AND l.key = q.key AND l.nonce = q.nonce AND l.state = 1
			AND l.expiry > pg_catalog.clock_timestamp() AND l.broken IS NULL AND l.prior IS NULL AND q.mine AND q.keep = 0
		RETURNING l.key, q.id)
	SELECT CASE WHEN o.key IS NULL THEN 'rest'
		WHEN pg_catalog.pg_advisory_unlock(o.id) AND "holdlock".session_waited($1, o.key) THEN 'waited' ELSE 'released' END
	FROM QUEUE AS q LEFT JOIN over o USING (key)
	WHERE pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL`

	acquireOne   = `(SELECT $2::text AS key, $3::text AS nonce, $4::bigint AS ttl, $5::bigint AS floor, $6::text AS holder, $7::bigint AS id, $8::boolean AS mine, 1 AS n)`
	acquireQueue = `(SELECT * FROM ROWS FROM (unnest($2::text[]), unnest($3::text[]), unnest($4::bigint[]), unnest($5::bigint[]),
		unnest($6::text[]), unnest($7::bigint[]), unnest($8::boolean[])) WITH ORDINALITY AS u (key, nonce, ttl, floor, holder, id, mine, n))`
	releaseOne   = `(SELECT $2::text AS key, $3::text AS nonce, $4::bigint AS keep, $5::bigint AS id, $6::boolean AS mine, 1 AS n)`
	releaseQueue = `(SELECT * FROM ROWS FROM (unnest($2::text[]), unnest($3::text[]), unnest($4::bigint[]), unnest($5::bigint[]), unnest($6::boolean[]))
		WITH ORDINALITY AS u (key, nonce, keep, id, mine, n))`

	// Who has an advisory lock in this database.
	lockHolders = `FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
		WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 AND a.datname = pg_catalog.current_database()
		AND k.database = a.datid AND k.classid::bigint << 32 | k.objid::bigint = $1`
)

func newSessionSQL(schema string) sessionSQL {
	in := func(sql, queue string) string { return inSchema(strings.ReplaceAll(sql, "QUEUE", queue), schema) }
	return sessionSQL{
		acquire:      in(acquireStatement, acquireOne),
		acquireMany:  in(acquireStatement+" ORDER BY t.n", acquireQueue),
		acquireRest:  in(`SELECT "holdlock".session_acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)`, ""),
		release:      in(releaseStatement, releaseOne),
		releaseMany:  in(releaseStatement+" ORDER BY q.n", releaseQueue),
		releaseRest:  in(`SELECT "holdlock".session_give_back($1, $2, $3, $4, $5, $6, $7)`, ""),
		wake:         in(`SELECT "holdlock".wake($1, $2)`, ""),
		renew:        in(`SELECT * FROM "holdlock".renew($1, $2, $3, $4, $5)`, ""),
		releaseOther: in(`SELECT "holdlock".session_release($1, $2, $3, $4, $5, $6)`, ""),
		breakTerm:    in(`SELECT "holdlock".session_break($1, $2, $3, $4, $5, $6)`, ""),
		frozen:       in(frozenStatement, ""),
		markFrozen:   in(markFrozenStatement, ""),
		busy:         `SELECT EXISTS (SELECT ` + lockHolders + `)`,
		terminate:    `SELECT count(pg_catalog.pg_terminate_backend(a.pid)) ` + lockHolders + ` AND a.application_name = $2`,
		unlock:       `SELECT pg_catalog.pg_advisory_unlock(id) FROM unnest($1::bigint[]) AS id`,
	}
}
