package sqlitehold

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/bootclock"
)

var systemChildren = map[string]func([]string) error{
	"wait in line":   childWaitInLine,
	"wait for flock": childWaitForFlock,
	"wait bare":      childWaitBare,
	"flock pair":     func(args []string) error { return flocked(args[0], func() error { return nil }) },
	"nothing":        func([]string) error { return nil },
}

// BenchmarkProcess is a process that takes a lock, gives it back and ends, as a command from cron does; then the same with
// flock(2), and one that does nothing.
func BenchmarkProcess(b *testing.B) {
	for _, name := range []string{"pair", "flock pair", "nothing"} {
		b.Run(name, func(b *testing.B) {
			path := tempFile(b)
			for b.Loop() {
				cmd := exec.Command(os.Args[0], path)
				cmd.Env = append(os.Environ(), childVariable+"="+name)
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}

// BenchmarkOpenPairClose is the part of that which is ours.
func BenchmarkOpenPairClose(b *testing.B) {
	path := tempFile(b)
	for b.Loop() {
		check(b, childPair([]string{path}))
	}
}

// BenchmarkHandOver is the time from before a release in one process to after the grant in another one that waits for it:
// the median is reported. Beside it stand the least that two transactions and a datagram can be, and flock(2), which is a
// wake-up and nothing else.
func BenchmarkHandOver(b *testing.B) {
	b.Run("watch", func(b *testing.B) {
		path := tempFile(b)
		d := open(b, path)
		handOver(b, start(b, "wait in line", path, "job"), func(waits func()) int64 {
			ref, _ := mustAcquire(b, d, "job", time.Hour)
			waits()
			began := int64(bootclock.Now())
			check(b, d.Release(ctx, release(ref)))
			return began
		})
	})
	b.Run("bare", func(b *testing.B) {
		path := tempFile(b)
		l, err := openBare(path)
		check(b, err)
		defer l.w.close()
		var out outbox
		defer out.close()
		address := fmt.Sprintf("@holdlock-bench-%d", os.Getpid())
		handOver(b, start(b, "wait bare", path, address), func(waits func()) int64 {
			check(b, l.acquire())
			waits()
			began := int64(bootclock.Now())
			check(b, l.release())
			if out.send(address, "job") != sent {
				b.Fatal("the datagram was not sent")
			}
			return began
		})
	})
	b.Run("flock", func(b *testing.B) {
		path := tempFile(b)
		handOver(b, start(b, "wait for flock", path), func(waits func()) (began int64) {
			check(b, flocked(path, func() error {
				waits()
				began = int64(bootclock.Now())
				return nil
			}))
			return began
		})
	})
}

// bareLock is a lock of two statements, each a transaction, on the same engine with the same settings: the least that a
// hand-over through a SQLite file can be is a delete, a datagram, and an insert.
type bareLock struct {
	w        *writer
	ins, del *sql.Stmt
}

func openBare(path string) (*bareLock, error) {
	w, err := connect(path, "rwc", false)
	if err != nil {
		return nil, err
	}
	for _, q := range []string{"PRAGMA journal_mode = WAL", "CREATE TABLE IF NOT EXISTS lock (key TEXT PRIMARY KEY, holder TEXT, expiry INTEGER)"} {
		if _, err := w.once(q); err != nil {
			return nil, err
		}
	}
	ins, err1 := w.statement(`INSERT INTO lock VALUES (?, ?, ?)`)
	del, err2 := w.statement(`DELETE FROM lock WHERE key = ?`)
	return &bareLock{w, ins, del}, errors.Join(err1, err2)
}

func (l *bareLock) acquire() error {
	_, err := l.ins.ExecContext(context.Background(), "job", `{"host":"worker","pid":4711}`, 1)
	return err
}

func (l *bareLock) release() error {
	_, err := l.del.ExecContext(context.Background(), "job")
	return err
}

func childWaitBare(args []string) error {
	l, err := openBare(args[0])
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: args[1]}); err != nil {
		return err
	}
	buf := make([]byte, 8)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("waiting")
		for {
			if _, _, err = unix.Recvfrom(fd, buf, 0); err != unix.EINTR {
				break
			}
		}
		err = errors.Join(err, l.acquire())
		got := bootclock.Now()
		if err := errors.Join(err, l.release()); err != nil {
			return err
		}
		fmt.Printf("got %d\nreleased\n", int64(got))
	}
	return nil
}

// handOver lets the other process wait while we hold the lock, and measures when it gets it.
func handOver(b *testing.B, c *child, holdAndRelease func(waits func()) int64) {
	var took []time.Duration
	for b.Loop() {
		began := holdAndRelease(func() {
			fmt.Fprintln(c.stdin, "wait")
			c.expect("waiting")
			eventually(b, "the other process sleeps", c.sleeps)
		})
		got, err := strconv.ParseInt(c.expect("got"), 10, 64)
		check(b, err)
		took = append(took, time.Duration(got-began))
		c.expect("released")
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/p50")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "µs/p90")
}

// sleeps says whether no thread of the process runs.
func (c *child) sleeps() bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.cmd.Process.Pid))
	check(c.tb, err)
	for _, task := range tasks {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", c.cmd.Process.Pid, task.Name()))
		if _, fields, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(fields, "S") {
			return false
		}
	}
	return true
}

func childWaitInLine(args []string) error {
	d, err := NewDriver(args[0], nil)
	if err != nil {
		return err
	}
	defer d.Close()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		hints, stop, err := d.Watch(context.Background(), args[1])
		if err != nil {
			return err
		}
		req := acquire(args[1], time.Minute)
		_, err = d.Acquire(context.Background(), req)
		if !isHeld(err) {
			return fmt.Errorf("not held: %w", err)
		}
		fmt.Println("waiting")
		for isHeld(err) {
			<-hints
			_, err = d.Acquire(context.Background(), req)
		}
		got := bootclock.Now()
		stop()
		if err := errors.Join(err, d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref})); err != nil {
			return err
		}
		fmt.Printf("got %d\nreleased\n", int64(got))
	}
	return nil
}

func childWaitForFlock(args []string) error {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("waiting")
		var got time.Duration
		if err := flocked(args[0], func() error { got = bootclock.Now(); return nil }); err != nil {
			return err
		}
		fmt.Printf("got %d\nreleased\n", int64(got))
	}
	return nil
}

// flocked runs f under flock(2).
func flocked(path string, f func() error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return errors.Join(err, f())
}
