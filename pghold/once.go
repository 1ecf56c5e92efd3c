package pghold

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock"
)

// OnceOptions are for Once; nil means all defaults.
type OnceOptions struct {
	// Keep is how long the record stays: a delivery that comes later runs the job again. It must be longer than anything can be
	// redelivered. Default 30 days; holdlock.Forever is no limit.
	Keep time.Duration
	// Input, if not nil, is what the job was asked to do. A later delivery under the same key with another Input is refused
	// with ErrInput: two different jobs have got one key. Only a hash of it is kept.
	Input []byte
}

// ErrInput means that a job with this key has been done, and it was asked for something else.
var ErrInput = errors.New("the key was used for a job with another input")

// Done is what Once has found.
type Done struct {
	// Already says that the job has been done, by a transaction that has committed. Do not run it; the message can be
	// acknowledged. The other fields tell about that time.
	Already bool
	At      time.Time // by the server's clock
	Result  []byte    // as given to SetResult then; nil if it was not

	u  *txUse
	tx Tx
}

// Once makes the transaction the one that does a job, in all time: it writes a record of the job into the transaction, which commits or
// vanishes with the job's own writes. Call it first:
//
//	done, err := pghold.Once(ctx, tx, settle.For(day), nil)
//	if err != nil || done.Already {
//		return err // and roll back
//	}
//	… the job's writes with tx, then tx.Commit
//
// A second delivery, at any time and on any machine, waits for a transaction that is under way. If that commits, it is told Already; if it
// rolls back, is killed or loses its connection, the second one runs. A job that fails leaves no record: roll back, and
// the next delivery runs it. If the answer to Commit is lost, deliver again: the record says whether it had happened.
//
// That holds for the writes of this transaction and for nothing else: a mail that the job sends can be sent twice.
//
// Deadlines and errors are as for Lock. Above READ COMMITTED a transaction cannot see what was committed after its
// first statement; it is then told ErrRetry and has to be run again from its beginning. A Harmful lock is allowed.
//
// Records that are past their Keep are ignored, and removed by RemoveOld.
func Once(ctx context.Context, tx Tx, lock *holdlock.Lock, opts *OnceOptions) (*Done, error) {
	if opts == nil {
		opts = &OnceOptions{}
	}
	u, err := use(ctx, "Once", lock)
	if err != nil {
		return nil, err
	}
	if opts.Keep < 0 {
		return nil, u.ended(ctx, fmt.Errorf("%w: Keep is %s; 0 for the default, or a positive duration", holdlock.ErrInvalid, opts.Keep))
	}
	d := &Done{u: u, tx: tx}
	if err := d.claim(ctx, opts); err != nil {
		return nil, u.ended(ctx, advise(err))
	}
	if d.Already {
		u.Ended(holdlock.Duplicate, nil)
		return d, nil
	}
	return d, u.ended(ctx, nil)
}

const defaultKeep = 30 * 24 * time.Hour

const (
	// The record waits for a transaction that has written one and has not ended: that is the lock.
	writeRecord = `INSERT INTO "holdlock".done (namespace, key, done_at, keep_until, fingerprint)
	SELECT $1::text, $2::text, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + $3::float8 * interval '1 second', $4::bytea`
	unlessThere = ` ON CONFLICT (namespace, key) DO NOTHING RETURNING 1`

	claimForever = `WITH written AS (` + writeRecord + unlessThere + `) SELECT count(*) FROM written`

	readRecord = `SELECT done_at, result, fingerprint, keep_until <= pg_catalog.clock_timestamp() FROM "holdlock".done
	WHERE namespace = $1 AND key = $2`

	dropOld = `DELETE FROM "holdlock".done WHERE namespace = $1 AND key = $2 AND keep_until <= pg_catalog.clock_timestamp()`
)

// claimWithin is claimForever with a limit of the wait, which is parameter 5.
var claimWithin = `WITH ` + limitWait(5) + `,
	written AS (` + writeRecord + ` FROM limited` + unlessThere + `),
	counted AS MATERIALIZED (SELECT count(*) AS n FROM written)
	SELECT n FROM counted, before WHERE pg_catalog.set_config('lock_timeout', before.value, true) IS NOT NULL`

// claim writes the record, or reads the one that is there.
func (d *Done) claim(ctx context.Context, opts *OnceOptions) error {
	var print []byte
	if opts.Input != nil {
		sum := sha256.Sum256(opts.Input)
		print = sum[:]
	}
	query, args := claimForever, []any{d.u.namespace, d.u.StoreKey(), seconds(opts.Keep), print}
	if wait, bounded := d.u.patience(ctx); bounded {
		query, args = claimWithin, append(args, wait)
	}
	query = inSchema(query, d.u.schema)
	for {
		var written int64
		err := d.tx.QueryRow(ctx, query, args...).Scan(&written)
		if err != nil || written == 1 {
			return err
		}
		// A further statement, because this one began before the wait and does not see the record.
		var old bool
		var theirs []byte
		err = d.tx.QueryRow(ctx, inSchema(readRecord, d.u.schema), d.u.namespace, d.u.StoreKey()).Scan(&d.At, &d.Result, &theirs, &old)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows): // it has just been removed
			continue
		case err != nil:
			return err
		case old:
			if _, err := d.tx.Exec(ctx, inSchema(dropOld, d.u.schema), d.u.namespace, d.u.StoreKey()); err != nil {
				return err
			}
			d.At, d.Result = time.Time{}, nil
			continue
		case print != nil && theirs != nil && !bytes.Equal(print, theirs):
			return fmt.Errorf("%w: it was done at %s", ErrInput, d.At.Format(time.RFC3339))
		}
		d.Already = true
		return nil
	}
}

func seconds(keep time.Duration) float64 {
	switch keep {
	case 0:
		return defaultKeep.Seconds()
	case holdlock.Forever:
		return 1e10 // beyond any life of a database
	}
	return keep.Seconds()
}

// SetResult keeps a result with the record, in the transaction, for later deliveries to be told. It is for the
// transaction that does the job.
func (d *Done) SetResult(ctx context.Context, result []byte) error {
	if d.Already {
		return fmt.Errorf("SetResult of lock %q key %q: the job was done before, its result stands", d.u.name, d.u.key)
	}
	_, err := d.tx.Exec(ctx, inSchema(`UPDATE "holdlock".done SET result = $3, done_at = pg_catalog.clock_timestamp()
		WHERE namespace = $1 AND key = $2`, d.u.schema), d.u.namespace, d.u.StoreKey(), result)
	if err != nil {
		return d.u.failure(ctx, err)
	}
	return nil
}

// RemoveOld removes up to limit records of Once that are past their Keep, oldest first, and returns how many. Call it now and then, from
// anywhere: records that somebody uses are passed over. schema is that of the client; "" is DefaultSchema.
func RemoveOld(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, schema string, limit int,
) (int64, error) {
	schema, err := checkSchema(schema)
	if err != nil {
		return 0, err
	}
	tag, err := db.Exec(ctx, inSchema(`DELETE FROM "holdlock".done WHERE (namespace, key) IN (
		SELECT namespace, key FROM "holdlock".done WHERE keep_until <= pg_catalog.clock_timestamp()
		ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED)`, schema), limit)
	if err != nil {
		return 0, fmt.Errorf("pghold: removing old records of schema %q: %w", schema, err)
	}
	return tag.RowsAffected(), nil
}
