package drivertest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdlock/holdlock/driver"
)

// R10, of lists: operators and reviews see what is held, all of it and nothing else.
var listCases = []testCase{
	{"R10/ListShowsWhatIsHeld", func(r *rig) {
		d := r.open()
		l := r.lister(d)
		if l == nil {
			return
		}
		held := r.acquire(d, "held", r.long)
		r.release(r.acquire(d, "released", r.long))
		r.lapse(r.acquire(d, "lapsed", r.short))
		cooling := r.acquire(d, "cooling", r.long)
		if err := d.Release(r.ctx, &driver.ReleaseRequest{Ref: cooling.ref, KeepFor: r.long}); err != nil {
			r.Fatalf("Release with KeepFor: %v", err)
		}
		terms := r.list(l, "", "", 100)
		if got := keysOf(terms); !slices.Equal(got, []string{"cooling", "held"}) {
			r.Fatalf("R10: List shows %q, want the held and the cooling key", got)
		}
		if !terms[0].Cooling || terms[1].Cooling || terms[1].Nonce != held.ref.Nonce || terms[1].Token != held.Token {
			r.Errorf("R10: List shows %+v", terms)
		}
		for _, key := range []string{"released", "lapsed", "never"} {
			if got, stands, err := l.Inspect(r.ctx, key); stands || err != nil {
				r.Errorf("R10: Inspect of the free key %q: %+v, %v, %v", key, got, stands, err)
			}
		}
	}},
	{"R10/ListIsInByteOrder", func(r *rig) {
		d := r.open()
		l := r.lister(d)
		if l == nil {
			return
		}
		keys := []string{"b", "a", "B", "a/2", "a/10", "a 1", "ä", "z", "~", "é", "!", "a\x7f", "日本", "🔒", "aa"}
		for _, key := range keys {
			r.acquire(d, key, r.long)
		}
		slices.Sort(keys)
		if got := keysOf(r.list(l, "", "", 100)); !slices.Equal(got, keys) {
			r.Errorf("R10: List gives\n%q, want\n%q", got, keys)
		}
	}},
	{"R10/ListByPrefix", func(r *rig) {
		d := r.open()
		l := r.lister(d)
		if l == nil {
			return
		}
		// Signs that mean something in the patterns of SQL and Redis mean themselves.
		for _, key := range []string{"job/1", "job/2", "Job/3", "job_4", "jobs", "j%b/5", "j*b/6", "j[o]b/7", `j\b`, "k"} {
			r.acquire(d, key, r.long)
		}
		for prefix, want := range map[string][]string{
			"job/": {"job/1", "job/2"},
			"job_": {"job_4"},
			"j%":   {"j%b/5"},
			"j*":   {"j*b/6"},
			"j[o]": {"j[o]b/7"},
			`j\`:   {`j\b`},
			"k":    {"k"},
			"kk":   nil,
		} {
			if got := keysOf(r.list(l, prefix, "", 100)); !slices.Equal(got, want) {
				r.Errorf("R10: List with prefix %q gives %q, want %q", prefix, got, want)
			}
		}
	}},
	{"R10/ListInPages", func(r *rig) {
		d := r.open()
		l := r.lister(d)
		if l == nil {
			return
		}
		var want []string
		for i := range 23 {
			want = append(want, fmt.Sprintf("p/%02d", i))
			r.acquire(d, want[i], r.long)
		}
		r.acquire(d, "o", r.long)
		r.acquire(d, "q", r.long)
		var got []string
		for after := ""; ; after = got[len(got)-1] {
			page := keysOf(r.list(l, "p/", after, 5))
			if got = append(got, page...); len(page) < 5 || len(got) > 100 {
				break
			}
		}
		if !slices.Equal(got, want) {
			r.Errorf("R10: pages of 5 give\n%q, want\n%q", got, want)
		}
		if got := keysOf(r.list(l, "p/", "p/07x", 2)); !slices.Equal(got, []string{"p/08", "p/09"}) {
			r.Errorf("R10: a page after a key that does not exist gives %q", got)
		}
		if got := keysOf(r.list(l, "p/", "q", 5)); len(got) != 0 {
			r.Errorf("R10: a page after the last key gives %q", got)
		}
	}},
	{"R10/ListWhileTermsComeAndGo", func(r *rig) {
		d := r.open()
		l := r.lister(d)
		if l == nil {
			return
		}
		terms := map[string]term{}
		for _, key := range []string{"a", "b", "d", "e", "g"} {
			terms[key] = r.acquire(d, key, r.long)
		}
		got := keysOf(r.list(l, "", "", 2))
		r.release(terms["d"])
		r.acquire(d, "c", r.long) // may be missed, as may f
		r.acquire(d, "f", r.long)
		for len(got) < 20 {
			page := keysOf(r.list(l, "", got[len(got)-1], 2))
			if got = append(got, page...); len(page) < 2 {
				break
			}
		}
		certain := slices.DeleteFunc(slices.Clone(got), func(key string) bool { return key == "c" || key == "f" })
		if !slices.Equal(certain, []string{"a", "b", "e", "g"}) || !slices.IsSorted(got) || len(slices.Compact(got)) != len(got) {
			r.Errorf("R10: a walk gave %q, want a b e g, perhaps c and f, each once", got)
		}
		if got := keysOf(r.list(l, "", "", 20)); !slices.Equal(got, []string{"a", "b", "c", "e", "f", "g"}) {
			r.Errorf("R10: a new walk gave %q, want a b c e f g", got)
		}
	}},
	{"R10/LookingChangesNothing", func(r *rig) {
		a, b := r.open(), r.open()
		l := r.lister(b)
		if l == nil {
			return
		}
		t := r.acquire(a, "k", 3*r.short)
		r.waitHalf(t)
		r.list(l, "", "", 10)
		if _, _, err := l.Inspect(r.ctx, "k"); err != nil {
			r.Errorf("Inspect: %v", err)
		}
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
}

// lister returns nil if the store cannot list.
func (r *rig) lister(d driver.Driver) driver.Lister {
	l, _ := driver.As[driver.Lister](d)
	return l
}

func (r *rig) list(l driver.Lister, prefix, after string, limit int) []driver.Term {
	r.Helper()
	terms, err := l.List(r.ctx, prefix, after, limit)
	if err != nil {
		r.Fatalf("List(%q, %q, %d): %v", prefix, after, limit, err)
	}
	if len(terms) > limit {
		r.Errorf("R10: List gave %d terms, the limit was %d", len(terms), limit)
	}
	for _, t := range terms {
		if !strings.HasPrefix(t.Key, prefix) {
			r.Errorf("R10: List with prefix %q gave %q", prefix, t.Key)
		}
	}
	return terms
}

func keysOf(terms []driver.Term) []string {
	var keys []string
	for _, t := range terms {
		keys = append(keys, t.Key)
	}
	return keys
}
