package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/child"
)

// A Process is a worker as the lab sees it. Steps are sent one at a time.
type Process struct {
	*child.Process
	name    string
	in      io.WriteCloser
	steps   *json.Encoder
	replies chan Reply
	said    said // on stderr
}

// Start starts a worker.
func Start(cfg Config) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Args = []string{workerName}
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // or each would take a second to end under the race detector
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A pipe of our own, because Wait would close one of the command's while there is still something in it.
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w := &Process{name: cfg.Name, in: in, steps: json.NewEncoder(in), replies: make(chan Reply, 1)}
	cmd.Stdout, cmd.Stderr = outW, &w.said
	w.Process, err = child.Start(cmd)
	_ = outW.Close()
	if err != nil {
		_ = outR.Close()
		return nil, fmt.Errorf("worker %s: %w", cfg.Name, err)
	}
	go func() {
		defer outR.Close()
		defer close(w.replies)
		for lines := json.NewDecoder(outR); ; {
			var r Reply
			if lines.Decode(&r) != nil {
				return // it has ended
			}
			w.replies <- r
		}
	}()
	if err := w.steps.Encode(cfg); err != nil {
		w.Kill()
		return nil, fmt.Errorf("worker %s: %w", cfg.Name, err)
	}
	return w, nil
}

// Send tells the worker what to do. Answer has what becomes of it.
func (w *Process) Send(s Step) error {
	if err := w.steps.Encode(s); err != nil {
		return fmt.Errorf("worker %s, %s: %w", w.name, s.Do, w.death(err))
	}
	return nil
}

// Answer waits for the reply to the step that was sent last.
func (w *Process) Answer(ctx context.Context) (Reply, error) {
	select {
	case r, ok := <-w.replies:
		if !ok {
			<-w.Done()
			return r, fmt.Errorf("worker %s: %w", w.name, w.death(errors.New("no answer")))
		}
		return r, nil
	case <-ctx.Done():
		return Reply{}, fmt.Errorf("worker %s does not answer: %w", w.name, context.Cause(ctx))
	}
}

// Answered returns the channel of replies, for whoever waits for something else as well.
func (w *Process) Answered() <-chan Reply { return w.replies }

func (w *Process) death(err error) error {
	return errors.Join(err, w.Err(), errors.New(strings.TrimSpace(w.said.String())))
}

// Close ends the worker, and kills it if it does not end.
func (w *Process) Close() {
	_ = w.in.Close()
	_ = w.Continue() // it may be stopped, or have ended
	select {
	case <-w.Done():
	case <-time.After(3 * time.Second):
	}
	w.Kill()
	for range w.replies { // so that its reader ends
	}
}

// said keeps the end of what a worker has written.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf.Len() > 64<<10 {
		s.buf.Reset()
	}
	return s.buf.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}
