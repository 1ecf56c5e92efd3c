package pghold_test

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/pghold"
)

// withdraw changes a balance that nobody else can change meanwhile.
func withdraw(ctx context.Context, tx pgx.Tx, account *holdlock.Lock, id string, amount int) error {
	var balance int
	err := pghold.LockRow(ctx, tx, account.For(id), "SELECT balance FROM account WHERE id = $1 FOR UPDATE", id).Scan(&balance)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE account SET balance = $2 WHERE id = $1", id, balance-amount)
	return err
}

func ExampleLockRow() {
	var tx pgx.Tx              // yours
	var account *holdlock.Lock // declared with NewLock
	_ = withdraw(context.Background(), tx, account, "alice", 5)
}
