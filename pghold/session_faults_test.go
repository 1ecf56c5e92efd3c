//go:build unix

package pghold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

func openSessions(tb testing.TB, url string, opts SessionOptions) *holdlock.Client {
	tb.Helper()
	c, err := OpenSessions(testContext(tb), url, &opts)
	must(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Shutdown(ctx) // what a test has left open is its own affair
	})
	return c
}

func lockOf(tb testing.TB, c *holdlock.Client, ttl time.Duration) *holdlock.Lock {
	tb.Helper()
	l, err := c.NewLock("job", &holdlock.LockOptions{TTL: ttl})
	must(tb, err)
	return l
}

// through is the URL of a server by way of a proxy.
func through(p *testenv.Postgres, x *testenv.Proxy) string {
	return strings.Replace(p.URL(), p.Addr, x.Addr, 1)
}

// Behind a pooler in transaction mode an advisory lock belongs to nobody.
func TestSessionRefusesTransactionPooling(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	b := testenv.StartPgbouncer(t, p, "transaction")

	// The control: two clients get the same lock.
	var got [2]bool
	for i := range got {
		conn := connect(t, b.URL("default_query_exec_mode=simple_protocol"))
		must(t, conn.QueryRow(testContext(t), "SELECT pg_try_advisory_lock(4711)").Scan(&got[i]))
	}
	if !got[0] || !got[1] {
		t.Errorf("the pooler keeps its clients apart (%v), so this test tells nothing", got)
	}

	start := time.Now()
	_, err := NewSessionDriver(testContext(t), b.URL(), &SessionOptions{Schema: schema})
	if !errors.Is(err, errPooled) || !strings.Contains(err.Error(), "pghold.Open") {
		t.Fatalf("behind a pooler in transaction mode: %v", err)
	}
	t.Logf("refused after %v: %v", time.Since(start), err)
	for _, settings := range []string{"server_round_robin=1", "default_pool_size=2"} {
		b := testenv.StartPgbouncer(t, p, "transaction", settings)
		if _, err := NewSessionDriver(testContext(t), b.URL(), &SessionOptions{Schema: schema}); !errors.Is(err, errPooled) {
			t.Errorf("behind a pooler with %s: %v", settings, err)
		}
	}
	// In session mode a client has a backend for itself.
	d := sessionDriver(t, testenv.StartPgbouncer(t, p, "session").URL(), schema, SessionOptions{})
	must(t, sessionPair(d, "k"))
}

func TestSessionRefusesAReplica(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	r := p.StartReplica(t)
	_, err := NewSessionDriver(testContext(t), r.URL(), &SessionOptions{Schema: schema})
	if !errors.Is(err, errStandbyServer) || !strings.Contains(err.Error(), "target_session_attrs") {
		t.Errorf("on a standby: %v", err)
	}
}

// A rival asks for a lock without a pause. It says when it was granted it.
type rival struct {
	granted chan time.Time
	asked   atomic.Int64
}

func startRival(t *testing.T, l *holdlock.Lock) *rival {
	t.Helper()
	r := &rival{granted: make(chan time.Time, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			lease, err := l.TryAcquire(ctx)
			r.asked.Add(1)
			if err == nil {
				r.granted <- time.Now()
				_ = lease.Release(context.Background())
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

// Whatever ends a connection, the work is told, with the cause, before another one holds the lock.
func TestSessionEndsUnderItsHolder(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(t *testing.T, p *testenv.Postgres, x *testenv.Proxy, pid uint32) (free func()){
		"terminated": func(t *testing.T, p *testenv.Postgres, _ *testenv.Proxy, pid uint32) func() {
			p.Do(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
			return func() {}
		},
		"server killed and started again": func(t *testing.T, p *testenv.Postgres, _ *testenv.Proxy, _ uint32) func() {
			p.Restart(t)
			return func() {}
		},
		"connection reset": func(_ *testing.T, _ *testenv.Postgres, x *testenv.Proxy, _ uint32) func() {
			x.CutAll()
			return func() {}
		},
		"network gone without a FIN": func(_ *testing.T, _ *testenv.Postgres, x *testenv.Proxy, _ uint32) func() {
			x.SetScript(func(bool, []byte) testenv.Verdict { return testenv.Drop })
			return x.CutAll // much later the server notices as well
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.StartPostgres(t)
			schema := migrated(t, p)
			x := testenv.StartProxy(t, p.Addr, nil)
			opts := SessionOptions{Schema: schema}
			holder := openSessions(t, through(p, x), opts)
			other := lockOf(t, openSessions(t, p.URL(), opts), 2*time.Second)
			lease, err := lockOf(t, holder, 2*time.Second).TryAcquire(testContext(t))
			must(t, err)
			work, cancel := lease.WithContext(t.Context())
			defer cancel()
			r := startRival(t, other)
			pids, err := p.Rows("SELECT k.pid FROM pg_locks k JOIN pg_stat_activity a USING (pid) WHERE k.locktype = 'advisory' AND a.application_name = '" + sessionName + "'")
			must(t, err)
			var pid uint32
			if _, err := fmt.Sscan(pids[0], &pid); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			free := cut(t, p, x, pid)
			select {
			case <-work.Done():
			case <-r.granted:
				t.Fatal("the rival was granted the lock before the work was told")
			case <-time.After(patience):
				t.Fatal("the work is never told")
			}
			told := time.Since(start)
			var lost *holdlock.LostError
			if cause := context.Cause(work); !errors.As(cause, &lost) {
				t.Fatalf("the cause is %v", cause)
			}
			want := holdlock.LossDisconnected
			if strings.HasPrefix(name, "network") {
				want = holdlock.LossUnreachable
			}
			if lost.Reason != want {
				t.Errorf("the reason is %s (%v), want %s", lost.Reason, lost, want)
			}
			free()
			select {
			case <-r.granted:
			case <-time.After(patience):
				t.Fatal("the lock is never free again")
			}
			t.Logf("told after %v: %v; the rival asked %d times and had it after %v",
				told.Round(time.Microsecond), lost.Err, r.asked.Load(), time.Since(start).Round(time.Millisecond))
		})
	}
}

// A process that dies without a word leaves a row and no advisory lock. Who waits for it, and asks only as a back stop, gets the
// key when the row is over; while a session still has the advisory lock it does not.
func TestSessionOfADeadHolderWithWaiters(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	for _, frozen := range []Frozen{Block, Expire} {
		opts := SessionOptions{Schema: schema, Namespace: fmt.Sprint("dead ", frozen), OnFrozen: frozen}
		dead, err := NewSessionDriver(testContext(t), p.URL(), &opts)
		must(t, err)
		req := leaseRequest("job", 2*time.Second)
		mustGrant(t, dead, req)
		waiting := openSessions(t, p.URL(), opts)
		r := make(chan error, 1)
		ctx := testContext(t)
		go func() {
			lease, err := lockOf(t, waiting, 2*time.Second).Acquire(ctx)
			if err == nil {
				err = lease.Release(ctx)
			}
			r <- err
		}()
		testenv.Eventually(t, "it waits", func() bool {
			return p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".waiter WHERE namespace = '`+opts.Namespace+`'`, schema)) == "1"
		})
		must(t, dead.Close()) // the row stands
		start := time.Now()
		if err := <-r; err != nil {
			t.Errorf("OnFrozen %d: who waits never gets the lock of a dead holder: %v", frozen, err)
		}
		t.Logf("OnFrozen %d: who waits has it after %v", frozen, time.Since(start).Round(time.Millisecond))

		// The control: an advisory lock that somebody has keeps the key from a back stop too.
		d := sessionDriver(t, p.URL(), schema, opts)
		conn := connect(t, p.URL())
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock($1)", LockID(opts.Namespace, "job"))
		must(t, err)
		_, err = conn.Exec(ctx, inSchema(`UPDATE "holdlock".lease SET state = 1, expiry = now() - interval '1 minute' WHERE namespace = $1`, schema), opts.Namespace)
		must(t, err)
		back := leaseRequest("job", 2*time.Second)
		back.BackStop = true
		if _, err := d.Acquire(ctx, back); !errors.As(err, new(*driver.HeldError)) {
			t.Errorf("a back stop beside an advisory lock: %v", err)
		}
		_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", LockID(opts.Namespace, "job"))
		must(t, err)
		testenv.Eventually(t, "a back stop gets an overdue row without a session", func() bool { // the refusal before will do for a second
			_, err := d.Acquire(ctx, back)
			return err == nil
		})
	}
}

// helperHoldSession holds a lock until it is told to check it, and says what comes of it.
func helperHoldSession() {
	frozen := Block
	if os.Getenv("PGHOLD_MODE") == "expire" {
		frozen = Expire
	}
	c, err := openKind(os.Getenv("PGHOLD_MODE"), os.Getenv("PGHOLD_URL"), os.Getenv("PGHOLD_SCHEMA"), frozen)
	if err != nil {
		panic(err)
	}
	l, err := c.NewLock("job", &holdlock.LockOptions{TTL: time.Second})
	if err != nil {
		panic(err)
	}
	err = l.Do(context.Background(), func(ctx context.Context, lease *holdlock.Lease) error {
		last := time.Now() // before the next line, which may be its last for a while
		fmt.Println("holding")
		for {
			if now := time.Now(); now.Sub(last) > 2*time.Second { // it was frozen; this is the first thing it does
				fmt.Println(errors.Is(lease.Check(0), holdlock.ErrLost))
				break
			} else {
				last = now
			}
		}
		<-ctx.Done()
		return nil
	})
	fmt.Println(errors.Is(err, holdlock.ErrLost))
}

func openKind(mode, url, schema string, frozen Frozen) (*holdlock.Client, error) {
	if mode == "rows" {
		return Open(context.Background(), url, &LeaseOptions{Schema: schema})
	}
	return OpenSessions(context.Background(), url, &SessionOptions{Schema: schema, OnFrozen: frozen})
}

// A holder that stands still: with Block nobody else ever holds; with Expire the server ends its session within a second
// of its TTL. In both cases the holder knows first that it has lost the lock. The rows are the control.
func TestSessionOfAFrozenHolder(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"block", "expire", "rows"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := testenv.StartPostgres(t)
			schema := migrated(t, p)
			c, err := openKind(mode, p.URL(), schema, map[string]Frozen{"expire": Expire}[mode])
			must(t, err)
			defer c.Shutdown(context.Background())
			h := startHelper(t, "hold-session", "PGHOLD_URL="+p.URL(), "PGHOLD_SCHEMA="+schema, "PGHOLD_MODE="+mode)
			if got := h.line(t); got != "holding" {
				t.Fatal(got)
			}
			l := lockOf(t, c, time.Second)
			if c.Traits().FrozenBlocks != (mode == "block") {
				t.Errorf("Traits.FrozenBlocks = %v", c.Traits().FrozenBlocks)
			}
			r := startRival(t, l)
			testenv.Stop(t, h.cmd.Process.Pid)
			start := time.Now()
			if mode == "block" {
				select {
				case <-r.granted:
					t.Fatal("a rival was granted the lock of a frozen holder")
				case <-time.After(4 * time.Second):
				}
				var held *holdlock.HeldError
				if _, err := l.TryAcquire(testContext(t)); !errors.As(err, &held) || !held.Overdue || strings.Contains(err.Error(), "free in") ||
					!strings.Contains(err.Error(), "Break with Now") {
					t.Errorf("beside a holder that stands still: %v", err)
				}
				// Who looks for it sees it, whatever the server takes a backslash for.
				one := openSessions(t, p.URL(), SessionOptions{Schema: schema, Configure: func(c *pgx.ConnConfig) error {
					c.RuntimeParams["standard_conforming_strings"] = "off"
					return nil
				}})
				frozen := 0
				for i, err := range one.List(testContext(t), "") {
					if frozen++; err != nil || i.FreeIn != 0 {
						t.Errorf("listed: %+v, %v", i, err)
					}
				}
				if frozen != 1 {
					t.Errorf("%d locks are listed, want the one that is kept", frozen)
				}
			} else {
				select {
				case at := <-r.granted:
					t.Logf("%s: a rival has it after %v", mode, at.Sub(start))
				case <-time.After(patience):
					t.Fatal("a rival never gets it")
				}
				time.Sleep(time.Until(start.Add(2500 * time.Millisecond))) // so that the holder can see that it was frozen
			}
			h.signal(t, syscall.SIGCONT)
			if got := h.line(t); got != "true" {
				t.Errorf("the first Check after the freeze says lost = %s", got)
			}
			if got := h.line(t); got != "true" {
				t.Errorf("Do says lost = %s", got)
			}
			if mode == "block" {
				select {
				case <-r.granted:
				case <-time.After(patience):
					t.Fatal("the lock is never free again")
				}
			}
		})
	}
}

// The server ends a silent session within a second of its TTL (OnFrozen: Expire).
func TestSessionIdleTimeout(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	d := sessionDriver(t, p.URL(), migrated(t, p), SessionOptions{OnFrozen: Expire})
	req := leaseRequest("k", 2*time.Second)
	_, err := d.Acquire(testContext(t), req)
	must(t, err)
	told := make(chan error, 1)
	d.NotifyLoss(req.Ref, func(err error) { told <- err })
	s := d.routed(req.Ref)
	s.turn <- struct{}{} // it stands still: nothing gives the lock back, and nothing is read
	start := time.Now()
	sessions := func() string {
		return p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = '"+sessionName+"'")
	}
	for sessions() != "0" {
		if time.Since(start) > patience {
			t.Fatal("the server never ends the session")
		}
	}
	took := time.Since(start)
	<-s.turn
	s.idle.Reset(0)
	if err := <-told; !strings.Contains(err.Error(), "idle_session_timeout") {
		t.Errorf("the reason is %v", err)
	}
	t.Logf("TTL 2 s: the session was ended after %v", took)
	if took < 1900*time.Millisecond {
		t.Errorf("the server ended the session after %v, before its TTL", took)
	}
}

// Break with Now ends the session of a holder that stands still, and with it the block.
func TestBreakOfAFrozenSession(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	h := startHelper(t, "hold-session", "PGHOLD_URL="+p.URL(), "PGHOLD_SCHEMA="+schema, "PGHOLD_MODE=block")
	h.line(t)
	c := openSessions(t, p.URL(), SessionOptions{Schema: schema})
	info, ok, err := c.Inspect(testContext(t), "job", "")
	if err != nil || !ok {
		t.Fatalf("Inspect: %v, %v", ok, err)
	}
	testenv.Stop(t, h.cmd.Process.Pid)
	must(t, c.Break(testContext(t), "job", "", info.Token, holdlock.BreakOptions{By: "ops", Now: true}))
	lease, err := lockOf(t, c, 20*time.Second).TryAcquire(testContext(t))
	must(t, err)
	must(t, lease.Release(testContext(t)))
	h.signal(t, syscall.SIGCONT)
}

// A holder that stands still past its time is shown, and can be ended by what was shown.
func TestFrozenPastItsTime(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	h := startHelper(t, "hold-session", "PGHOLD_URL="+p.URL(), "PGHOLD_SCHEMA="+schema, "PGHOLD_MODE=block")
	h.line(t)
	ctx := testContext(t)
	told := &observed{}
	c := openSessions(t, p.URL(), SessionOptions{Schema: schema, Client: holdlock.ClientOptions{Observer: told}})
	var held holdlock.Info
	var ok bool
	var err error
	testenv.Eventually(t, "it is shown as held", func() bool { // a busy machine renews late
		held, ok, err = c.Inspect(ctx, "job", "")
		return err == nil && ok && held.FreeIn != 0
	})
	testenv.Stop(t, h.cmd.Process.Pid)
	var late holdlock.Info
	var listed []holdlock.Info
	testenv.Eventually(t, "it is shown as overdue", func() bool {
		late, ok, err = c.Inspect(ctx, "job", "")
		if err != nil || !ok || late.FreeIn != 0 {
			return false
		}
		listed = nil // one that is shown so in its very last moment is not listed until it is overdue by a second
		for i, err := range c.List(ctx, "jo") {
			must(t, err)
			listed = append(listed, i)
		}
		return len(listed) > 0
	})
	if late.Token != held.Token || late.Holder != held.Holder {
		t.Errorf("it is shown as %+v, was %+v", late, held)
	}
	if len(listed) != 1 || listed[0].Token != held.Token {
		t.Errorf("listed are %+v", listed)
	}
	if err := c.Break(ctx, "job", "", held.Token+1, holdlock.BreakOptions{By: "ops", Now: true}); !errors.Is(err, holdlock.ErrStaleToken) {
		t.Errorf("by another token: %v", err)
	}
	if err := c.Break(ctx, "job", "", held.Token, holdlock.BreakOptions{By: "ops"}); !errors.Is(err, holdlock.ErrUnsupported) {
		t.Errorf("Break that waits for a renewal: %v", err)
	}
	must(t, c.Break(ctx, "job", "", held.Token, holdlock.BreakOptions{By: "ops: stuck", Now: true}))
	var lease *holdlock.Lease
	testenv.Eventually(t, "the lock is free", func() bool {
		lease, err = lockOf(t, c, 20*time.Second).TryAcquire(ctx) // a short one may run out unheard on a busy machine
		return err == nil
	})
	if e := told.last(); e.Kind != holdlock.Lapsed || e.Prior == nil || e.Prior.Broken != "ops: stuck" {
		t.Errorf("the successor is told %+v", e)
	}
	must(t, lease.Release(ctx))
	h.signal(t, syscall.SIGCONT)
}

// A lock of a session and the same lock in a transaction exclude each other.
func TestSessionsExcludeTransactions(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	c := openSessions(t, p.URL(), SessionOptions{Schema: schema, Namespace: schema})
	l := lockOf(t, c, time.Minute)
	conn := connect(t, p.URL())
	ctx := testContext(t)
	inTx := func(f func(tx pgx.Tx)) {
		must(t, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { f(tx); return nil }))
	}
	inTx(func(tx pgx.Tx) {
		must(t, TryLock(ctx, tx, l))
		_, err := l.TryAcquire(ctx)
		var held *holdlock.HeldError
		if !errors.As(err, &held) || !strings.Contains(err.Error(), "backend of") {
			t.Errorf("a session beside a transaction: %v", err)
		}
	})
	lease, err := l.TryAcquire(ctx)
	must(t, err)
	inTx(func(tx pgx.Tx) { is(t, "a transaction beside a session", TryLock(ctx, tx, l), "", holdlock.ErrHeld) })
	must(t, lease.Release(ctx))
	inTx(func(tx pgx.Tx) { must(t, TryLock(ctx, tx, l)) })
}
