//go:build unix

package pghold

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/internal/testenv"
)

// The settlement example: two workers are given the same job, again and again, until one says that it is done. One
// delivery in five meets a fault at a random moment before, during or after the commit: its worker is killed, is paused
// until the server has ended its transaction, or has its connection cut. Each job has to be in the ledger once.

// A settlement is one run of it.
type settlement struct {
	t       *testing.T
	p       *testenv.Postgres
	schema  string
	mode    string // once, or outside: the lock is not in the transaction
	workers []*worker
	faults  map[string]int
}

// A worker is a process that settles what it is told to, by way of a proxy of its own.
type worker struct {
	s     *settlement
	proxy *testenv.Proxy
	h     *helper
}

const idleTimeout = 150 * time.Millisecond // after which the server ends a transaction that stands still

func newSettlement(t *testing.T, mode string) *settlement {
	t.Helper()
	p := testenv.SharedPostgres(t)
	s := &settlement{t: t, p: p, schema: migrated(t, p), mode: mode, faults: map[string]int{}}
	p.Do(t, inSchema(`CREATE TABLE "holdlock".ledger (job text, worker int); CREATE TABLE "holdlock".settled (job text PRIMARY KEY)`, s.schema))
	for range 2 {
		w := &worker{s: s, proxy: testenv.StartProxy(t, p.Addr, nil)}
		w.start()
		s.workers = append(s.workers, w)
	}
	return s
}

func (w *worker) start() {
	url := strings.Replace(w.s.p.URL(), w.s.p.Addr, w.proxy.Addr, 1)
	w.h = startHelper(w.s.t, "settle", "PGHOLD_URL="+url, "PGHOLD_SCHEMA="+w.s.schema, "PGHOLD_MODE="+w.s.mode)
}

// deliver gives a job to the worker and says whether it reported it as done.
func (w *worker) deliver(job string) bool {
	if _, err := fmt.Fprintln(w.h.in, job); err != nil {
		w.start()
		return false
	}
	for {
		select {
		case line, alive := <-w.h.lines:
			if !alive {
				w.start()
				return false
			}
			if said, found := strings.CutPrefix(line, job+" "); found {
				return said == "done"
			}
		case <-time.After(patience):
			w.s.t.Errorf("a worker says nothing about job %s", job)
			return false
		}
	}
}

// strike does harm to a process of the worker after a random delay.
func (w *worker) strike(h *helper, kind string) {
	time.Sleep(rand.N(8 * time.Millisecond))
	switch kind {
	case "kill":
		_ = h.cmd.Process.Kill()
	case "pause":
		_ = h.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(2 * idleTimeout)
		_ = h.cmd.Process.Signal(syscall.SIGCONT)
	case "cut":
		w.proxy.CutAll()
	}
}

// commits is a piece of data that holds a COMMIT, as pgx sends it.
func commits(data []byte) bool { return bytes.Contains(data, []byte("commit")) }

// run settles n jobs and returns those that are not in the ledger exactly once.
func (s *settlement) run(n int) (wrong []string) {
	s.t.Helper()
	kinds := []string{"kill", "pause", "cut", "lose the answer to the commit"}
	for i := range n {
		job := fmt.Sprint("job", i)
		var wg sync.WaitGroup
		for _, w := range s.workers {
			if rand.N(5) == 0 {
				kind := kinds[rand.N(len(kinds))]
				s.faults[kind]++
				if kind == kinds[3] {
					w.proxy.SetScript(func(up bool, data []byte) testenv.Verdict {
						if up && commits(data) {
							return testenv.LoseReply
						}
						return testenv.Pass
					})
				} else {
					h := w.h
					wg.Go(func() { w.strike(h, kind) })
				}
			}
			wg.Go(func() { w.deliver(job) })
		}
		wg.Wait()
		for _, w := range s.workers {
			w.proxy.SetScript(nil)
		}
		for try := 0; !s.workers[0].deliver(job); try++ { // redelivered until it is acknowledged
			if try == 100 {
				s.t.Fatalf("job %s is never done", job)
			}
		}
	}
	for line := range strings.Lines(s.p.Do(s.t, inSchema(`SELECT job, count(ledger.job) FROM
		(SELECT 'job' || i AS job FROM generate_series(0, `+fmt.Sprint(n-1)+`) AS i) AS jobs LEFT JOIN "holdlock".ledger USING (job)
		GROUP BY job HAVING count(ledger.job) <> 1`, s.schema))) {
		wrong = append(wrong, strings.TrimSpace(line))
	}
	s.t.Logf("%s: %d jobs, faults %v, not exactly once in the ledger: %d", s.mode, n, s.faults, len(wrong))
	return wrong
}

func TestSettlement(t *testing.T) {
	t.Parallel()
	if wrong := newSettlement(t, "once").run(120); len(wrong) > 0 {
		t.Errorf("jobs that are not in the ledger exactly once: %v", wrong)
	}
}

// The control: with a lock and a record beside the transaction, instead of in it, jobs are settled twice.
func TestSettlementWithTheLockOutside(t *testing.T) {
	t.Parallel()
	s := newSettlement(t, "outside")
	var wrong []string
	for tries := 0; len(wrong) == 0 && tries < 10; tries++ {
		wrong = s.run(60)
		s.p.Do(t, inSchema(`TRUNCATE "holdlock".ledger, "holdlock".settled`, s.schema))
	}
	if len(wrong) == 0 {
		t.Error("no job was settled twice, so the test of Once tells nothing")
	}
}

// helperSettle reads jobs and settles them until its input ends.
func helperSettle() {
	schema := os.Getenv("PGHOLD_SCHEMA")
	ctx := context.Background()
	c, err := OpenTransactions(&TxOptions{Schema: schema})
	if err != nil {
		panic(err)
	}
	lock, err := c.NewLock("settle", nil)
	if err != nil {
		panic(err)
	}
	w := settler{url: os.Getenv("PGHOLD_URL"), schema: schema}
	for scan := bufio.NewScanner(os.Stdin); scan.Scan(); {
		job := scan.Text()
		err := w.connected(ctx, func(conn *pgx.Conn) error {
			if os.Getenv("PGHOLD_MODE") == "outside" {
				return w.outside(ctx, conn, job)
			}
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				done, err := Once(ctx, tx, lock.For(job), nil)
				if err != nil || done.Already {
					return err
				}
				return w.work(ctx, tx, job)
			})
		})
		if err != nil {
			fmt.Println(job, "failed:", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println(job, "done")
		}
	}
}

// settler is what the workers of both kinds have in common.
type settler struct {
	url, schema string
	conn        *pgx.Conn
}

// connected calls f with a connection, a new one if the last call has failed.
func (w *settler) connected(ctx context.Context, f func(conn *pgx.Conn) error) (err error) {
	if w.conn == nil {
		if w.conn, err = pgx.Connect(ctx, w.url); err != nil {
			return err
		}
		_, err = w.conn.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", idleTimeout.Milliseconds()))
	}
	if err == nil {
		err = f(w.conn)
	}
	if err != nil {
		w.conn.Close(ctx)
		w.conn = nil
	}
	return err
}

func (w *settler) work(ctx context.Context, tx pgx.Tx, job string) error {
	_, err := tx.Exec(ctx, inSchema(`INSERT INTO "holdlock".ledger SELECT $1, pg_backend_pid() FROM pg_sleep($2)`, w.schema),
		job, rand.Float64()*0.003)
	return err
}

// outside holds an advisory lock of the session around the transaction, and keeps a record of what is done beside it.
func (w *settler) outside(ctx context.Context, conn *pgx.Conn, job string) error {
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", LockID(w.schema, job)); err != nil {
		return err
	}
	defer conn.Exec(ctx, "SELECT pg_advisory_unlock_all()")
	var done bool
	err := conn.QueryRow(ctx, inSchema(`SELECT EXISTS (SELECT FROM "holdlock".settled WHERE job = $1)`, w.schema), job).Scan(&done)
	if err != nil || done {
		return err
	}
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return w.work(ctx, tx, job) }); err != nil {
		return err
	}
	tag, err := conn.Exec(ctx, inSchema(`INSERT INTO "holdlock".settled VALUES ($1)`, w.schema), job)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("no record")
	}
	return err
}
