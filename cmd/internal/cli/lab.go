package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdlock/holdlock/cmd/lab"
)

type labCmd struct {
	Scenarios []string `arg:"" optional:"" help:"Faults, mechanisms, or MECHANISM/FAULT. Default: all." placeholder:"SCENARIO"`
	Seed      uint64
	Full      bool
}

func (c *labCmd) Run(g *globals) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := lab.Run(ctx, &lab.Options{Scenarios: c.Scenarios, Seed: c.Seed, Full: c.Full, Progress: func(e *lab.Experiment, over, all int) {
		fmt.Fprintf(g.stderr, "%d/%d %s, %s: %s %s %+v\n", over, all, e.Mechanism.ID, e.Fault.ID, e.NotRun, e.Took.Round(time.Millisecond), e.Counts)
	}})
	if err != nil {
		return err
	}
	return json.NewEncoder(g.stdout).Encode(r)
}
