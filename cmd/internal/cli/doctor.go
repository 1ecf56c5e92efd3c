package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/holdlock/holdlock/driver"
)

type doctorCmd struct {
	TTL    time.Duration `name:"ttl" help:"The shortest TTL that locks are declared with." default:"30s"`
	FailOn string        `help:"Exit 1 from this verdict on: warning, refuses, or never." enum:"warning,refuses,never" default:"refuses" placeholder:"VERDICT"`
}

// Run examines the store.
func (c *doctorCmd) Run(g *globals) error {
	if c.TTL <= 0 {
		return usage(fmt.Sprintf("--ttl %s is not allowed: it must be positive", c.TTL))
	}
	drv, err := g.openDriver()
	if err != nil {
		return err
	}
	defer drv.Close()
	doctor, ok := driver.As[driver.Doctor](drv)
	if !ok {
		return fmt.Errorf("%s: there is no doctor for this kind of store", drv.Traits().Location)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found := doctor.Diagnose(ctx, driver.DoctorOptions{TTL: c.TTL})
	if err := c.print(g, drv.Traits().Location, found); err != nil {
		return err
	}
	worst := driver.Fine
	for _, f := range found {
		worst = max(worst, f.Verdict)
	}
	if c.FailOn == "warning" && worst >= driver.Caution || c.FailOn == "refuses" && worst >= driver.Refuse {
		return &exitError{code: exitFindings, kind: "findings", silent: true, err: errors.New("the store is not in order")}
	}
	return nil
}

func (c *doctorCmd) print(g *globals, location string, found []driver.Diagnosis) error {
	if g.JSON {
		enc := json.NewEncoder(g.stdout)
		for _, f := range found {
			if err := enc.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintln(g.stdout, readable(location))
	w := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
	for _, f := range found {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Verdict, readable(f.Check), readable(f.Found))
		if f.Harm != "" {
			fmt.Fprintf(w, "\t\tharm: %s\n", readable(f.Harm))
		}
		if f.Setting != "" {
			fmt.Fprintf(w, "\t\tdo: %s\n", readable(f.Setting))
		}
	}
	return w.Flush()
}
