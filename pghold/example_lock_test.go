package pghold_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/pghold"
)

// rebuild makes a report anew, unless another process is about it. Commit and rollback give the lock back.
func rebuild(ctx context.Context, db *sql.DB, report *holdlock.Lock, month string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := pghold.TryLock(ctx, pghold.SQL(tx), report.For(month)); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM report WHERE month = $1", month); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO report (month, total) VALUES ($1, 42)", month); err != nil {
		return err
	}
	return tx.Commit()
}

func ExampleTryLock() {
	var db *sql.DB            // yours
	var report *holdlock.Lock // declared with NewLock
	err := rebuild(context.Background(), db, report, "2026-11")
	if errors.Is(err, holdlock.ErrHeld) {
		log.Println("somebody else does it:", err)
	}
}
