//go:build unix

// Command quorum compares a quorum of holdlock with redsync over the same five Redis servers, in one run, and prints a
// table. Servers and clients share the machine, so only the ratios mean something. The same calls without a library are the floor.
//
//	cd bench/quorum && GOWORK=off go run . [-time 3s]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	rsgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/redishold"
)

var alone = flag.Bool("alone", false, "measure holdlock only, healthy and with one server hung in turns")

var length = flag.Duration("time", 3*time.Second, "how long each cell is measured, in rounds that alternate")

const rounds = 3

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// pair acquires and releases one key.
type pair func(ctx context.Context, key string) error

func run() error {
	servers, err := start(5)
	defer func() {
		for _, s := range servers {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	}()
	if err != nil {
		return err
	}
	ours, err := openHoldlock(servers)
	if err != nil {
		return err
	}
	if *alone {
		return errors.Join(measureAlone(ours, servers[2:3]), measureAlone(ours, servers[2:4]))
	}
	bare, err := openBare(servers)
	if err != nil {
		return err
	}
	libraries := []struct {
		name string
		do   pair
	}{{"holdlock", ours}, {"redsync", openRedsync(servers)}, {"holdlock's scripts bare", bare}}

	fmt.Println("| servers | callers | library | pairs/s | p50 | p99 | goroutines at most |\n|---|---|---|---|---|---|---|")
	for hung := range 2 {
		if hung > 0 {
			libraries = libraries[:2] // the floor has no way around one that hangs
		}
		for _, callers := range []int{1, 64} {
			all := make([]sample, len(libraries))
			if hung > 0 {
				_ = servers[2].cmd.Process.Signal(syscall.SIGSTOP)
			}
			for round := range rounds {
				for i, l := range libraries {
					all[i].add(measure(l.do, callers, *length/rounds, fmt.Sprintf("%s/%d/%d/%d", l.name, hung, callers, round)))
				}
			}
			if hung > 0 {
				_ = servers[2].cmd.Process.Signal(syscall.SIGCONT)
			}
			for i, l := range libraries {
				fmt.Printf("| 5, %d hung | %d | %s | %s |\n", hung, callers, l.name, all[i])
			}
		}
	}
	return nil
}

// measureAlone compares five healthy servers with five of which one hangs, in rounds that alternate, and then lets one hang for
// as long as a cell is measured under full load.
func measureAlone(do pair, victims []server) error {
	var healthy, hung sample
	signal := func(s syscall.Signal) {
		for _, v := range victims {
			_ = v.cmd.Process.Signal(s)
		}
	}
	for round := range 2 * rounds {
		healthy.add(measure(do, 1, *length/rounds, fmt.Sprintf("healthy/%d/%d", len(victims), round)))
		signal(syscall.SIGSTOP)
		hung.add(measure(do, 1, *length/rounds, fmt.Sprintf("hung/%d/%d", len(victims), round)))
		signal(syscall.SIGCONT)
	}
	slices.Sort(healthy.took)
	slices.Sort(hung.took)
	fmt.Printf("pairs/s | p50 | p99 | goroutines\nhealthy: %s\n%d of 5 hung: %s\nratio of p50: %.2f\n", healthy, len(victims), hung,
		float64(hung.took[len(hung.took)/2])/float64(healthy.took[len(healthy.took)/2]))
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	for part := range 4 {
		one := measure(do, 64, *length, fmt.Sprintf("load/%d/%d", len(victims), part))
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Printf("%d hung, 64 callers, part %d: %s, heap %d MB\n", len(victims), part+1, one, m.HeapAlloc>>20)
	}
	return nil
}

type server struct {
	addr string
	cmd  *exec.Cmd
}

func start(n int) (all []server, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return all, err
		}
		addr := l.Addr().String()
		_, port, _ := net.SplitHostPort(addr)
		_ = l.Close()
		cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--logfile", "/dev/null")
		if err := cmd.Start(); err != nil {
			return all, err
		}
		all = append(all, server{addr, cmd})
		for give := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				_ = c.Close()
				break
			}
			if time.Now().After(give) {
				return all, err
			}
		}
	}
	return all, nil
}

// client is set up as docs/stores/quorum.md recommends.
func client(s server) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 20})
}

// open opens a quorum and declares the lock that is measured.
func open(clients []redis.UniversalClient) (*holdlock.Client, *holdlock.Lock, error) {
	c, err := redishold.OpenQuorum(clients, nil)
	if err != nil {
		return nil, nil, err
	}
	lock, err := c.NewLock("bench", &holdlock.LockOptions{TTL: 10 * time.Second})
	return c, lock, err
}

func openHoldlock(servers []server) (pair, error) {
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, client(s))
	}
	if err := redishold.InitQuorum(context.Background(), clients, nil); err != nil {
		return nil, err
	}
	_, lock, err := open(clients)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) error {
		lease, err := lock.For(key).TryAcquire(ctx)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}, nil
}

func openRedsync(servers []server) pair {
	var pools []rsredis.Pool
	for _, s := range servers {
		pools = append(pools, rsgoredis.NewPool(redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 20})))
	}
	rs := redsync.New(pools...)
	return func(ctx context.Context, key string) error {
		m := rs.NewMutex("redsync:"+key, redsync.WithExpiry(10*time.Second), redsync.WithTries(1))
		if err := m.LockContext(ctx); err != nil {
			return err
		}
		if ok, err := m.UnlockContext(ctx); err != nil && !ok {
			return err
		}
		return nil
	}
}

// A sample is what was measured in one cell.
type sample struct {
	took       []time.Duration
	busy       time.Duration
	goroutines int
	failed     int
}

func (s *sample) add(o sample) {
	s.took = append(s.took, o.took...)
	s.busy += o.busy
	s.goroutines = max(s.goroutines, o.goroutines)
	s.failed += o.failed
}

func (s sample) String() string {
	if len(s.took) == 0 {
		return "0 | - | - | -"
	}
	slices.Sort(s.took)
	text := fmt.Sprintf("%.0f | %v | %v | %d", float64(len(s.took))/s.busy.Seconds(), s.took[len(s.took)/2].Round(time.Microsecond),
		s.took[len(s.took)*99/100].Round(time.Microsecond), s.goroutines)
	if s.failed > 0 {
		text += fmt.Sprintf(" (%d failed)", s.failed)
	}
	return text
}

func measure(do pair, callers int, length time.Duration, prefix string) (out sample) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		begin = time.Now()
		end   = begin.Add(length)
	)
	for i := range callers {
		group.Go(func() {
			var took []time.Duration
			failed := 0
			for n := 0; time.Now().Before(end); n++ {
				start := time.Now()
				if err := do(context.Background(), fmt.Sprintf("%s/%d/%d", prefix, i, n)); err != nil && !errors.Is(err, context.Canceled) {
					failed++
				}
				took = append(took, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			out.took = append(out.took, took...)
			out.failed += failed
		})
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				out.goroutines = max(out.goroutines, runtime.NumGoroutine())
			}
		}
	})
	group.Wait()
	close(stop)
	watching.Wait()
	out.busy = time.Since(begin)
	return out
}
