package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/cmd/lab"
)

type labCmd struct {
	Scenarios []string `arg:"" optional:"" help:"A fault (duplicate, late, killed, paused, slow, stale-release, empty, failover), a mechanism (no-lock, naive, redis, redlock-no-abstain, redlock, redlock-fence, postgres), or MECHANISM/FAULT. Default: all." placeholder:"SCENARIO"`
	Full      bool     `help:"Play each case five times, with longer locks; minutes instead of seconds."`
	Seed      *uint64  `help:"Decides what the schedules leave open, such as which nodes restart. Default: chosen and told." placeholder:"N"`
	HTML      string   `name:"html" help:"Also write one page with the matrix and all timelines." placeholder:"FILE" type:"path"`
	Timelines bool     `help:"Also print the timelines. Default: if scenarios are named."`
}

// Run experiments with locks on private servers. It needs no store and no network.
func (c *labCmd) Run(g *globals) error {
	ctx, received, stop := untilSignal()
	defer stop()
	redis.SetLogger(silent{}) // what matters comes back as an error
	opts := &lab.Options{Scenarios: c.Scenarios, Full: c.Full, Seed: rand.Uint64N(1e6)}
	if c.Seed != nil {
		opts.Seed = *c.Seed
	}
	var page *os.File
	if c.HTML != "" { // before anything takes time
		var err error
		if page, err = os.Create(c.HTML); err != nil {
			return usage("--html: " + err.Error())
		}
		defer page.Close()
	}
	opts.Progress = func(e *lab.Experiment, over, all int) { c.progress(g, e, over, all) }
	report, err := lab.Run(ctx, opts)
	var unknown *lab.UnknownError
	switch {
	case errors.As(err, &unknown):
		return usage(err.Error())
	case ctx.Err() != nil:
		sig := received()
		return &exitError{code: 128 + int(sig), kind: "signal", err: fmt.Errorf("ended by signal (%v); all servers and workers have ended", sig)}
	case err != nil:
		return fmt.Errorf("lab: %w", err)
	}
	if page != nil {
		if err := errors.Join(report.WriteHTML(page), page.Close()); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if err := c.print(g, report); err != nil {
		return err
	}
	switch {
	case report.Surprises() > 0:
		return &exitError{code: exitFindings, kind: "findings", err: fmt.Errorf("%s did not come out as expected", count(report.Surprises(), "experiment", "experiments"))}
	case report.Ran() == 0:
		return errors.New("lab: nothing could be run")
	}
	return nil
}

// untilSignal returns a context that ends when this process is told to end, and a function that says by which signal.
func untilSignal() (ctx context.Context, received func() syscall.Signal, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	var first syscall.Signal
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			first, _ = s.(syscall.Signal)
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() syscall.Signal { return first }, func() {
		signal.Stop(signals)
		cancel()
	}
}

// progress says on stderr what is over.
func (c *labCmd) progress(g *globals, e *lab.Experiment, over, all int) {
	text := e.Counts.String()
	if e.NotRun != "" {
		text = "not run: " + e.NotRun
	}
	g.say("progress", fmt.Sprintf("%d of %d: %s/%s: %s (%.1f s)", over, all, e.Mechanism.ID, e.Fault.ID, text, e.Took.Seconds()),
		map[string]any{"over": over, "all": all, "mechanism": e.Mechanism.ID, "fault": e.Fault.ID})
}

func (c *labCmd) print(g *globals, r *lab.Report) error {
	defer func() {
		experiments := "experiments"
		if r.Ran() == 1 {
			experiments = "experiment"
		}
		g.say("took", fmt.Sprintf("%d %s in %s, seed %d", r.Ran(), experiments, r.Took.Round(100*time.Millisecond), r.Seed),
			map[string]any{"seed": r.Seed, "took_ms": r.Took.Milliseconds()})
	}()
	if g.JSON {
		enc := json.NewEncoder(g.stdout)
		for _, e := range r.Experiments {
			if err := enc.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	if err := r.WriteMatrix(g.stdout); err != nil {
		return err
	}
	if c.Timelines || len(c.Scenarios) > 0 {
		return r.WriteTimelines(g.stdout)
	}
	return nil
}
