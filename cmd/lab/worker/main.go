package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// workerName is argv[0] of a worker and its name in the process list.
const workerName = "lab-worker"

// Main turns the process into a worker if it was started as one, and then does not return. In every other process it returns
// at once. It comes first in main.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != workerName {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lab worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// stepTimeout bounds every step but the waiting for a lock.
const stepTimeout = time.Minute

// serve does what it is told until its input ends.
func serve(in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(bufio.NewReader(in))
	var cfg Config
	if err := lines.Decode(&cfg); err != nil {
		return fmt.Errorf("no configuration: %w", err)
	}
	m, err := open(cfg)
	if err != nil {
		return err
	}
	defer m.close()
	r := &runner{mechanism: m, name: cfg.Name}
	answers := json.NewEncoder(out)
	for {
		var s Step
		if err := lines.Decode(&s); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		reply := r.do(s)
		reply.Do, reply.At = s.Do, bootclock.Now()
		if err := answers.Encode(reply); err != nil {
			return err
		}
	}
}

// runner takes one worker through its steps.
type runner struct {
	mechanism mechanism
	name      string
	job       string
	hold      hold // nil unless it was granted
}

func (r *runner) do(s Step) Reply {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if !s.Wait {
		ctx, cancel = context.WithTimeout(ctx, stepTimeout)
	}
	defer cancel()
	if s.Do == Acquire {
		h, err := r.mechanism.acquire(ctx, s)
		if err != nil {
			return outcomeOf(err)
		}
		r.job, r.hold = s.Job, h
		return r.reply(Granted, "")
	}
	if r.hold == nil {
		return Reply{Outcome: Failed, Text: "it holds no lock"}
	}
	var err error
	switch s.Do {
	case Begin, Write, End:
		what := map[string]resource.What{Begin: resource.Begin, Write: resource.Write, End: resource.End}[s.Do]
		err = r.hold.send(ctx, resource.Entry{What: what, Job: r.job, Worker: r.name, Ended: s.Ended, Token: r.hold.token(), Until: r.hold.until()})
	case Check:
		err = r.hold.check()
	case Release:
		err = r.hold.release(ctx)
	default:
		err = fmt.Errorf("there is no step %q", s.Do)
	}
	if err != nil {
		reply := outcomeOf(err)
		reply.Token, reply.Until = r.hold.token(), r.hold.until()
		return reply
	}
	return r.reply(OK, "")
}

func (r *runner) reply(outcome, text string) Reply {
	return Reply{Outcome: outcome, Text: text, Token: r.hold.token(), Until: r.hold.until()}
}
