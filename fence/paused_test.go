//go:build unix

package fence_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencetest"
	"github.com/holdlock/holdlock/sqlitehold"
)

// The test program is its own helper: who is to be stopped needs a process of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FENCE_HELPER"); dir != "" {
		writeLate(dir, os.Getenv("FENCE_FENCED") == "1")
		return
	}
	os.Exit(m.Run())
}

func openLock(dir string) (*holdlock.Client, *holdlock.Lock, error) {
	locks, err := sqlitehold.Open(filepath.Join(dir, "locks"), nil)
	if err != nil {
		return nil, nil, err
	}
	l, err := locks.NewLock("report", &holdlock.LockOptions{TTL: 300 * time.Millisecond, Wait: time.Minute})
	return locks, l, err
}

// writeLate holds the lock, is stopped, and writes when it goes on, without a look at its lease.
func writeLate(dir string, fenced bool) {
	_, l, err := openLock(dir)
	if err != nil {
		panic(err)
	}
	lease, err := l.TryAcquire(context.Background())
	if err != nil {
		panic(err)
	}
	r, err := newRow(context.Background(), filepath.Join(dir, "data"), fenced)
	if err != nil {
		panic(err)
	}
	fmt.Println("holding")
	bufio.NewScanner(os.Stdin).Scan()
	if err := r.Write(context.Background(), fence.Of(lease), "old"); err != nil {
		fmt.Println("refused:", err)
		return
	}
	fmt.Println("written")
}

// A holder that is stopped past its TTL writes when it goes on. The fence refuses it; without the fence the new is lost.
func TestPaused(t *testing.T) {
	for name, fenced := range map[string]bool{"fenced": true, "unfenced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := openRow(t, filepath.Join(dir, "data"), fenced)
			locks, l, err := openLock(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Shutdown(context.Background())
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "FENCE_HELPER="+dir)
			if fenced {
				cmd.Env = append(cmd.Env, "FENCE_FENCED=1")
			}
			cmd.Stderr = os.Stderr
			var token holdlock.Token
			said := fencetest.Paused(t, cmd, func() {
				err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
					token = lease.Token()
					return r.Write(ctx, fence.Of(lease), "new")
				})
				if err != nil {
					t.Fatal(err)
				}
			})
			want, content := "written", "old"
			if fenced {
				want, content = fmt.Sprintf("seen %d", token), "new"
			}
			if !strings.Contains(said, want) {
				t.Errorf("the holder says %q, want %q", said, want)
			}
			r.content(t, content)
		})
	}
}
