package pghold

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Claim is what one connection of the server has to do with a lock that the list of terms does not show: it waits for
// it, or has it in a transaction. It is for people.
type Claim struct {
	Key     string    // LOCK or LOCK/KEY
	Held    bool      // it has the lock in a transaction or a session; otherwise it waits
	Line    bool      // it waits in line for a lease, and not inside the server
	Since   time.Time // when it began to wait, or its transaction; zero if the server does not say
	PID     int32     // of its backend: what pg_terminate_backend takes; 0 behind a pooler
	Program string    // its application_name
	Client  string    // its address; empty for a unix socket
	By      []int32   // backends that block it
}

// Those in line are rows; an advisory lock has a name if a program has written it down, see lease_names.go. $1 namespace,
// $2 prefix, $3 rows.
const claimsStatement = `
WITH advisory AS MATERIALIZED (
	SELECT l.classid::bigint << 32 | l.objid::bigint AS id, l.pid, l.granted, a.application_name, a.client_addr, a.xact_start, a.query_start
	FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND a.datname = pg_catalog.current_database() AND l.database = a.datid)
SELECT n.key, a.granted, false, "holdlock".us(CASE WHEN a.granted THEN a.xact_start ELSE a.query_start END), a.pid, a.application_name,
	pg_catalog.host(a.client_addr), CASE WHEN a.granted THEN '{}' ELSE pg_catalog.pg_blocking_pids(a.pid) END
FROM advisory a JOIN "holdlock".name n ON n.id = a.id
WHERE n.namespace = $1 AND pg_catalog.starts_with(n.key, $2)
UNION ALL
(SELECT w.key, false, true, "holdlock".us(w.since), a.pid, a.application_name, pg_catalog.host(a.client_addr), '{}'
FROM "holdlock".waiter w LEFT JOIN advisory a ON a.id = w.alive AND a.granted
WHERE w.namespace = $1 AND pg_catalog.starts_with(w.key, $2)
	AND (a.pid IS NOT NULL OR w.alive IS NULL AND w.seen > pg_catalog.clock_timestamp() - interval '4 seconds')
ORDER BY w.key, w.since LIMIT $3)
ORDER BY 1, 2 DESC, 4`

// Claims returns who waits for locks whose name has the prefix, and who has them in transactions, ordered by name and
// then by how long. Of those in line for leases it returns at most limit. What other users' connections do, the server
// shows to members of pg_read_all_stats only.
func (d *LeaseDriver) Claims(ctx context.Context, prefix string, limit int) (claims []Claim, err error) {
	err = d.step(ctx, "list", prefix, d.sql.claims, []any{d.namespace, prefix, limit}, func(rows pgx.Rows) error {
		var c Claim
		var since *int64
		var pid *int32
		var program, client *string
		if err := rows.Scan(&c.Key, &c.Held, &c.Line, &since, &pid, &program, &client, &c.By); err != nil {
			return err
		}
		if since != nil {
			c.Since = time.UnixMicro(*since)
		}
		if pid != nil {
			c.PID = *pid
		}
		if program != nil {
			c.Program = *program
		}
		if client != nil {
			c.Client = *client
		}
		claims = append(claims, c)
		return nil
	})
	return claims, err
}

// Claims is LeaseDriver.Claims.
func (d *SessionDriver) Claims(ctx context.Context, prefix string, limit int) ([]Claim, error) {
	return d.rows.Claims(ctx, prefix, limit)
}
