package cli

import "testing"

// What break advises is about the store that was given, and shows no secret.
func TestBreakRepeatsTheStore(t *testing.T) {
	for _, c := range []struct {
		store     []string
		namespace string
		want      string
	}{
		{nil, "", ""},
		{[]string{"redis://h:1/2?plain_keys=true"}, "", " --store 'redis://h:1/2?plain_keys=true'"},
		{[]string{"redis://a redis://b"}, "ns", " --store redis://a --store redis://b --namespace ns"},
		{[]string{"redis://:sesame@h"}, "", " --store URL"},
		{[]string{"postgres://h/db?password=sesame"}, "n's", ` --store URL --namespace 'n'\''s'`},
		{[]string{"sqlite:/var/lib/x.db"}, "", " --store sqlite:/var/lib/x.db"},
	} {
		if got := (&globals{Store: c.store, Namespace: c.namespace}).again(); got != c.want {
			t.Errorf("%q in %q: %q, want %q", c.store, c.namespace, got, c.want)
		}
	}
}

func TestLockWordCanBePasted(t *testing.T) {
	for _, c := range []struct{ name, key, want string }{
		{"nightly", "", "nightly"},
		{"charge-card", "42", "charge-card/42"},
		{"a'b", "", `'a'\''b'`},
		{"a b", "$HOME*", `'a b/$HOME*'`},
		{`a"b`, "", `'a"b'`},
		{"a\nb", "", `"a\nb"`}, // not what a shell reads, but no terminal acts on it
	} {
		if got := lockWord(c.name, c.key); got != c.want {
			t.Errorf("lockWord(%q, %q) = %s, want %s", c.name, c.key, got, c.want)
		}
	}
}
