package choosing

import (
	"context"
	"database/sql"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
)

// setPrice works out a price, which takes long, and stores it. The table refuses a holder that was paused meanwhile and overtaken.
func setPrice(ctx context.Context, db *sql.DB, marks *fence.SQL, prices *holdlock.Lock, item string, price func(context.Context) (int, error)) error {
	return prices.For(item).Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error {
		amount, err := price(ctx)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := marks.Check(ctx, tx, fence.Of(lease)); err != nil {
			return err // errors.Is(err, fence.ErrStale): somebody later has been here
		}
		if _, err := tx.ExecContext(ctx, "UPDATE items SET price = $1 WHERE name = $2", amount, item); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// fenced are the settings of such a lock. Its store must have durable tokens.
var fenced = holdlock.LockOptions{Purpose: "sets the price of an item", DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced}
