//go:build unix

package redishold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The test program is its own helper: what is to be killed and paused runs in processes of its own.
func TestMain(m *testing.M) {
	if role := os.Getenv("REDISHOLD_HELPER"); role != "" {
		helpers[role](os.Getenv("REDISHOLD_ADDR"))
		return
	}
	redis.SetLogger(silent{}) // it tells of every fault that the tests cause
	// A pool that could not dial looks once a second whether it can again, and notices then that it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var helpers = map[string]func(addr string){"hold": helperHold, "churn": helperChurn, "contend": helperContend}

type helper struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startHelper(t *testing.T, role, addr string) *helper {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "REDISHOLD_HELPER="+role, "REDISHOLD_ADDR="+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &helper{cmd, bufio.NewScanner(out)}
}

// line returns the next line that the helper prints.
func (h *helper) line(t *testing.T) string {
	t.Helper()
	if !h.lines.Scan() {
		t.Fatalf("the helper has ended: %v", h.lines.Err())
	}
	return h.lines.Text()
}

// helperHold holds a lock until it is lost, and says what it believes.
func helperHold(addr string) {
	c, err := Open(client(addr), nil)
	if err != nil {
		panic(err)
	}
	l, err := c.NewLock("k", &holdlock.LockOptions{TTL: time.Second})
	if err != nil {
		panic(err)
	}
	err = l.Do(context.Background(), func(ctx context.Context, lease *holdlock.Lease) error {
		fmt.Println(lease.Token())
		for ctx.Err() == nil {
			if err := lease.Check(0); err != nil {
				break
			}
		}
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return nil
	})
	fmt.Println(errors.Is(err, holdlock.ErrLost))
}

// A holder that is paused past its TTL knows that it has lost the lock before it does anything else.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	h := startHelper(t, "hold", r.Addr)
	var token uint64
	if _, err := fmt.Sscan(h.line(t), &token); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), request("k", time.Minute)); err == nil {
		t.Fatal("the control: a rival was granted the lock while its holder was well")
	}
	if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var g driver.Grant
	testenv.Eventually(t, "the lock passes on", func() bool {
		var err error
		g, err = d.Acquire(t.Context(), request("k", time.Minute))
		return err == nil
	})
	if g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Holder.PID != h.cmd.Process.Pid {
		t.Errorf("the successor is told %v, %+v", g.Previous, g.Prior)
	}
	if g.Token <= driver.Token(token) {
		t.Errorf("token %d after %d", g.Token, token)
	}
	if err := h.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if why := h.line(t); !strings.Contains(why, "was lost") {
		t.Errorf("the cause is %q", why)
	}
	if isLost := h.line(t); isLost != "true" {
		t.Errorf("Do returned ErrLost: %s", isLost)
	}
	if term, ok := present(t, d, "k"); !ok || term.Token != g.Token {
		t.Errorf("the successor's term is %+v, %v", term, ok)
	}
}

// helperChurn acquires keys, and releases most of them, until it is killed.
func helperChurn(addr string) {
	c, err := Open(client(addr), &Options{Namespace: "churn"})
	if err != nil {
		panic(err)
	}
	for i := range 8 {
		go func() {
			for {
				l, err := c.NewLock("churn", &holdlock.LockOptions{TTL: 300 * time.Millisecond, Renew: holdlock.RenewOff})
				if err != nil {
					panic(err)
				}
				key := fmt.Sprint(rand.N(12))
				lease, err := l.For(key).TryAcquire(context.Background())
				if err != nil {
					continue
				}
				fmt.Println(i)
				time.Sleep(rand.N(3 * time.Millisecond))
				if rand.N(4) > 0 {
					_ = lease.Release(context.Background())
				}
			}
		}()
	}
	select {}
}

// Processes are killed at random moments. No key is ever without an expiry, and nothing but counters stays.
func TestNothingIsLeftByTheKilled(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	dial := client(r.Addr)
	defer dial.Close()
	var eternal atomic.Value
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			it := dial.Scan(context.Background(), 0, "*", 1000).Iterator()
			for it.Next(context.Background()) {
				if ttl := dial.PTTL(context.Background(), it.Val()).Val(); ttl == -1 {
					eternal.Store(it.Val())
				}
			}
		}
	})
	grants, kills := 0, 0
	for grants < 500 || kills < 12 {
		h := startHelper(t, "churn", r.Addr)
		for range 20 + rand.N(60) {
			h.line(t)
			grants++
		}
		if err := h.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = h.cmd.Wait()
		kills++
	}
	close(stop)
	watching.Wait()
	if key := eternal.Load(); key != nil {
		t.Errorf("key %q had no expiry", key)
	}
	d := openDriver(t, r.Addr, &Options{Namespace: "churn"})
	testenv.Eventually(t, "all terms are over", func() bool {
		terms, err := d.List(t.Context(), "", "", 100)
		return err == nil && len(terms) == 0
	})
	left, err := leftovers(func() redis.UniversalClient { return client(r.Addr) }, "churn")
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	if n := r.Do(t, "DBSIZE"); n == "0" {
		t.Error("there are not even counters, so the test tells nothing")
	}
	t.Logf("%d grants, %d kills, %s counters", grants, kills, r.Do(t, "DBSIZE"))
}
