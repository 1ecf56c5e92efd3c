package audit

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"unicode"
)

// WriteText writes a report for people: the faults with what to change, then the inventory, then what may be no lock, then
// what could not be read. With explain it says of every lock what cannot be told, and why. File names are relative to
// dir where that is shorter.
func (r *Report) WriteText(w io.Writer, dir string, explain bool) error {
	b := &strings.Builder{}
	locks, maybe := r.count()
	all := r.All()
	if r.Packages == 0 {
		b.WriteString("nothing could be read: ")
	}
	fmt.Fprintf(b, "%s in %s, %s", plural(locks, "lock"), plural(r.Packages, "package"), plural(len(all), "fault"))
	if maybe > 0 {
		fmt.Fprintf(b, "; %s that may be something else", plural(maybe, "more place"))
	}
	b.WriteString("\n")
	if r.Incomplete() {
		b.WriteString("INCOMPLETE: something could not be read, see the end; there may be more locks and faults\n")
	}
	if len(all) > 0 {
		b.WriteString("\nFaults\n")
		for i := range r.Locks {
			l := &r.Locks[i]
			if len(l.Findings) > 0 {
				fmt.Fprintf(b, "\n  %s %s, %s:%d%s\n", l.Kind, clean(l.Name.Text), relative(dir, l.Pos.Filename), l.Pos.Line, in(l.Func))
				writeFindings(b, dir, l.Findings)
			}
		}
		if len(r.Findings) > 0 {
			b.WriteString("\n  locks that are declared elsewhere\n")
			writeFindings(b, dir, r.Findings)
		}
	}
	r.writeTable(b, dir, "Locks", false)
	r.writeTable(b, dir, "Keys that are set if absent, where nothing says whether they are locks", true)
	if explain {
		r.writeUnknowns(b, dir)
	} else if locks > 0 {
		b.WriteString("\nA ? names what the code does not show; --explain says why. What is not named is fine, or makes no sense for that kind of lock.\n")
	}
	if r.Usage != nil {
		r.writeUsage(b, dir)
	}
	if r.Incomplete() {
		b.WriteString("\nNot read\n")
		for _, p := range r.Problems {
			pos := p.Pos
			if pos == "" || pos == "-" {
				pos = p.Package
			}
			if pos == "" {
				fmt.Fprintf(b, "  %s\n", clean(p.Message))
				continue
			}
			fmt.Fprintf(b, "  %s: %s\n", clean(relative(dir, pos)), clean(p.Message))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeFindings(b *strings.Builder, dir string, findings []Finding) {
	for _, f := range findings {
		fmt.Fprintf(b, "    %s:%d: %s\n      %s\n      change: %s\n", relative(dir, f.Pos.Filename), f.Pos.Line, f.Fault, clean(f.Message), clean(f.Fix))
	}
}

func (r *Report) writeTable(b *strings.Builder, dir, title string, maybe bool) {
	n := 0
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for i := range r.Locks {
		l := &r.Locks[i]
		if l.Maybe != maybe {
			continue
		}
		if n++; n == 1 {
			fmt.Fprintf(b, "\n%s\n", title)
			fmt.Fprint(w, "  WHERE\tKIND\tNAME\tEXPIRES\tIN")
			if !maybe {
				fmt.Fprint(w, "\tFAULTS AND UNKNOWNS")
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "  %s:%d\t%s\t%s\t%s\t%s", relative(dir, l.Pos.Filename), l.Pos.Line, l.Kind, clean(l.Name.Text), clean(l.TTL.String()), l.Func)
		if !maybe {
			fmt.Fprintf(w, "\t%s", l.answers())
		}
		fmt.Fprintln(w)
	}
	w.Flush() // into memory: it cannot fail
}

// answers are the faults of a lock, and with a ? what is not known.
func (l *Lock) answers() string {
	var out []string
	for _, f := range Faults() {
		switch l.Checks[f].Verdict {
		case Faulty:
			out = append(out, strings.ToUpper(string(f)))
		case Unknown:
			out = append(out, string(f)+"?")
		}
	}
	return strings.Join(out, " ")
}

func (r *Report) writeUnknowns(b *strings.Builder, dir string) {
	n := 0
	for i := range r.Locks {
		l := &r.Locks[i]
		head := false
		for _, f := range Faults() {
			c := l.Checks[f]
			if c.Verdict != Unknown || l.Maybe {
				continue
			}
			if n++; n == 1 {
				b.WriteString("\nCannot tell\n")
			}
			if !head {
				head = true
				fmt.Fprintf(b, "  %s %s, %s:%d\n", l.Kind, clean(l.Name.Text), relative(dir, l.Pos.Filename), l.Pos.Line)
			}
			fmt.Fprintf(b, "    %s: %s\n", f, clean(c.Why))
		}
	}
}

// count returns how many entries are locks, and how many may be something else.
func (r *Report) count() (locks, maybe int) {
	for i := range r.Locks {
		if r.Locks[i].Maybe {
			maybe++
		} else {
			locks++
		}
	}
	return locks, maybe
}

func in(function string) string {
	if function == "" {
		return ""
	}
	return ", in " + function
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// clean makes one line of what stands in the audited code, without anything that a terminal would act upon.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '�'
		}
		return r
	}, text)
}

// relative shortens a path, or a path with a position, to what it is from dir.
func relative(dir, path string) string {
	if dir == "" || !filepath.IsAbs(path) {
		return path
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil || len(rel) >= len(path) {
		return path
	}
	return rel
}
