package sqlitehold

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/driver"
)

func watchKey(tb testing.TB, d *Driver, key string) (<-chan struct{}, func()) {
	tb.Helper()
	hints, stop, err := d.Watch(ctx, key)
	check(tb, err)
	tb.Cleanup(stop)
	return hints, stop
}

func expectHint(tb testing.TB, hints <-chan struct{}) {
	tb.Helper()
	select {
	case <-hints:
	case <-time.After(patience):
		tb.Fatal("no hint")
	}
}

// The release by one process wakes a waiter in another one, and only the first.
func TestHintsBetweenProcesses(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	first := start(t, "watch", path, "job")
	first.expect("watching")
	second := start(t, "watch", path, "job")
	second.expect("watching")
	for range 3 {
		ref, _ := mustAcquire(t, d, "job", time.Hour)
		check(t, d.Release(ctx, release(ref)))
		first.expect("hint")
	}
	select {
	case line := <-second.lines:
		t.Errorf("the second in line said %q", line)
	default:
	}

	// It dies without a word. The next release finds out and goes on to the one behind it.
	first.kill()
	ref, _ := mustAcquire(t, d, "job", time.Hour)
	check(t, d.Release(ctx, release(ref)))
	second.expect("hint")
	if got := count(t, path, "waiter"); got != 1 {
		t.Errorf("there are %d waiters, want the living one", got)
	}
	ref, _ = mustAcquire(t, d, "job", time.Hour)
	check(t, d.Break(ctx, &driver.BreakRequest{Ref: ref, By: "ops", Now: true}))
	second.expect("hint")
}

// A waiter that is frozen never makes a release wait, and when its inbox is full the one behind it is woken.
func TestFrozenWatcher(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	frozen := start(t, "watch", path, "job")
	frozen.expect("watching")
	frozen.stop()
	hints, _ := watchKey(t, open(t, path), "job")
	content, err := os.ReadFile("/proc/sys/net/unix/max_dgram_qlen")
	check(t, err)
	full, err := strconv.Atoi(strings.TrimSpace(string(content)))
	check(t, err)
	for i := range full + 2 {
		select {
		case <-hints:
			t.Logf("the one behind was woken by release %d", i)
			return
		default:
		}
		ref, _ := mustAcquire(t, d, "job", time.Hour)
		check(t, d.Release(ctx, release(ref)))
	}
	expectHint(t, hints)
}

// The first watch starts a goroutine and a socket, and the last stop leaves nothing of them, nor in the file.
func TestNothingIsLeftOfWatches(t *testing.T) {
	path := tempFile(t)
	d := open(t, path)
	before := goleak.IgnoreCurrent()
	for range 2 {
		var stops []func()
		for _, key := range []string{"a", "b", "a"} {
			_, stop := watchKey(t, d, key)
			stops = append(stops, stop)
		}
		if got := count(t, path, "waiter"); got != 3 {
			t.Errorf("there are %d waiters, want 3", got)
		}
		if goleak.Find(before) == nil {
			t.Error("there is no goroutine, so this test would not notice one that stays")
		}
		for _, stop := range stops {
			stop()
			stop()
		}
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
		if got := count(t, path, "waiter"); got != 0 {
			t.Errorf("there are %d waiters, want none", got)
		}
	}
	_, stop := watchKey(t, d, "a")
	check(t, d.Close())
	if got := count(t, path, "waiter"); got != 0 {
		t.Errorf("after Close there are %d waiters", got)
	}
	stop()
}

// A hint that its receiver did not read is not lost: stop and Close pass it on.
func TestUnreadHintIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(d *Driver, stop func()){
		"stop":  func(_ *Driver, stop func()) { stop() },
		"close": func(d *Driver, _ func()) { d.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tempFile(t)
			d, impatient := open(t, path), open(t, path)
			unread, stop := watchKey(t, impatient, "job")
			hints, _ := watchKey(t, d, "job")
			ref, _ := mustAcquire(t, d, "job", time.Hour)
			check(t, d.Release(ctx, release(ref)))
			eventually(t, "the hint has arrived", func() bool { return len(unread) == 1 })
			if len(hints) != 0 {
				t.Error("the second in line was hinted as well")
			}
			leave(impatient, stop)
			expectHint(t, hints)
		})
	}
}

// stop does not wait for a locked file longer than a second, and the row is removed when that is possible.
func TestStopWithLockedFile(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	hints, stop := watchKey(t, d, "job")
	other, stopOther := watchKey(t, d, "another")
	w, err := connect(path, "rw", false)
	check(t, err)
	defer w.close()
	_, err = w.once("BEGIN IMMEDIATE")
	check(t, err)
	began := time.Now()
	stop()
	if took := time.Since(began); took < stopBudget/2 || took > stopBudget+patience/2 {
		t.Errorf("stop took %v, want about %v", took, stopBudget)
	}
	_, err = w.once("ROLLBACK")
	check(t, err)
	if got := count(t, path, "waiter"); got != 2 {
		t.Errorf("there are %d waiters; this test needs one that could not be removed", got)
	}

	// Whoever finds the row, nobody waits behind it: it is a watch of a driver that lives and has no such watch.
	next, _ := watchKey(t, open(t, path), "job")
	ref, _ := mustAcquire(t, d, "job", time.Hour)
	check(t, d.Release(ctx, release(ref)))
	expectHint(t, next)
	if len(hints)+len(other) != 0 {
		t.Error("a watch that has ended, or one of another key, was hinted")
	}
	stopOther()
	eventually(t, "the row is removed", func() bool { return count(t, path, "waiter") == 1 })
}

// Abstract sockets do not reach into another network namespace. Waiters there are left alone, for a time.
func TestOtherNetworkNamespace(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m, container := newMachine(), newMachine()
	container.netName = "net-2"
	d := openOn(t, path, m)
	watchKey(t, openOn(t, path, container), "job")
	hints, _ := watchKey(t, openOn(t, path, m), "job")
	ref, _ := mustAcquire(t, d, "job", time.Hour)
	check(t, d.Release(ctx, release(ref)))
	expectHint(t, hints)
	d.collectWaiters(ctx)
	if got := count(t, path, "waiter"); got != 2 {
		t.Errorf("there are %d waiters, want both", got)
	}
	m.pass(strayWaiterAge + time.Second)
	d.collectWaiters(ctx)
	if got := count(t, path, "waiter"); got != 1 {
		t.Errorf("after %v there are %d waiters, want the one that can be asked", strayWaiterAge, got)
	}
}

// Waiters that died, or were there before a reboot, are collected even if nobody releases their key.
func TestDeadWaitersAreCollected(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	d := openOn(t, path, m)
	for _, w := range []struct{ address, boot string }{
		{"@holdlock-nobody-1", m.bootID}, {"@holdlock-nobody-2", "boot-0"},
	} {
		_, err := d.writer.row(watchStatement, []any{"", "job", m.netName, w.address, w.boot, int64(0)}, new(int64))
		check(t, err)
	}
	living, _ := watchKey(t, d, "job")
	d.collectWaiters(ctx)
	if got := count(t, path, "waiter"); got != 1 {
		t.Errorf("there are %d waiters, want the living one", got)
	}
	if len(living) != 0 {
		t.Error("to be asked whether one lives is no hint")
	}
}

func TestWatchWithEndedContext(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := d.Watch(ended, "job"); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
	if d.watches.inbox != nil || count(t, path, "waiter") != 0 {
		t.Error("a watch that failed left something behind")
	}
	check(t, d.Close())
	if _, _, err := d.Watch(ctx, "job"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Watch of a closed driver: %v", err)
	}
}
