package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/pghold"
)

// claimer is a store that knows who waits, and who has locks in transactions.
type claimer interface {
	Claims(ctx context.Context, prefix string, limit int) ([]pghold.Claim, error)
}

// claimsMax is how many of those in line are shown.
const claimsMax = 1000

// claims shows them below the list of locks, if there are any.
func (g *globals) claims(ctx context.Context, d driver.Driver, prefix string) error {
	p, ok := d.(claimer)
	if !ok {
		return nil
	}
	all, err := p.Claims(ctx, prefix, claimsMax)
	if err != nil || len(all) == 0 {
		return err
	}
	w := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nLOCK\tCLAIM\tBACKEND\tPROGRAM\tCLIENT\tSINCE\tBLOCKED BY")
	for _, c := range all {
		backend := "-"
		if c.PID != 0 {
			backend = fmt.Sprint(c.PID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", claimName(c), claimKind(c), backend, orDash(c.Program), orDash(c.Client),
			claimSince(c), orDash(strings.Trim(fmt.Sprint(c.By), "[]")))
	}
	return w.Flush()
}

// claimsJSON is the same as JSON: a contract.
func (g *globals) claimsJSON(ctx context.Context, d driver.Driver, prefix, store string) error {
	p, ok := d.(claimer)
	if !ok {
		return nil
	}
	all, err := p.Claims(ctx, prefix, claimsMax)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(g.stdout)
	for _, c := range all {
		name, key, _ := strings.Cut(c.Key, "/")
		out := map[string]any{"lock": name, "store": store, "state": claimKind(c), "backend": c.PID, "program": c.Program, "client": c.Client}
		if key != "" {
			out["key"] = key
		}
		if !c.Since.IsZero() {
			out["since"] = c.Since.UTC().Format(time.RFC3339Nano)
		}
		if len(c.By) > 0 {
			out["blocked_by"] = c.By
		}
		if err := enc.Encode(out); err != nil {
			return err
		}
	}
	return nil
}

func claimName(c pghold.Claim) string {
	name, key, err := holdlock.ParseName(c.Key)
	if err != nil {
		return readable(c.Key)
	}
	return lockName(name, key)
}

func claimKind(c pghold.Claim) string {
	switch {
	case c.Held:
		return "holds" // in a transaction, or in a session that shows no term
	case c.Line:
		return "in line"
	default:
		return "waiting"
	}
}

func claimSince(c pghold.Claim) string {
	if c.Since.IsZero() {
		return "-"
	}
	return time.Since(c.Since).Round(time.Millisecond).String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return readable(s)
}
