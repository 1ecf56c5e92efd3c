package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

type lsCmd struct {
	Prefix string `arg:"" optional:"" help:"Only locks whose name starts so."`
}

// Run lists what is held.
func (l *lsCmd) Run(g *globals) error {
	return g.withStore(func(ctx context.Context, c *holdlock.Client, d driver.Driver) error {
		unread := unread{g: g}
		if g.JSON {
			enc := json.NewEncoder(g.stdout)
			for i, err := range c.List(ctx, l.Prefix) {
				if err != nil {
					if err := unread.pass(err); err != nil {
						return err
					}
					continue
				}
				if err := enc.Encode(fieldsOf(i)); err != nil {
					return err
				}
			}
			return cmp.Or(g.claimsJSON(ctx, d, l.Prefix, c.Traits().Location), unread.err())
		}
		w := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
		n := 0
		for i, err := range c.List(ctx, l.Prefix) {
			if err != nil {
				if err := unread.pass(err); err != nil {
					return cmp.Or(w.Flush(), err) // what was read until now is shown
				}
				continue
			}
			if n == 0 {
				fmt.Fprintln(w, "LOCK\tSTATE\tHOLDER\tSINCE\tFREE IN\tTOKEN\tPURPOSE")
			}
			n++
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", lockName(i.Name, i.Key), state(i), holder(i), since(i),
				i.FreeIn.Round(time.Millisecond), i.Token, readable(i.Holder.Purpose))
		}
		if n == 0 && unread.n == 0 { // what could not be read may be held
			fmt.Fprintf(g.stderr, "holdlock: nothing is held in %s\n", readable(c.Traits().Location))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		return cmp.Or(g.claims(ctx, d, l.Prefix), unread.err())
	})
}

type inspectCmd struct {
	Lock string `arg:"" help:"LOCK or LOCK/KEY."`
}

// Run shows one lock.
func (i *inspectCmd) Run(g *globals) error {
	name, key, err := holdlock.ParseName(i.Lock)
	if err != nil {
		return err
	}
	return g.withClient(func(ctx context.Context, c *holdlock.Client) error {
		info, held, err := c.Inspect(ctx, name, key)
		if err != nil {
			return err
		}
		if !held {
			return g.printFree(c, name, key)
		}
		return g.print(info)
	})
}

func (g *globals) printFree(c *holdlock.Client, name, key string) error {
	if g.JSON {
		out := map[string]any{"lock": name, "store": c.Traits().Location, "state": "free"}
		if key != "" {
			out["key"] = key
		}
		return json.NewEncoder(g.stdout).Encode(out)
	}
	_, err := fmt.Fprintf(g.stdout, "lock     %s\nstate    free\nstore    %s\n", lockName(name, key), readable(c.Traits().Location))
	return err
}

// print shows one term in full.
func (g *globals) print(i holdlock.Info) error {
	if g.JSON {
		return json.NewEncoder(g.stdout).Encode(fieldsOf(i))
	}
	w := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "lock\t%s\nstate\t%s\n", lockName(i.Name, i.Key), state(i))
	if i.Cooling {
		fmt.Fprintf(w, "free in\t%s\t(the job is over; --min-hold keeps the lock)\n", i.FreeIn.Round(time.Millisecond))
	} else {
		when := i.FreeIn.Round(time.Millisecond).String() + ", unless it is renewed"
		if i.FreeIn == 0 {
			when = "-\t(its time is over and its holder stands still; break --now ends its session)"
		}
		fmt.Fprintf(w, "holder\t%s\nsince\t%s\nfree in\t%s\n", holder(i), since(i), when)
		if i.Holder.Purpose != "" {
			fmt.Fprintf(w, "purpose\t%s\n", readable(i.Holder.Purpose))
		}
	}
	fmt.Fprintf(w, "token\t%d\n", i.Token)
	if i.Broken != "" {
		fmt.Fprintf(w, "broken by\t%s\n", readable(i.Broken))
	}
	fmt.Fprintf(w, "store\t%s\n", readable(i.Store))
	return w.Flush()
}

func holder(i holdlock.Info) string {
	if i.Cooling {
		return "-"
	}
	return readable(who(i.Holder))
}

func since(i holdlock.Info) string {
	if i.Cooling {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", i.Since.Format(time.DateTime), time.Since(i.Since).Round(time.Second))
}
