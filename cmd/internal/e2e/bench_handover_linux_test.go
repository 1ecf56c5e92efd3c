package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/bootclock"
	"github.com/holdlock/holdlock/sqlitehold"
)

// A locker is one process's way to a lock. Both calls wait.
type locker interface {
	acquire() error
	release() error
}

type leaseLocker struct {
	lock  *holdlock.Lock
	lease *holdlock.Lease
}

func (l *leaseLocker) acquire() (err error) {
	l.lease, err = l.lock.Acquire(context.Background())
	return err
}

func (l *leaseLocker) release() error { return l.lease.Release(context.Background()) }

type flockLocker struct{ fd int }

func (l *flockLocker) acquire() error {
	for {
		if err := unix.Flock(l.fd, unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}

func (l *flockLocker) release() error { return unix.Flock(l.fd, unix.LOCK_UN) }

// handoverRole takes and gives back a lock as it is told on standard input, and tells when: handover holdlock|flock FILE.
func handoverRole(args []string) int {
	var l locker
	switch args[0] {
	case "flock":
		fd, err := unix.Open(args[1], unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return 95
		}
		l = &flockLocker{fd}
	default:
		drv, err := sqlitehold.NewDriver(args[1], nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 95
		}
		client, err := holdlock.NewClient(drv, nil)
		if err != nil {
			return 95
		}
		defer client.Shutdown(context.Background())
		lock, err := client.NewLock("job", &holdlock.LockOptions{TTL: time.Minute})
		if err != nil {
			return 95
		}
		l = &leaseLocker{lock: lock}
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var err error
		var at time.Duration
		if in.Text() == "acquire" {
			err = l.acquire()
			at = bootclock.Now()
		} else {
			at = bootclock.Now()
			err = l.release()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 94
		}
		fmt.Println(int64(at))
	}
	return 0
}

// A peer is a handoverRole process.
type peer struct {
	b   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

func (b *box) peer(kind, file string) *peer {
	b.t.Helper()
	argv := direct("handover", kind, file)
	cmd := b.program(argv[0], argv[1:]...)
	toIt, in, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, fromIt, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = toIt, fromIt
	p := b.launch(cmd)
	toIt.Close()
	fromIt.Close()
	b.t.Cleanup(func() { in.Close(); p.wait(); out.Close() })
	return &peer{b.t, in, bufio.NewScanner(out)}
}

func (p *peer) tell(what string) {
	p.b.Helper()
	if _, err := io.WriteString(p.in, what+"\n"); err != nil {
		p.b.Fatal(err)
	}
}

func (p *peer) answer() time.Duration {
	p.b.Helper()
	if !p.out.Scan() {
		p.b.Fatal("a peer has ended")
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(p.out.Text()), 10, 64)
	if err != nil {
		p.b.Fatal(err)
	}
	return time.Duration(ns)
}

// handovers passes the lock to and fro between two processes and returns how long each time took, from just before the
// release to the other's grant.
func handovers(peers [2]*peer, n int) []time.Duration {
	var took []time.Duration
	peers[0].tell("acquire")
	peers[0].answer()
	for i := range n {
		from, to := peers[i%2], peers[1-i%2]
		to.tell("acquire")
		<-time.After(8 * time.Millisecond) // until it waits; the time is not measured
		from.tell("release")
		gone := from.answer()
		took = append(took, to.answer()-gone)
	}
	last := peers[n%2]
	last.tell("release")
	last.answer()
	return took
}

func median[T int | float64 | time.Duration](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// BenchmarkHandover compares the hand-over of a lock between two processes, both waiting, with that of flock(2): the ratio
// of the medians of seven interleaved rounds.
func BenchmarkHandover(b *testing.B) {
	x := newBox(b)
	kinds := []string{"holdlock", "flock"}
	peers := map[string][2]*peer{}
	for _, kind := range kinds {
		file := x.path(kind)
		peers[kind] = [2]*peer{x.peer(kind, file), x.peer(kind, file)}
		handovers(peers[kind], 4)
	}
	for b.Loop() {
		p50 := map[string][]time.Duration{}
		for range 7 {
			for _, kind := range kinds {
				p50[kind] = append(p50[kind], median(handovers(peers[kind], 40)))
			}
		}
		lock, floor := median(p50["holdlock"]), median(p50["flock"])
		b.ReportMetric(float64(lock)/float64(floor), "ratio")
		b.ReportMetric(float64(lock.Nanoseconds())/1e3, "holdlock-p50-µs")
		b.ReportMetric(float64(floor.Nanoseconds())/1e3, "flock-p50-µs")
		b.Logf("rounds: holdlock %v, flock %v", p50["holdlock"], p50["flock"])
	}
	b.ReportMetric(0, "ns/op")
}
