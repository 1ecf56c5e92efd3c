//go:build unix

package redishold

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
)

// The test program is its own helper: what is to be killed and paused runs in processes of its own.
func TestMain(m *testing.M) {
	switch role := os.Getenv("REDISHOLD_HELPER"); role {
	case "":
	case "contend", "turns", "wait", "work": // these know addresses only
		map[string]func(string){"contend": helperContend, "turns": helperTurns, "wait": helperWait, "work": helperWork}[role](os.Getenv("REDISHOLD_ADDR"))
		return
	default:
		helpers[role](siteOf(os.Getenv("REDISHOLD_SITE")))
		return
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", "12") // these tests wait most of the time
	}
	redis.SetLogger(silent{}) // it tells of every fault that the tests cause
	// A dial that a test has not waited for ends by its own timeout.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var helpers = map[string]func(site){
	"hold": helperHold, "churn": helperChurn, "naive hold": helperNaiveHold, "naive churn": helperNaiveChurn,
}

type helper struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startHelper(t *testing.T, role string, s site) *helper {
	t.Helper()
	return startHelperWith(t, role, "REDISHOLD_SITE="+s.String())
}

// startHelperAt starts a helper that needs an address only.
func startHelperAt(t *testing.T, role, addr string) *helper {
	t.Helper()
	return startHelperWith(t, role, "REDISHOLD_ADDR="+addr)
}

func startHelperWith(t *testing.T, role, where string) *helper {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "REDISHOLD_HELPER="+role, where)
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

func (h *helper) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v: %v", s, err)
	}
}

// kill ends the helper and waits until it has ended.
func (h *helper) kill(t *testing.T) {
	t.Helper()
	h.signal(t, syscall.SIGKILL)
	_ = h.cmd.Wait()
}

// helperHold holds a lock until it is lost, and says what it believes.
func helperHold(s site) {
	c, err := Open(s.dial(), nil)
	if err != nil {
		panic(err)
	}
	l, err := c.NewLock("k", &holdlock.LockOptions{TTL: time.Second})
	if err != nil {
		panic(err)
	}
	err = l.Do(context.Background(), func(ctx context.Context, lease *holdlock.Lease) error {
		fmt.Println(lease.Token())
		for lease.Check(0) == nil {
			time.Sleep(time.Millisecond)
		}
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return nil
	})
	fmt.Println(err)
}

// helperChurn acquires keys, and releases most of them, until it is killed.
func helperChurn(s site) {
	c, err := Open(s.dial(), &Options{Namespace: "churn"})
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
