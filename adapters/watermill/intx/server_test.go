//go:build unix

package intx_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/adapters/watermill/intx"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
)

// What a real server refuses to commit is the handler's failure, again and again, and leaves nothing; a duplicate whose twin is at work comes
// back, also if statement_timeout is shorter than Patience.
func TestOnAServer(t *testing.T) {
	pg := testenv.StartPostgres(t)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := pghold.Migrate(ctx, conn, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE effects (id text, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "INSERT INTO effects VALUES ('there already')"); err != nil {
		t.Fatal(err)
	}
	client, err := pghold.OpenTransactions(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Shutdown(context.Background())
	lock, err := client.NewLock("payout", nil)
	if err != nil {
		t.Fatal(err)
	}
	later := &outbox{}
	middleware := func(t *testing.T, params ...string) message.HandlerMiddleware {
		pool, err := pgxpool.New(ctx, pg.URL(params...))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		ones, err := intx.Middleware(lock, pool.Begin, &intx.Options{Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "later"}})
		if err != nil {
			t.Fatal(err)
		}
		return ones
	}
	ones := middleware(t)
	answer := []*message.Message{message.NewMessage("answer", nil)}
	for what, work := range map[string]message.HandlerFunc{
		"a constraint": func(msg *message.Message) ([]*message.Message, error) {
			_, err := intx.Tx[pgx.Tx](msg.Context()).Exec(msg.Context(), "INSERT INTO effects VALUES ('there already')")
			return nil, err
		},
		"an error passed over": func(msg *message.Message) ([]*message.Message, error) {
			_, _ = intx.Tx[pgx.Tx](msg.Context()).Exec(msg.Context(), "INSERT INTO nothing VALUES (1)")
			return nil, nil
		},
		"an error passed over, with messages": func(msg *message.Message) ([]*message.Message, error) {
			_, _ = intx.Tx[pgx.Tx](msg.Context()).Exec(msg.Context(), "INSERT INTO nothing VALUES (1)")
			return answer, nil
		},
		"a rollback of its own": func(msg *message.Message) ([]*message.Message, error) {
			return nil, intx.Tx[pgx.Tx](msg.Context()).Rollback(msg.Context())
		},
		"a rollback of its own, with messages": func(msg *message.Message) ([]*message.Message, error) {
			return answer, intx.Tx[pgx.Tx](msg.Context()).Rollback(msg.Context())
		},
		"rows that were not read": func(msg *message.Message) ([]*message.Message, error) {
			_, err := intx.Tx[pgx.Tx](msg.Context()).Query(msg.Context(), "SELECT generate_series(1, 10)")
			return nil, err
		},
	} {
		for range 2 { // no record is left
			if made, err := ones(work)(message.NewMessage(what, nil)); err == nil || len(made) > 0 || later.n > 0 || watermillonce.PutAside(err) {
				t.Errorf("%s: %v, %v, %d sent to come back", what, made, err, later.n)
			}
		}
	}

	// The handler may commit what it must not: it is told, and the record says that the job is done.
	commits := ones(func(msg *message.Message) ([]*message.Message, error) {
		return nil, intx.Tx[pgx.Tx](msg.Context()).Commit(msg.Context())
	})
	if _, err := commits(message.NewMessage("commits", nil)); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a commit of its own: %v", err)
	}
	if _, err := commits(message.NewMessage("commits", nil)); err != nil || later.n > 0 {
		t.Errorf("the next delivery: %v, %d sent to come back", err, later.n)
	}

	for n, timeout := range []string{"0", "300"} {
		second := middleware(t, "statement_timeout="+timeout)
		begun, end, done := make(chan bool), make(chan bool), make(chan error)
		first := ones(func(*message.Message) ([]*message.Message, error) { close(begun); <-end; return nil, nil })
		go func() { _, err := first(message.NewMessage("twin "+timeout, nil)); done <- err }()
		<-begun
		_, err := second(func(*message.Message) ([]*message.Message, error) { t.Error("it runs"); return nil, nil })(message.NewMessage("twin "+timeout, nil))
		if err != nil || later.n != n+1 {
			t.Errorf("statement_timeout %s: %v, %d sent to come back", timeout, err, later.n)
		}
		close(end)
		if err := <-done; err != nil {
			t.Errorf("statement_timeout %s, the first: %v", timeout, err)
		}
	}
	if got := pg.Do(t, "SELECT count(*) FROM effects"); got != "1" {
		t.Errorf("%s effects", got)
	}
}
