package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/cmd/lab/servers"
	"github.com/holdlock/holdlock/cmd/lab/worker"
	"github.com/holdlock/holdlock/internal/bootclock"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
)

// nodes is how many servers a quorum has. So many, and a majority of them, are what the matrix says.
const nodes = 5

// A stage is the servers of one experiment.
type stage struct {
	config  worker.Config // of its workers
	redis   []*servers.Redis
	replica *servers.Redis
	proxy   *servers.Proxy
	pg      *servers.Postgres // of all experiments

	mu   sync.Mutex // guards conn
	conn *pgx.Conn  // to pg; nil until it is needed
}

// build starts the servers that a mechanism needs. The caller closes the stage, also after an error.
func (l *laboratory) build(ctx context.Context, mechanism, fault string, maxTTL time.Duration) (*stage, error) {
	st := &stage{config: worker.Config{Mechanism: mechanism, MaxTTL: maxTTL}}
	switch mechanism {
	case worker.NoLock:
		return st, nil
	case worker.Postgres:
		if err := l.startPostgres(ctx); err != nil {
			return st, err
		}
		st.pg, st.config.Postgres = l.pg, l.pg.URL
		return st, nil
	case worker.Naive, worker.Redis:
		if err := st.startRedis(ctx, l.dir, 1); err != nil {
			return st, err
		}
	default:
		if err := st.startRedis(ctx, l.dir, nodes); err != nil {
			return st, err
		}
		if mechanism != worker.NoRule {
			return st, st.declareNew(ctx)
		}
	}
	if fault == Failover {
		return st, st.addReplica(ctx, l.dir)
	}
	return st, nil
}

func (st *stage) startRedis(ctx context.Context, dir *servers.Dir, n int) error {
	st.redis = make([]*servers.Redis, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { st.redis[i], errs[i] = dir.StartRedis(ctx) })
	}
	all.Wait()
	for i, r := range st.redis {
		if errs[i] == nil {
			st.config.Redis = append(st.config.Redis, r.Addr)
		}
	}
	return errs[firstError(errs)]
}

// firstError returns the place of the first error, or 0.
func firstError(errs []error) int {
	for i, err := range errs {
		if err != nil {
			return i
		}
	}
	return 0
}

// declareNew lets a quorum grant at once.
func (st *stage) declareNew(ctx context.Context) error {
	var clients []redis.UniversalClient
	for _, r := range st.redis {
		clients = append(clients, r.Client)
	}
	return redishold.InitQuorum(ctx, clients, &redishold.QuorumOptions{MaxTTL: st.config.MaxTTL})
}

func (st *stage) addReplica(ctx context.Context, dir *servers.Dir) (err error) {
	if st.replica, err = dir.StartRedis(ctx); err != nil {
		return err
	}
	if err := st.replica.Follow(ctx, st.redis[0]); err != nil {
		return err
	}
	if st.proxy, err = servers.StartProxy(st.redis[0].Addr); err != nil {
		return err
	}
	st.config.Redis, st.config.Failover = []string{st.proxy.Addr}, true
	return nil
}

// startPostgres starts the one server of all experiments with PostgreSQL, unless it runs: making one takes a second or two,
// and what one experiment leaves in it does not touch the next one.
func (l *laboratory) startPostgres(ctx context.Context) error {
	if l.pg != nil {
		return nil
	}
	pg, err := l.dir.StartPostgres(ctx)
	if err != nil {
		return err
	}
	if err := prepare(ctx, pg); err != nil {
		pg.Kill()
		return err
	}
	l.pg = pg
	return nil
}

// prepare makes the tables.
func prepare(ctx context.Context, pg *servers.Postgres) error {
	conn, err := pg.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := pghold.Migrate(ctx, conn, ""); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, worker.Log)
	return err
}

// query runs f on the lab's own connection to PostgreSQL.
func (st *stage) query(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.conn == nil {
		if st.conn, err = st.pg.Connect(ctx); err != nil {
			st.conn = nil
			return err
		}
	}
	return f(st.conn)
}

// waits says whether a worker waits inside of PostgreSQL for another transaction.
func (st *stage) waits(ctx context.Context, worker string) (waits bool, err error) {
	err = st.query(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'", worker).Scan(&waits)
	})
	return waits, err
}

// logged returns what the database has kept of a job.
func (st *stage) logged(ctx context.Context, job string) (log []resource.Entry, err error) {
	offset := bootclock.Now() - time.Duration(time.Now().UnixNano())
	err = st.query(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT at, what, worker, ended FROM lab_log WHERE job = $1 ORDER BY at, seq", job)
		if err != nil {
			return err
		}
		log, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e resource.Entry, err error) {
			var at time.Time
			var what string
			err = row.Scan(&at, &what, &e.Worker, &e.Ended)
			e.At, e.What, e.Job, e.Until = offset+time.Duration(at.UnixNano()), resource.What(what), job, resource.Always
			return e, err
		})
		return err
	})
	return log, err
}

// restart kills servers and starts them again: the majority of a quorum, else the one there is. It says which.
func (st *stage) restart(ctx context.Context, r *rand.Rand) (string, error) {
	if st.pg != nil {
		st.hangUp()
		return "the server is killed and starts again, with its data", st.pg.Restart(ctx)
	}
	hit := r.Perm(len(st.redis))[:len(st.redis)/2+1]
	errs := make([]error, len(hit))
	var all sync.WaitGroup
	for i, n := range hit {
		all.Go(func() { errs[i] = st.redis[n].Restart(ctx) })
	}
	all.Wait()
	if len(st.redis) == 1 {
		return "the server is killed and starts again, empty", errors.Join(errs...)
	}
	slices.Sort(hit)
	var names []string
	for _, n := range hit {
		names = append(names, strconv.Itoa(n+1))
	}
	return fmt.Sprintf("nodes %s of %d are killed and start again, empty", strings.Join(names, ", "), nodes), errors.Join(errs...)
}

func (st *stage) stopReplication(ctx context.Context) error { return st.redis[0].StopReplication(ctx) }

// failOver kills the primary and lets the replica take over behind the same address.
func (st *stage) failOver(ctx context.Context) error {
	st.redis[0].Kill()
	if err := st.replica.Promote(ctx); err != nil {
		return err
	}
	st.proxy.Switch(st.replica.Addr)
	return nil
}

// hangUp closes the lab's own connection to PostgreSQL.
func (st *stage) hangUp() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = st.conn.Close(ctx) // the server may be gone
	st.conn = nil
}

// close ends all servers of the experiment.
func (st *stage) close() {
	st.hangUp()
	if st.proxy != nil {
		st.proxy.Close()
	}
	for _, r := range append(st.redis, st.replica) {
		if r != nil {
			r.Kill()
		}
	}
}
