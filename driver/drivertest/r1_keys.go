package drivertest

import (
	"strings"

	"github.com/holdlock/holdlock/driver"
)

// R1, of names: two keys are the same if their bytes are, and no sign in a key means anything to the store.
var keyCases = []testCase{
	{"R1/KeysAreToldApart", func(r *rig) {
		a, b := r.open(), r.open()
		keys := oddKeys()
		terms := make([]term, len(keys))
		for i, key := range keys {
			terms[i] = r.acquire(a, key, r.long)
		}
		for i, key := range keys {
			if s := r.refused(b, key); s.Token != terms[i].Token && r.traits.Fencing != driver.NoTokens {
				r.Errorf("R1: %q is shown with token %d, granted was %d", key, s.Token, terms[i].Token)
			}
			if s := r.look(b, key); s.Key != key {
				r.Errorf("R10: Inspect of %q shows %q", key, s.Key)
			}
			r.renew(&terms[i], r.long)
		}
		for i, key := range keys {
			r.release(terms[i])
			r.release(r.acquire(b, key, r.long))
		}
	}},
	{"R10/OddKeysAreListed", func(r *rig) {
		d := r.open()
		l := r.lister(d)
		if l == nil {
			return
		}
		for _, key := range oddKeys() {
			t := r.acquire(d, key, r.long)
			got := r.list(l, "", "", 10)
			if len(got) != 1 || got[0].Key != key || got[0].Nonce != t.ref.Nonce {
				r.Errorf("R10: List shows %+v, held is %q", got, key)
			}
			r.release(t)
		}
	}},
}

// oddKeys returns keys that a store might mix up, cut, escape wrongly or take for something else.
func oddKeys() []string {
	long := strings.Repeat("x", 1024)
	return []string{
		"k", "K", " k", "k ", "k  ", "k\t", "k\n", " ",
		"a/b", "a//b", "/a/b", "a/b/", "../a", ".", "..",
		"a:b", "a::b", ":a", "a.b", "a*b", "a?b", "a[b]", "a%b", "a_b", "a#b", "a&b=c", "a,b", "a;b", "a|b", "a$1", "a\\b",
		"{a}b", "{a}", "{}", "{", "}", "a{b}c{d}", "}{",
		`"`, `'`, "`", `a"b`, "a'b", "a'';--", "a\x01b", "a\x7fb", "a\r\nb",
		"é", "e\u0301", // the same to the eye: composed and decomposed
		"ﬁ", "fi", "ß", "ss", "ẞ", "İ", "i", "I", "ı",
		"🔒", "👩‍👩‍👧", "日本語", "\u202eabc", "\ufeffk", "k\u200b", "k\u00a0",
		"0", "00", "1e3", "1000", "-1", "null", "NULL", "true",
		long + "y", long + "z", long, // 1,025 bytes, differing in the last one
		strings.Repeat("é", 512), // 1,024 bytes
	}
}
