package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/holdlock/holdlock/cmd/audit"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// withUsage compares the declared locks with what the ledger knows of.
func (a *auditCmd) withUsage(g *globals, r *audit.Report) error {
	book, traits, done, err := g.book()
	if err != nil {
		return err
	}
	defer done()
	location := traits.Location
	ctx, cancel := context.WithTimeout(context.Background(), 12*g.Timeout) // a month is many days
	defer cancel()
	now := time.Now()
	from := now.Add(-time.Duration(a.Since))
	locks, problems, err := ledger.Load(ctx, book, driver.DayOf(from), driver.DayOf(now)+1)
	if err != nil {
		return fmt.Errorf("cannot read what the locks have done: %w", err)
	}
	for _, p := range problems {
		r.Problems = append(r.Problems, audit.Problem{Package: location, Message: p.Error()})
	}
	var usage []audit.Usage
	for _, l := range locks {
		if l.Name != ledger.Others {
			usage = append(usage, audit.Usage{Lock: l.Name, LastUsed: l.Total().LastUse()})
		}
	}
	c := audit.Join(r.Locks, usage)
	r.Usage, r.UsageOf = &c, fmt.Sprintf("since %s, in %s", from.UTC().Format(time.DateOnly), location)
	return nil
}
