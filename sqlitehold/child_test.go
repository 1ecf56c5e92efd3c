package sqlitehold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

const childVariable = "SQLITEHOLD_TEST_CHILD"

// children are the programs that tests run as processes of their own.
var children = map[string]func(args []string) error{
	"open":        childOpen,
	"pair":        childPair,
	"pairs":       childPairs,
	"hold":        childHold,
	"transaction": childTransaction,
	"fill":        childFill,
	"watch":       childWatch,
}

// childOpen opens the file when told to, takes a key and says so.
func childOpen(args []string) error {
	path, key := args[0], args[1]
	if len(args) > 2 {
		if err := becomeUser(args[2]); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	d, err := NewDriver(path, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	g, err := d.Acquire(context.Background(), acquire(key, time.Hour))
	if err != nil {
		return err
	}
	fmt.Println("granted", g.Token)
	return nil
}

// childPair is what a command does that runs for a moment under a lock.
func childPair(args []string) error {
	d, err := NewDriver(args[0], nil)
	if err != nil {
		return err
	}
	req := acquire("nightly", time.Minute)
	if _, err := d.Acquire(context.Background(), req); err != nil {
		return err
	}
	if err := d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		return err
	}
	return d.Close()
}

// childPairs acquires and releases one key until it is killed, and prints its tokens.
func childPairs(args []string) error {
	d, err := NewDriver(args[0], nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		req := acquire(args[1], 100*time.Millisecond)
		g, err := d.Acquire(context.Background(), req)
		var held *driver.HeldError
		if errors.As(err, &held) {
			continue
		} else if err != nil {
			return err
		}
		fmt.Println("granted", g.Token)
		if err := d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil && !errors.Is(err, driver.ErrGone) {
			return err
		}
	}
}

// childHold holds a key until it is killed.
func childHold(args []string) error {
	d, err := NewDriver(args[0], nil)
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	g, err := d.Acquire(context.Background(), acquire(args[1], ttl))
	if err != nil {
		return err
	}
	fmt.Println("granted", g.Token)
	select {}
}

// childTransaction stays inside a transaction that writes.
func childTransaction(args []string) error {
	w, err := connect(args[0], "rw", false)
	if err != nil {
		return err
	}
	return w.transaction("BEGIN IMMEDIATE", func() error {
		fmt.Println("inside")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
}

// childFill takes ever more keys, with files limited to so many bytes, and prints what comes of it.
func childFill(args []string) error {
	d, err := NewDriver(args[0], nil)
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if err := limitFiles(limit); err != nil {
		return err
	}
	var held *driver.HeldError
	for i := range 100_000 {
		_, err := d.Acquire(context.Background(), acquire(fmt.Sprintf("key %d %s", i, strings.Repeat("x", 900)), time.Hour))
		if err != nil {
			fmt.Println("error", errors.As(err, &held), errors.Is(err, driver.ErrGone), err)
			return nil
		}
	}
	return errors.New("the limit did not limit")
}

// childWatch watches a key and prints its hints.
func childWatch(args []string) error {
	d, err := NewDriver(args[0], nil)
	if err != nil {
		return err
	}
	w, ok := driver.As[driver.Waiter](d)
	if !ok {
		return errors.New("no waiter")
	}
	hints, _, err := w.Watch(context.Background(), args[1])
	if err != nil {
		return err
	}
	fmt.Println("watching")
	for range hints {
		fmt.Println("hint")
	}
	return nil
}

// A child is another process.
type child struct {
	tb    testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

// patience is how long something may take that should be there at once.
const patience = 30 * time.Second

func start(tb testing.TB, name string, args ...string) *child {
	tb.Helper()
	c := &child{tb: tb, cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 10_000)}
	c.cmd.Env = append(os.Environ(), childVariable+"="+name)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	check(tb, err)
	c.stdin, err = c.cmd.StdinPipe()
	check(tb, err)
	check(tb, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	tb.Cleanup(func() {
		c.cmd.Process.Kill()
		for range c.lines {
		}
		<-read
		c.cmd.Wait()
	})
	return c
}

// expect reads the next line, which has to begin with want, and returns the rest of it.
func (c *child) expect(want string) string {
	c.tb.Helper()
	select {
	case line, ok := <-c.lines:
		if rest, is := strings.CutPrefix(line, want); ok && is {
			return strings.TrimSpace(rest)
		}
		c.tb.Fatalf("the other process said %q (open: %v), want %q", line, ok, want)
	case <-time.After(patience):
		c.tb.Fatalf("the other process did not say %q", want)
	}
	panic("not reached")
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// eventually polls until cond holds.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for give := time.Now().Add(patience); !cond(); {
		if time.Now().After(give) {
			tb.Fatalf("%s: not so after %v", what, patience)
		}
		<-time.After(time.Millisecond)
	}
}
