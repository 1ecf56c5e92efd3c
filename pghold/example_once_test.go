package pghold_test

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/pghold"
)

// settleDay pays out a day, once in all time: the record of that commits with the payments, or vanishes with them.
func settleDay(ctx context.Context, pool *pgxpool.Pool, settle *holdlock.Lock, day string) (ran bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		done, err := pghold.Once(ctx, tx, settle.For(day), &pghold.OnceOptions{Input: []byte(day)})
		if err != nil || done.Already {
			return err
		}
		ran = true
		_, err = tx.Exec(ctx, "INSERT INTO payment (day, amount) SELECT day, sum(amount) FROM sale WHERE day = $1 GROUP BY day", day)
		return err
	})
	return ran && err == nil, err
}

func ExampleOnce() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	locks, err := pghold.OpenTransactions(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Shutdown(ctx)
	settle, err := locks.NewLock("settle", &holdlock.LockOptions{
		Purpose: "pays out the day's sales", DoubleRun: holdlock.Harmful, // a lease would be refused
	})
	if err != nil {
		log.Fatal(err)
	}
	// However often the queue delivers it, the day is paid once. Acknowledge the message if err is nil.
	ran, err := settleDay(ctx, pool, settle, "2026-11-29")
	log.Println(ran, err)
}
