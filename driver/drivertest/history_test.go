package drivertest

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

func TestCheckHistory(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	tenure := func(key string, token driver.Token, invoked, granted, ended int) Tenure {
		return Tenure{Key: key, Who: "someone", Token: token, Invoked: at(invoked), Granted: at(granted), Ended: at(ended)}
	}
	for _, tc := range []struct {
		name     string
		tenures  []Tenure
		want     []string // what each finding starts with
		explains string
	}{
		{"nothing", nil, nil, ""},
		{"one after the other", []Tenure{tenure("k", 1, 0, 1, 5), tenure("k", 2, 2, 5, 9)}, nil, "asked early, granted at the very end of the first"},
		{"two keys", []Tenure{tenure("k", 5, 0, 1, 9), tenure("l", 4, 2, 3, 9)}, nil, "tokens of two keys cannot be compared"},
		{"overlap", []Tenure{tenure("k", 1, 0, 1, 5), tenure("k", 2, 2, 4, 9)}, []string{"R1"}, ""},
		{"overlap, in the other order", []Tenure{tenure("k", 2, 2, 4, 9), tenure("k", 1, 0, 1, 5)}, []string{"R1"}, ""},
		{
			"overlap with one before the last",
			[]Tenure{tenure("k", 1, 0, 1, 20), tenure("k", 2, 2, 3, 4), tenure("k", 3, 4, 5, 6)},
			[]string{"R1", "R1"},
			"the long one overlaps both",
		},
		{"a grant that came too late", []Tenure{tenure("k", 1, 0, 8, 5), tenure("k", 2, 2, 6, 9)}, nil, "nobody believed in the first"},
		{"one token twice", []Tenure{tenure("k", 7, 0, 1, 2), tenure("k", 7, 3, 4, 5)}, []string{"R3: one token"}, ""},
		{
			"one token twice, heard of too late",
			[]Tenure{tenure("k", 7, 0, 9, 2), tenure("k", 7, 3, 4, 5)},
			[]string{"R3: one token"},
			"a token may have been used before its answer was heard",
		},
		{"a token fell", []Tenure{tenure("k", 8, 0, 1, 2), tenure("k", 7, 3, 4, 5)}, []string{"R3: the token fell"}, ""},
		{
			"a token fell in the middle",
			[]Tenure{tenure("k", 1, 0, 1, 2), tenure("k", 9, 3, 4, 5), tenure("k", 3, 6, 7, 8), tenure("k", 10, 9, 10, 11)},
			[]string{"R3: the token fell"},
			"",
		},
		{
			"asked before the higher one was granted",
			[]Tenure{tenure("k", 8, 0, 5, 5), tenure("k", 7, 4, 6, 9)},
			nil, "the lower one may have been granted first and heard of later",
		},
		{"no tokens", []Tenure{tenure("k", 0, 0, 1, 2), tenure("k", 0, 3, 4, 5)}, nil, "the store issues none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := CheckHistory(tc.tenures)
			ok := len(got) == len(tc.want)
			for i := range got {
				ok = ok && strings.HasPrefix(got[i], tc.want[i])
			}
			if !ok {
				t.Errorf("got %q, want %q (%s)", got, tc.want, tc.explains)
			}
		})
	}
}

// The history finds by itself, without knowing where to look, what is worst.
func TestHistoryFindsBadStores(t *testing.T) {
	bad := map[string]bool{
		"excludes within the process only":          true,
		"grants what is held":                       true,
		"ends terms early":                          true,
		"releases by key alone":                     true,
		"does not re-arm what is already mine":      true,
		"has one token":                             true,
		"starts tokens from 1 in each process":      true,
		"lets tokens fall":                          true,
		"takes the token from the clock in seconds": true,
	}
	for _, m := range Mutants() {
		if !bad[m.Name] {
			continue
		}
		delete(bad, m.Name)
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) { // some are rare
				rec := &recorder{}
				memory(m.Wrap).run(t, historyCase(seed), nil, rec)
				if len(rec.failures) > 0 {
					t.Log(rec.failures[0])
					return
				}
			}
			t.Error("not found")
		})
	}
	for name := range bad {
		t.Errorf("there is no mutant %q", name)
	}
}

func TestHistoryOfAGoodStore(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		RunHistory(t, memory(nil), 100+seed)
	}
}
