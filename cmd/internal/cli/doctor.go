package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/pghold"
)

type doctorCmd struct {
	TTL            time.Duration `name:"ttl" help:"The shortest TTL that locks are declared with." default:"30s"`
	InTransactions bool          `help:"PostgreSQL: look at what locks in the transactions of your programs depend on."`

	FailOn string `help:"Exit 1 from this verdict on: warning, refuses, or never." enum:"warning,refuses,never" default:"refuses" placeholder:"VERDICT"`
}

// Run examines the store.
func (c *doctorCmd) Run(g *globals) error {
	if c.TTL <= 0 {
		return usage(fmt.Sprintf("--ttl %s is not allowed: it must be positive", c.TTL))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	where, found, err := c.examine(ctx, g)
	if err != nil {
		return err
	}
	if err := c.print(g, where, found); err != nil {
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

// examine looks at the store. One in PostgreSQL need not open for that.
func (c *doctorCmd) examine(ctx context.Context, g *globals) (where string, found []driver.Diagnosis, err error) {
	if s := g.stores(); len(s.URLs) == 1 {
		scheme, rest, _ := strings.Cut(s.URLs[0], ":")
		if _, ok := postgresKind(scheme); ok {
			return c.examinePostgres(ctx, scheme, rest)
		}
	}
	if c.InTransactions {
		return "", nil, usage("--in-transactions is for postgres:// stores")
	}
	if err := existing(g.stores().URLs...); err != nil {
		return "", nil, err
	}
	drv, err := g.openDriver()
	if err != nil {
		return "", nil, err
	}
	defer drv.Close()
	where = drv.Traits().Location
	doctor, ok := driver.As[driver.Doctor](drv)
	if !ok {
		return "", nil, fmt.Errorf("%s: there is no doctor for this kind of store", where)
	}
	return where, doctor.Diagnose(ctx, driver.DoctorOptions{TTL: c.TTL}), nil
}

func (c *doctorCmd) examinePostgres(ctx context.Context, scheme, rest string) (where string, found []driver.Diagnosis, err error) {
	u, err := parsePostgres(scheme, rest)
	if err != nil {
		return "", nil, usage("--store " + scheme + ": " + err.Error())
	}
	config, err := pgx.ParseConfig(u.dsn)
	if err != nil {
		return "", nil, hidePostgres(scheme, err)
	}
	opts := &pghold.DoctorOptions{Schema: u.schema, TTL: c.TTL}
	what := "lease rows"
	switch {
	case c.InTransactions:
		opts.Scope, what = pghold.Transactions, "locks in transactions"
	case u.advisory:
		opts.Scope, what = pghold.Sessions, "session locks"
	}
	where = fmt.Sprintf("postgres %s:%d/%s, schema %s, %s", config.Host, config.Port, config.Database, u.schema, what)
	return where, pghold.Diagnose(ctx, u.dsn, opts), nil
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
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Verdict, readable(f.Check), readable(inFlags.Replace(f.Found)))
		if f.Harm != "" {
			fmt.Fprintf(w, "\t\tharm: %s\n", readable(inFlags.Replace(f.Harm)))
		}
		if f.Setting != "" {
			fmt.Fprintf(w, "\t\tdo: %s\n", readable(inFlags.Replace(f.Setting)))
		}
	}
	return w.Flush()
}
