package sqlitehold

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// everyCall makes each call that writes, with a context that lasts so long, and hands its error to judge.
func everyCall(d *Driver, held driver.Ref, budget time.Duration, judge func(call string, err error)) {
	var calls sync.WaitGroup
	run := func(name string, f func(context.Context) error) {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, budget)
			defer cancel()
			judge(name, f(ctx))
		})
	}
	run("Acquire", func(ctx context.Context) error {
		_, err := d.Acquire(ctx, acquire("free", time.Hour))
		return err
	})
	run("Acquire of a held key", func(ctx context.Context) error {
		_, err := d.Acquire(ctx, acquire(held.Key, time.Hour))
		return err
	})
	run("Renew", func(ctx context.Context) error {
		_, err := d.Renew(ctx, &driver.RenewRequest{Ref: held, TTL: time.Hour})
		return err
	})
	run("RenewBatch", func(ctx context.Context) error {
		return d.RenewBatch(ctx, []*driver.RenewRequest{{Ref: held, TTL: time.Hour}})[0].Err
	})
	run("Release", func(ctx context.Context) error { return d.Release(ctx, release(held)) })
	run("Break", func(ctx context.Context) error {
		return d.Break(ctx, &driver.BreakRequest{Ref: held, By: "ops", Now: true})
	})
	run("Watch", func(ctx context.Context) error {
		_, stop, err := d.Watch(ctx, held.Key)
		if err == nil {
			stop()
		}
		return err
	})
	calls.Wait()
}

// A process that is stopped inside a transaction keeps the file locked. Everybody else is told so when their context
// ends, and never that a key is held. When it goes on, so do they.
func TestStoppedWriter(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	held, _ := mustAcquire(t, d, "held", time.Hour)
	stopped := start(t, "transaction", path)
	stopped.expect("inside")
	stopped.stop()

	const budget = 200 * time.Millisecond
	began := time.Now()
	everyCall(d, held, budget, func(call string, err error) {
		switch {
		case err == nil:
			t.Errorf("%s: success, although the file is locked", call)
		case isHeld(err) || errors.Is(err, driver.ErrGone):
			t.Errorf("%s: a locked file was answered as %v", call, err)
		case !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrNotApplied):
			t.Errorf("%s: %v; want the end of the context, and nothing applied", call, err)
		case !strings.Contains(err.Error(), "locked by a transaction of another process"):
			t.Errorf("%s: %q does not say what is the matter", call, err)
		}
	})
	if took := time.Since(began); took > budget+patience/2 {
		t.Errorf("calls with %v to live took %v", budget, took)
	}

	// Looking needs no lock, and a further process can open the file.
	if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 1 {
		t.Errorf("List beside a stopped writer: %v, %v", terms, err)
	}
	if _, ok, err := open(t, path).Inspect(ctx, "held"); !ok || err != nil {
		t.Errorf("Inspect beside a stopped writer: %v, %v", ok, err)
	}

	got := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, acquire("free", time.Hour))
		got <- err
	}()
	stopped.resume()
	stopped.stdin.Close() // lets it end its transaction
	if err := <-got; err != nil {
		t.Errorf("Acquire after the writer went on: %v", err)
	}
}

// The same if it is killed instead: the kernel takes its locks away.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	writer := start(t, "transaction", path)
	writer.expect("inside")
	got := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, acquire("job", time.Hour))
		got <- err
	}()
	writer.kill()
	if err := <-got; err != nil {
		t.Errorf("Acquire after the writer was killed: %v", err)
	}
}

// A caller whose context ends does not wait for its turn behind other calls of its process.
func TestEndedContextLeavesTheQueue(t *testing.T) {
	t.Parallel()
	d := open(t, tempFile(t))
	check(t, d.gate.enter(ctx)) // a call that does not return
	defer d.gate.leave()
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, acquire("job", time.Hour))
		got <- err
	}()
	cancel()
	select {
	case err := <-got:
		if !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrNotApplied) || isHeld(err) {
			t.Errorf("Acquire: %v", err)
		}
	case <-time.After(patience):
		t.Error("Acquire did not return")
	}
}

// Processes that are killed at any moment leave a file that works: tokens of one key never repeat and always rise.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	var tokens []string
	for range 10 {
		var workers []*child
		for range 3 {
			workers = append(workers, start(t, "pairs", path, "job"))
		}
		for _, w := range workers {
			w.expect("ready")
		}
		for range 20 {
			tokens = append(tokens, workers[0].expect("granted"))
		}
		for _, w := range workers {
			w.kill()
			for line := range w.lines {
				token, ok := strings.CutPrefix(line, "granted ")
				if !ok {
					t.Fatalf("a worker said %q", line)
				}
				tokens = append(tokens, token)
			}
		}
		if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) > 1 {
			t.Fatalf("after the kill: %v, %v", terms, err)
		}
	}
	seen := map[string]bool{}
	for _, token := range tokens {
		if seen[token] {
			t.Errorf("R3: token %s was given twice", token)
		}
		seen[token] = true
	}
	var last driver.Grant
	eventually(t, "the key is free when the term of the last one killed has run out", func() bool {
		var err error
		last, err = d.Acquire(ctx, acquire("job", time.Hour))
		if err != nil && !isHeld(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	for _, token := range tokens {
		if len(token) == len(tokens[0]) && token >= tokenText(last.Token) {
			t.Errorf("R3: token %s was given before %d", token, last.Token)
		}
	}
	t.Logf("%d grants", len(tokens))
}

// Many processes may open a file that does not exist yet.
func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	for range 3 {
		path := tempFile(t)
		const n = 12
		var all []*child
		for i := range n {
			c := start(t, "open", path, "job "+string(rune('a'+i)))
			c.expect("ready")
			all = append(all, c)
		}
		for _, c := range all {
			c.stdin.Close() // go
		}
		for _, c := range all {
			c.expect("granted")
		}
		if terms, err := open(t, path).List(ctx, "", "", 100); err != nil || len(terms) != n {
			t.Errorf("%d terms (%v), want those of all %d processes", len(terms), err, n)
		}
	}
}
