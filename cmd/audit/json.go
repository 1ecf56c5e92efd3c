package audit

import (
	"encoding/json"
	"go/token"
	"io"
)

// The records of WriteJSON. Their fields are a contract, described in docs/audit.md.
type (
	place struct {
		File   string `json:"file"`
		Line   int    `json:"line"`
		Column int    `json:"column"`
	}
	checkRecord struct {
		Verdict Verdict `json:"verdict"`
		Why     string  `json:"why,omitempty"`
	}
	lockRecord struct {
		Record string `json:"record"` // "lock"
		place
		Package  string                `json:"package"`
		Func     string                `json:"func,omitempty"`
		Kind     Kind                  `json:"kind"`
		API      string                `json:"api"`
		Name     string                `json:"name"`
		Constant bool                  `json:"name_constant"`
		TTLState TTLState              `json:"ttl_state"`
		TTLMs    *int64                `json:"ttl_ms,omitempty"`
		TTLExpr  string                `json:"ttl_expr,omitempty"`
		Purpose  string                `json:"purpose,omitempty"`
		Double   string                `json:"double_run,omitempty"`
		Maybe    bool                  `json:"maybe"`
		Checks   map[Fault]checkRecord `json:"checks"`
	}
	findingRecord struct {
		Record string `json:"record"` // "finding"
		Fault  Fault  `json:"fault"`
		place
		Message string `json:"message"`
		Fix     string `json:"fix"`
		Lock    *place `json:"lock,omitempty"` // where its lock is declared or taken
	}
	problemRecord struct {
		Record  string `json:"record"` // "problem"
		Package string `json:"package"`
		Pos     string `json:"pos,omitempty"`
		Message string `json:"message"`
	}
	summaryRecord struct {
		Record     string `json:"record"` // "summary", the last one
		Packages   int    `json:"packages"`
		Locks      int    `json:"locks"`
		Maybe      int    `json:"maybe_locks"`
		Findings   int    `json:"findings"`
		Incomplete bool   `json:"incomplete"`
	}
)

// WriteJSON writes a report as one JSON object a line: all locks, then all findings, then all problems, then all
// that is known of usage, then a summary.
// File names are relative to dir where that is shorter.
func (r *Report) WriteJSON(w io.Writer, dir string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	at := func(p token.Position) place { return place{relative(dir, p.Filename), p.Line, p.Column} }
	for i := range r.Locks {
		l := &r.Locks[i]
		rec := lockRecord{
			Record: "lock", place: at(l.Pos), Package: l.Package, Func: l.Func, Kind: l.Kind, API: l.API, Name: l.Name.Text,
			Constant: l.Name.Constant, TTLState: l.TTL.State, TTLExpr: l.TTL.Expr, Purpose: l.Purpose, Double: l.Double, Maybe: l.Maybe,
			Checks: map[Fault]checkRecord{},
		}
		if l.TTL.State == TTLKnown || l.TTL.State == TTLDefault {
			ms := l.TTL.D.Milliseconds()
			rec.TTLMs = &ms
		}
		for f, c := range l.Checks {
			rec.Checks[f] = checkRecord(c)
		}
		if err := enc.Encode(rec); err != nil {
			return err
		}
	}
	finding := func(f Finding, lock *place) error {
		return enc.Encode(findingRecord{"finding", f.Fault, at(f.Pos), f.Message, f.Fix, lock})
	}
	for i := range r.Locks {
		lock := at(r.Locks[i].Pos)
		for _, f := range r.Locks[i].Findings {
			if err := finding(f, &lock); err != nil {
				return err
			}
		}
	}
	for _, f := range r.Findings {
		if err := finding(f, nil); err != nil {
			return err
		}
	}
	for _, p := range r.Problems {
		if err := enc.Encode(problemRecord{"problem", p.Package, p.Pos, p.Message}); err != nil {
			return err
		}
	}
	if r.Usage != nil {
		if err := r.encodeUsage(enc, at); err != nil {
			return err
		}
	}
	locks, maybe := r.count()
	return enc.Encode(summaryRecord{"summary", r.Packages, locks, maybe, len(r.All()), r.Incomplete()})
}
