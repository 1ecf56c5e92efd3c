package riverlock_test

import (
	"context"
	"encoding/json"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/holdlock/holdlock"
	riverlock "github.com/holdlock/holdlock/adapters/river"
	"github.com/holdlock/holdlock/once"
)

type SettleArgs struct {
	Day string `json:"day"`
}

func (SettleArgs) Kind() string { return "settle" }

// byDay names the job: two River jobs of one day are one job.
func byDay(row *rivertype.JobRow) (string, error) {
	var args SettleArgs
	err := json.Unmarshal(row.EncodedArgs, &args)
	return args.Day, err
}

type SettleWorker struct {
	river.WorkerDefaults[SettleArgs]
	once rivertype.WorkerMiddleware
}

func (w *SettleWorker) Middleware(*rivertype.JobRow) []rivertype.WorkerMiddleware {
	return []rivertype.WorkerMiddleware{w.once}
}

func (w *SettleWorker) Work(ctx context.Context, job *river.Job[SettleArgs]) error {
	_, err := riverlock.Tx(ctx).Exec(ctx, "INSERT INTO ledger (day) VALUES ($1)", job.Args.Day)
	return err
}

// The effect is in River's own database.
func ExampleInTx() {
	var pool *pgxpool.Pool    // that River works on
	var settle *holdlock.Lock // of a client of pghold.OpenTransactions
	settleOnce, err := riverlock.InTx(pool, settle, byDay, nil)
	if err != nil {
		log.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &SettleWorker{once: settleOnce})
}

// The effect is elsewhere, and must not happen twice: after a run that has died an operator decides.
func ExampleOnce() {
	var charges *holdlock.Lock // on a store with durable records
	chargeOnce, err := riverlock.Once(charges, byDay, &riverlock.OnceOptions{Once: once.Options{OnLapse: once.Hold}, CompareArgs: true})
	if err != nil {
		log.Fatal(err)
	}
	_ = river.Config{Middleware: []rivertype.Middleware{chargeOnce}} // of all workers
}
