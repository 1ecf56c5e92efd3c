package once_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/sqlitehold"
)

// workerEnv makes a process of this test a worker: "DIRECTORY MODE JOBS".
const workerEnv = "HOLDLOCK_TEST_ONCE_WORKER"

// A diary is a file to which many processes add lines, each in one write.
type diary struct{ file *os.File }

func openDiary(dir string) (diary, error) {
	f, err := os.OpenFile(filepath.Join(dir, "diary"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return diary{f}, err
}

func (d diary) note(kind, job string) { fmt.Fprintf(d.file, "%s %s\n", kind, job) }

// Observe implements holdlock.Observer.
func (d diary) Observe(e holdlock.Event) {
	switch e.Kind {
	case holdlock.Rerun:
		d.note("rerun", e.Key)
	case holdlock.Suspended:
		d.note("suspended", e.Key)
	}
}

// work delivers every job until each is settled, as far as this process hears, and returns its exit code. The effect of a
// job is a line in the diary.
func work(args string) int {
	var dir, mode string
	var jobs int
	if _, err := fmt.Sscan(args, &dir, &mode, &jobs); err != nil {
		return 2
	}
	d, err := openDiary(dir)
	if err != nil {
		return 3
	}
	locks, err := sqlitehold.Open(filepath.Join(dir, "locks.db"), &sqlitehold.Options{Client: holdlock.ClientOptions{
		Observer: d, CallTimeout: 20 * time.Second,
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	lock, err := locks.NewLock("job", &holdlock.LockOptions{TTL: time.Second})
	if err != nil {
		return 5
	}
	effect := func(job string) {
		d.note("work", fmt.Sprint(os.Getpid()))
		time.Sleep(rand.N(20 * time.Millisecond))
		d.note("effect", job)
		time.Sleep(rand.N(20 * time.Millisecond))
	}
	todo := map[string]bool{}
	for i := range jobs {
		todo[jobName(i)] = true
	}
	for len(todo) > 0 {
		for job := range todo { // in an order of its own
			var err error
			if mode == "lock" { // the control: what is usually written
				err = lock.For(job).Do(context.Background(), func(context.Context, *holdlock.Lease) error { effect(job); return nil })
			} else {
				opts := &once.Options{}
				if strings.HasPrefix(job, "hold") {
					opts.OnLapse = once.Hold
				}
				_, err = once.Do(context.Background(), lock.For(job), opts, func(context.Context, *once.Run) ([]byte, error) {
					effect(job)
					return nil, nil
				})
			}
			if err == nil || errors.Is(err, once.ErrSuspended) {
				delete(todo, job)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := locks.Shutdown(context.Background()); err != nil {
		_, _ = io.WriteString(os.Stderr, err.Error())
		return 6
	}
	return 0
}

// jobName is the key of a job, and says which policy it has.
func jobName(i int) string { return fmt.Sprintf("%s-%d", [...]string{"rerun", "hold"}[i%2], i) }
