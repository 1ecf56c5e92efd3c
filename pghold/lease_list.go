package pghold

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// A page of terms. It looks at a bounded number of rows, however few of them are live, and returns the live ones and the
// last one it has looked at, from which the next page goes on. $1 namespace, $2 prefix, $3 key after which to start, $4 rows. A row whose times
// somebody has set to infinity by hand must not hide the others: it is held since 1970, or for 285 years more.
const listStatement = `
WITH page AS MATERIALIZED (
	SELECT l.* FROM "holdlock".lease l WHERE l.namespace = $1 AND l.key >= $2 AND l.key > $3 ORDER BY l.key LIMIT $4)
SELECT p.key, p.nonce, p.state, p.token, CASE WHEN pg_catalog.isfinite(p.acquired) THEN "holdlock".us(p.acquired) ELSE 0 END,
	CASE WHEN pg_catalog.isfinite(p.expiry) THEN "holdlock".us(p.expiry) - "holdlock".us(pg_catalog.clock_timestamp()) ELSE 9000000000000000 END,
	p.holder, p.broken,
	p.state IN (1, 2) AND p.expiry > pg_catalog.clock_timestamp(), (SELECT pg_catalog.count(*) FROM page)
FROM page p
WHERE p.state IN (1, 2) AND p.expiry > pg_catalog.clock_timestamp() OR p.key = (SELECT pg_catalog.max(q.key) FROM page q)
ORDER BY p.key`

const inspectStatement = `
SELECT l.nonce, l.state, l.token, "holdlock".us(l.acquired),
	"holdlock".us(l.expiry) - "holdlock".us(pg_catalog.clock_timestamp()), l.holder, l.broken
FROM "holdlock".lease l
WHERE l.namespace = $1 AND l.key = $2 AND l.state IN (1, 2) AND l.expiry > pg_catalog.clock_timestamp()`

// listStep is how many rows one statement looks at.
const listStep = 2000

// List implements driver.Lister.
func (d *LeaseDriver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	var found []driver.Term
	for more := true; more && len(found) < limit; {
		more = false
		err := d.step(ctx, "list", prefix, d.sql.list, []any{d.namespace, prefix, after, listStep}, func(rows pgx.Rows) error {
			var key string
			var r record
			var live bool
			var seen int
			err := rows.Scan(&key, &r.Nonce, &r.State, &r.Token, &r.Acquired, &r.Remaining, &r.Holder, &r.Broken, &live, &seen)
			if err != nil {
				return err
			}
			within := strings.HasPrefix(key, prefix)
			after, more = key, within && seen == listStep
			if within && live && len(found) < limit {
				found = append(found, r.term(key))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Inspect implements driver.Lister.
func (d *LeaseDriver) Inspect(ctx context.Context, key string) (term driver.Term, ok bool, err error) {
	err = d.step(ctx, "inspect", key, d.sql.inspect, []any{d.namespace, key}, func(rows pgx.Rows) error {
		var r record
		err := rows.Scan(&r.Nonce, &r.State, &r.Token, &r.Acquired, &r.Remaining, &r.Holder, &r.Broken)
		term, ok = r.term(key), true
		return err
	})
	return term, ok && err == nil, err
}
