package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A worker is another process of this program, because waiters that share a process help each other in some libraries. It
// reads its task from its standard input, says when it is ready, begins when it gets a line, and ends with its input at
// the latest.
type task struct {
	Kind       string // line, idle, leases
	Contestant string
	Addr       string
	TTL        time.Duration
	N          int // waiters or leases
	Window     time.Duration
}

const contendedKey = "one-key"

// turn is one time of holding the key, in ns of the machine's clock.
type turn struct {
	Waiter    int
	Asked     int64
	Got       int64
	Releasing int64 // before the release was called
}

// report is what a worker answers.
type report struct {
	Turns  []turn
	Leases leasesResult
	Err    string
}

// work is the main function of a worker.
func work(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	var t task
	text, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return err
	}
	c, ok := named(t.Contestant)
	if !ok {
		return fmt.Errorf("no contestant %q", t.Contestant)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	started := make(chan struct{})
	go func() {
		if _, err := lines.ReadBytes('\n'); err == nil {
			close(started)
			_, err = lines.ReadBytes('\n')
			_ = err
		}
		cancel()
	}()
	ready := func() bool {
		_, _ = fmt.Fprintln(out, "ready")
		select {
		case <-started:
			return true
		case <-ctx.Done():
			return false
		}
	}
	l, err := c.open(t.Addr, setup{ttl: t.TTL, waiters: t.N, renew: t.Kind == "leases"})
	if err != nil {
		return err
	}
	defer l.close()
	var r report
	switch t.Kind {
	case "line":
		r.Turns, err = takeTurns(ctx, l, t, ready)
	case "idle":
		err = waitIdle(ctx, l, t, ready)
	case "leases":
		r.Leases, err = holdMany(ctx, l, t, ready)
	default:
		err = fmt.Errorf("no task %q", t.Kind)
	}
	if err != nil {
		r.Err = err.Error()
	}
	return json.NewEncoder(out).Encode(r)
}

// workers are processes with the same kind of task.
type workers struct {
	all []*process
}

type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startWorkers starts a process for each task and returns when all are ready.
func startWorkers(tasks []task) (*workers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &workers{}
	for _, t := range tasks {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), workerVariable+"=1")
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		text, err3 := json.Marshal(t)
		if err := errors.Join(err1, err2, err3); err != nil {
			w.stop()
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			w.stop()
			return nil, err
		}
		p := &process{cmd, in, bufio.NewReader(out)}
		w.all = append(w.all, p)
		_, _ = in.Write(append(text, '\n'))
	}
	defer w.killAfter(patience).Stop()
	for _, p := range w.all {
		if _, err := p.out.ReadString('\n'); err != nil {
			w.stop()
			return nil, fmt.Errorf("a worker did not get ready: %w", err)
		}
	}
	return w, nil
}

// begin tells all to start.
func (w *workers) begin() {
	for _, p := range w.all {
		_, _ = p.in.Write([]byte("\n"))
	}
}

// patience is how long a worker may take beyond its task. Some contestants hang now and then.
const patience = time.Minute

// killAfter ends workers that hang.
func (w *workers) killAfter(d time.Duration) *time.Timer {
	all := w.all
	return time.AfterFunc(d, func() {
		for _, p := range all {
			_ = p.cmd.Process.Kill()
		}
	})
}

// reports waits for what all have to say after a window.
func (w *workers) reports(window time.Duration) ([]report, error) {
	defer w.killAfter(window + patience).Stop()
	all := make([]report, len(w.all))
	errs := make([]error, len(w.all))
	var wg sync.WaitGroup
	for i, p := range w.all {
		wg.Go(func() {
			if errs[i] = json.NewDecoder(p.out).Decode(&all[i]); errs[i] == nil && all[i].Err != "" {
				errs[i] = errors.New(all[i].Err)
			}
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// end closes their input, by which they end.
func (w *workers) end() {
	for _, p := range w.all {
		_ = p.in.Close()
	}
}

// stop ends them and waits for it.
func (w *workers) stop() {
	w.end()
	for _, p := range w.all {
		late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		late.Stop()
	}
}

const workerVariable = "HOLDLOCK_BENCH_WORKER"
