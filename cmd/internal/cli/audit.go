package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/holdlock/holdlock/cmd/audit"
)

type auditCmd struct {
	Patterns []string `arg:"" optional:"" help:"Packages, as the go command names them. Default: ./..." placeholder:"PACKAGE"`
	FailOn   []string `help:"Exit with 1 if one of these faults is found: any, or names with commas between." placeholder:"FAULT"`
	All      bool     `help:"Also read generated files and vendored packages."`
	Tests    bool     `help:"Also read _test.go files."`
	Explain  bool     `help:"Say of every lock what cannot be told, and why."`

	WithUsage bool `help:"Compare the locks with what they have done in the store: declared and not used, used and not declared."`
	Since     days `help:"With --with-usage: how far to look back: 30d, 12h." default:"30d" placeholder:"SPAN"`
}

// Run audits Go code. Only --with-usage needs a store.
func (a *auditCmd) Run(g *globals) error {
	for _, f := range a.FailOn {
		if f != "any" && !slices.Contains(audit.Faults(), audit.Fault(f)) {
			return usage(fmt.Sprintf("--fail-on %s is not known: any, or some of %s", f, faultNames()))
		}
	}
	for _, p := range a.Patterns {
		if strings.HasPrefix(p, "-") { // the go command would take it for a flag
			return usage(fmt.Sprintf("%s is no package", p))
		}
	}
	if len(a.Patterns) == 0 {
		a.Patterns = []string{"./..."}
	}
	r, err := a.audit()
	if err != nil {
		return err
	}
	if a.WithUsage {
		if err := a.withUsage(g, r); err != nil {
			return err
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = ""
	}
	if g.JSON {
		err = r.WriteJSON(g.stdout, dir)
	} else {
		err = r.WriteText(g.stdout, dir, a.Explain)
	}
	if err != nil {
		return &exitError{code: exitIncomplete, kind: "incomplete", err: fmt.Errorf("the report could not be written: %w", err)}
	}
	switch {
	case r.Incomplete(): // what was found is told, but a clean result would mean nothing
		return &exitError{code: exitIncomplete, kind: "incomplete", err: errors.New("the report is incomplete: some code could not be read")}
	case a.fails(r):
		return &exitError{code: exitFindings, kind: "findings", silent: true, err: errors.New("faults were found")}
	}
	return nil
}

// auditGrace is how long an audit that a signal ends may take to end the go command. Reading code asks nobody whether to
// go on, so that it is left behind after that.
const auditGrace = time.Second

// audit reads the code, until a signal ends it.
func (a *auditCmd) audit() (*audit.Report, error) {
	ctx, received, stop := untilSignal()
	defer stop() // what comes after is short, and ends as any program does
	type outcome struct {
		r   *audit.Report
		err error
	}
	over := make(chan outcome, 1)
	go func() {
		r, err := audit.Run(ctx, &audit.LoadOptions{All: a.All, Tests: a.Tests}, a.Patterns...)
		over <- outcome{r, err}
	}()
	var o outcome
	select {
	case o = <-over:
	case <-ctx.Done():
		select {
		case <-over:
		case <-time.After(auditGrace):
		}
	}
	switch {
	case ctx.Err() != nil:
		sig := received()
		return nil, &exitError{code: 128 + int(sig), kind: "signal", err: fmt.Errorf("ended by signal (%v) before the code was read; nothing is told of it", sig)}
	case o.err != nil:
		return nil, &exitError{code: exitIncomplete, kind: "incomplete", err: o.err}
	}
	return o.r, nil
}

func (a *auditCmd) fails(r *audit.Report) bool {
	for _, f := range r.All() {
		if slices.Contains(a.FailOn, "any") || slices.Contains(a.FailOn, string(f.Fault)) {
			return true
		}
	}
	return false
}

func faultNames() string {
	var names []string
	for _, f := range audit.Faults() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}
