//go:build unix

package pghold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// children are what runs in processes of its own: the test program is its own helper, see TestMain.
var leaseChildren = map[string]func(url, schema string) error{"churn": childChurn, "hold": childHold}

const childVariable = "PGHOLD_CHILD"

type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t *testing.T, role, url, schema string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+role, "PGHOLD_URL="+url, "PGHOLD_SCHEMA="+schema)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &child{cmd, bufio.NewScanner(out)}
}

// line returns the next line that the child prints.
func (c *child) line(t *testing.T) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Errorf("the child has ended: %v", c.lines.Err())
		return ""
	}
	return c.lines.Text()
}

const churnRounds = 1000

// childChurn takes and gives back keys that other processes want as well, and says what went wrong.
func childChurn(url, schema string) error {
	ctx := context.Background()
	d, err := NewLeaseDriver(ctx, url, &LeaseOptions{Schema: schema, MaxConns: 2})
	if err != nil {
		return err
	}
	defer d.Close()
	granted, held := 0, 0
	for i := range churnRounds {
		req := leaseRequest(fmt.Sprintf("k%d", i%5), time.Minute)
		_, err := d.Acquire(ctx, req)
		switch {
		case err == nil:
			granted++
			if _, err := d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}); err != nil {
				return err
			}
			if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
				return err
			}
		case isHeld(err):
			held++
		default:
			return err
		}
	}
	fmt.Println("rounds", granted+held, "granted", granted)
	return nil
}

// Four processes make a thousand rounds each through a pooler that has fewer connections than they do, and hands each
// transaction to another one. A driver that prepares statements fails there.
func TestLeaseThroughPgbouncerFromManyProcesses(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	b := testenv.StartPgbouncer(t, p, "transaction", "default_pool_size=3", "server_round_robin=1")
	var wg sync.WaitGroup
	for range 4 {
		c := startChild(t, "churn", b.URL(), schema)
		wg.Go(func() {
			var rounds, granted int
			if _, err := fmt.Sscanf(c.line(t), "rounds %d granted %d", &rounds, &granted); err != nil || rounds != churnRounds || granted == 0 {
				t.Errorf("a process made %d rounds with %d grants (%v)", rounds, granted, err)
			}
		})
	}
	wg.Wait()

	pool, err := pgxpool.New(testContext(t), b.URL()) // as pgx is by default
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var failed error
	for i := 0; i < 200 && failed == nil; i++ {
		_, failed = pool.Exec(testContext(t), "SELECT $1::int", i)
	}
	if code(failed) != "26000" && code(failed) != "42P05" {
		t.Errorf("with prepared statements: %v: this test cannot fail", failed)
	}
}

// childHold holds a lock until it is lost, and says what it believes.
func childHold(url, schema string) error {
	c, err := Open(context.Background(), url, &LeaseOptions{Schema: schema})
	if err != nil {
		return err
	}
	l, err := c.NewLock("k", &holdlock.LockOptions{TTL: 2 * time.Second})
	if err != nil {
		return err
	}
	err = l.Do(context.Background(), func(ctx context.Context, lease *holdlock.Lease) error {
		fmt.Println(lease.Token())
		for ctx.Err() == nil {
			if lease.Check(0) != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return nil
	})
	fmt.Println(errors.Is(err, holdlock.ErrLost))
	return nil
}

// A holder that is paused past its TTL knows that it has lost the lock before it does anything else.
func TestLeasePausedHolder(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	c := startChild(t, "hold", p.URL(), schema)
	var token uint64
	if _, err := fmt.Sscan(c.line(t), &token); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(testContext(t), leaseRequest("k", time.Minute)); !isHeld(err) {
		t.Fatalf("a rival of a holder that is well got %v", err)
	}
	testenv.Stop(t, c.cmd.Process.Pid)
	var g driver.Grant
	testenv.Eventually(t, "the lock passes on", func() bool {
		var err error
		g, err = d.Acquire(testContext(t), leaseRequest("k", time.Minute))
		return err == nil
	})
	if g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Holder.PID != c.cmd.Process.Pid || g.Token <= driver.Token(token) {
		t.Errorf("the successor has token %d after %d, and is told %v, %+v", g.Token, token, g.Previous, g.Prior)
	}
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if why := c.line(t); !strings.Contains(why, "was lost") {
		t.Errorf("the cause is %q", why)
	}
	if isLost := c.line(t); isLost != "true" {
		t.Errorf("Do returned ErrLost: %s", isLost)
	}
	if term, ok := stands(t, d, "k"); !ok || term.Token != g.Token {
		t.Errorf("the successor's term is %+v, %v", term, ok)
	}
}
