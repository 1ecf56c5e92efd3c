package choosing

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/pghold"
)

// payOut pays a day out once, however often it is asked to: the record of that and the payment are one transaction.
func payOut(ctx context.Context, pool *pgxpool.Pool, payouts *holdlock.Lock, day string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		done, err := pghold.Once(ctx, tx, payouts.For(day), nil)
		if err != nil || done.Already {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO payments (day, amount) SELECT day, sum(amount) FROM sales WHERE day = $1 GROUP BY day", day)
		return err
	})
}

// payouts declares that lock. No lease may be taken on it: a client of pghold.OpenTransactions has none to give.
func payouts() (*holdlock.Client, *holdlock.Lock, error) {
	locks, err := pghold.OpenTransactions(nil)
	if err != nil {
		return nil, nil, err
	}
	lock, err := locks.NewLock("payout", &holdlock.LockOptions{Purpose: "pays out the sales of a day", DoubleRun: holdlock.Harmful})
	return locks, lock, err
}
