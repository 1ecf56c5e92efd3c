package audit

import (
	"encoding/json"
	"fmt"
	"go/token"
	"strings"
	"text/tabwriter"
	"time"
)

// usageRecord is a record of WriteJSON.
type usageRecord struct {
	Record   string     `json:"record"` // "usage"
	State    string     `json:"state"`  // used, unused, computed, undeclared, perhaps
	Lock     string     `json:"lock"`
	LastUsed *time.Time `json:"last_used,omitempty"`
	*place              // of the declaration
}

// rows calls f for each line of a comparison: what hurts first.
func (c *Comparison) rows(f func(state, lock string, lastUsed time.Time, declared *token.Position)) {
	for i := range c.Unused {
		f("unused", c.Unused[i].Name.Text, time.Time{}, &c.Unused[i].Pos)
	}
	for _, u := range c.Undeclared {
		f("undeclared", u.Lock, u.LastUsed, nil)
	}
	for _, u := range c.Perhaps {
		f("perhaps", u.Lock, u.LastUsed, nil)
	}
	for i := range c.Computed {
		f("computed", c.Computed[i].Name.Text, time.Time{}, &c.Computed[i].Pos)
	}
	for i := range c.Used {
		f("used", c.Used[i].Lock.Name.Text, c.Used[i].LastUsed, &c.Used[i].Lock.Pos)
	}
}

// states say in words what the states are.
var states = []struct{ state, title string }{
	{"unused", "Declared here, and not used"},
	{"undeclared", "Used, and not declared here: by a command, by other code, or by code that is gone"},
	{"perhaps", "Used, and declared at most under a name that the code computes"},
	{"computed", "Declared under a computed name, so that its use cannot be told"},
	{"used", "Declared and used"},
}

func (r *Report) writeUsage(b *strings.Builder, dir string) {
	fmt.Fprintf(b, "\nUse of holdlock's locks, %s\n", clean(r.UsageOf))
	for _, s := range states {
		n, w := 0, tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		r.Usage.rows(func(state, lock string, lastUsed time.Time, declared *token.Position) {
			if state != s.state {
				return
			}
			if n++; n == 1 {
				fmt.Fprintf(b, "  %s\n", s.title)
			}
			fmt.Fprintf(w, "    %s", clean(lock))
			if declared != nil {
				fmt.Fprintf(w, "\t%s:%d", relative(dir, declared.Filename), declared.Line)
			}
			if !lastUsed.IsZero() {
				fmt.Fprintf(w, "\tlast used %s", lastUsed.UTC().Format("2006-01-02 15:04 UTC"))
			}
			fmt.Fprintln(w)
		})
		w.Flush() // into memory: it cannot fail
	}
}

func (r *Report) encodeUsage(enc *json.Encoder, at func(token.Position) place) (err error) {
	r.Usage.rows(func(state, lock string, lastUsed time.Time, declared *token.Position) {
		rec := usageRecord{Record: "usage", State: state, Lock: lock}
		if !lastUsed.IsZero() {
			utc := lastUsed.UTC()
			rec.LastUsed = &utc
		}
		if declared != nil {
			p := at(*declared)
			rec.place = &p
		}
		if err == nil {
			err = enc.Encode(rec)
		}
	})
	return err
}
