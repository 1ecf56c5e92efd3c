package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review"
	"github.com/holdlock/holdlock/review/ledger"
)

type reviewCmd struct {
	Lock   string `arg:"" optional:"" help:"Show the review sheet of one lock. Without it: findings on all."`
	Since  days   `help:"How far to look back: 30d, 12h." default:"30d" placeholder:"SPAN"`
	All    bool   `help:"Name the locks with which all is well, too."`
	FailOn string `help:"Exit 1 if there is a finding of this severity or a worse one: note, warning, error." enum:"note,warning,error,never" default:"never" placeholder:"SEVERITY"`
}

// Run reads the ledger and judges.
func (r *reviewCmd) Run(g *globals) error {
	if name, key, _ := strings.Cut(r.Lock, "/"); key != "" {
		return usage(fmt.Sprintf("reviews are about locks, not keys: holdlock review %s", name))
	}
	book, traits, done, err := g.book()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 12*g.Timeout) // a month is many days
	defer cancel()
	now := time.Now()
	period := review.Period{From: now.Add(-time.Duration(r.Since)), To: now}
	locks, problems, err := ledger.Load(ctx, book, driver.DayOf(period.From), driver.DayOf(now)+1)
	if err != nil {
		return fmt.Errorf("cannot read what the locks have done: %w", err)
	}
	problems = r.concern(problems)
	for _, p := range problems {
		g.say("skipped", "left out of the review: "+p.Error(), nil)
	}
	if r.Lock != "" {
		found, ok := only(locks, r.Lock)
		if !ok {
			return &exitError{code: exitUsage, kind: "usage", err: fmt.Errorf("nothing is known of lock %q in %s; %s",
				r.Lock, traits.Location, known(locks))}
		}
		locks = found
	}
	findings := review.JudgeAll(locks, period)
	if err := r.print(g, locks, findings, period, traits); err != nil {
		return err
	}
	if len(problems) > 0 { // what was found is told, but a clean result would mean nothing
		return &exitError{code: exitIncomplete, kind: "incomplete", err: errors.New("the review is incomplete: some records could not be read")}
	}
	for _, f := range findings {
		if r.FailOn != "never" && atLeast(f.Severity, r.FailOn) {
			return &exitError{code: exitFindings, kind: "findings", silent: true, err: errors.New("there are findings")}
		}
	}
	return nil
}

// concern returns the problems that have to do with what is looked at: records of other locks do not matter to the review of one.
func (r *reviewCmd) concern(problems []error) []error {
	return slices.DeleteFunc(problems, func(p error) bool {
		var about *ledger.UnreadError
		return r.Lock != "" && errors.As(p, &about) && about.Lock != "" && about.Lock != r.Lock
	})
}

func atLeast(s review.Severity, word string) bool {
	var least review.Severity
	return least.UnmarshalText([]byte(word)) == nil && s >= least
}

func only(locks []*ledger.Lock, name string) ([]*ledger.Lock, bool) {
	for _, l := range locks {
		if l.Name == name {
			return []*ledger.Lock{l}, true
		}
	}
	return nil, false
}

// known says of which locks something is known.
func known(locks []*ledger.Lock) string {
	const most = 5
	var names []string
	for _, l := range locks[:min(len(locks), most)] {
		names = append(names, lockName(l.Name, ""))
	}
	switch {
	case len(locks) == 0:
		return "and nothing of any other"
	case len(locks) > most:
		return fmt.Sprintf("it is of %s and others: holdlock review --all", strings.Join(names, ", "))
	}
	return "it is of " + strings.Join(names, ", ")
}

// rest returns the locks without findings.
func (r *reviewCmd) rest(locks []*ledger.Lock, findings []review.Finding) (rest []*ledger.Lock) {
	if !r.All {
		return nil
	}
	accused := map[string]bool{}
	for _, f := range findings {
		accused[f.Lock] = true
	}
	for _, l := range locks {
		if !accused[l.Name] {
			rest = append(rest, l)
		}
	}
	return rest
}

func (r *reviewCmd) print(g *globals, locks []*ledger.Lock, findings []review.Finding, p review.Period, t driver.Traits) error {
	if g.JSON {
		return r.printJSON(g.stdout, locks, findings, p, t)
	}
	out := bufio.NewWriter(g.stdout)
	if r.Lock != "" {
		fmt.Fprintf(out, "lock %s, %s to %s, in %s\n\n", readable(r.Lock), p.From.Format(time.DateOnly), p.To.Format(time.DateOnly), readable(t.Location))
		printSheet(out, locks[0], p, t)
	}
	for _, f := range findings {
		fmt.Fprintf(out, "%s: %s: %s\n    %s\n    → %s\n", f.Severity, readable(f.Lock), f.Kind, readable(f.Evidence), readable(f.Advice))
	}
	for _, l := range r.rest(locks, findings) {
		if l.Partial {
			fmt.Fprintf(out, "unknown: %s: some of its records could not be read\n", readable(l.Name))
			continue
		}
		fmt.Fprintf(out, "ok: %s\n", readable(l.Name))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	switch {
	case len(locks) == 0:
		fmt.Fprintf(g.stderr, "holdlock: no lock has been used in %s since %s\n", readable(t.Location), p.From.Format(time.DateOnly))
	case slices.ContainsFunc(locks, func(l *ledger.Lock) bool { return l.Partial }): // nothing is well because nothing is said
	case len(findings) == 0:
		fmt.Fprintf(g.stderr, "holdlock: %s reviewed, nothing to say\n", count(len(locks), "lock", "locks"))
	}
	return nil
}

func printSheet(w io.Writer, l *ledger.Lock, p review.Period, t driver.Traits) {
	for _, a := range review.Sheet(l, p, t) {
		fmt.Fprintf(w, "%s\n  %s: %s\n", a.Question, strings.ToUpper(a.Verdict[:1])+a.Verdict[1:], readable(a.Why))
	}
	fmt.Fprintln(w)
}

// reviewLine is one line of --json: a finding, or the sheet of the lock that was asked for, or the name of a lock with which all is well.
type reviewLine struct {
	*review.Finding
	Sheet []review.Answer `json:"sheet,omitempty"`
	Of    string          `json:"of,omitempty"`
	// Unknown: there is no finding, but some records of that lock could not be read.
	Unknown bool `json:"unknown,omitempty"`
}

func (r *reviewCmd) printJSON(w io.Writer, locks []*ledger.Lock, findings []review.Finding, p review.Period, t driver.Traits) error {
	enc := json.NewEncoder(w)
	if r.Lock != "" {
		if err := enc.Encode(reviewLine{Sheet: review.Sheet(locks[0], p, t), Of: r.Lock, Unknown: locks[0].Partial}); err != nil {
			return err
		}
	}
	for i := range findings {
		if err := enc.Encode(reviewLine{Finding: &findings[i]}); err != nil {
			return err
		}
	}
	for _, l := range r.rest(locks, findings) {
		if err := enc.Encode(reviewLine{Of: l.Name, Unknown: l.Partial}); err != nil {
			return err
		}
	}
	return nil
}

// days is a duration that may be written in days.
type days time.Duration

// UnmarshalText reads 30d, 12h, 1h30m.
func (d *days) UnmarshalText(b []byte) error {
	text := string(b)
	var n time.Duration
	var err error
	if whole, ok := strings.CutSuffix(text, "d"); ok {
		var count uint64
		count, err = strconv.ParseUint(whole, 10, 16)
		n = time.Duration(count) * 24 * time.Hour
	} else {
		n, err = time.ParseDuration(text)
	}
	if err != nil || n <= 0 || n > 100*24*time.Hour {
		return fmt.Errorf("%q is not allowed: a span such as 30d or 12h, up to 100d", text)
	}
	*d = days(n)
	return nil
}
