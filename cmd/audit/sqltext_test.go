package audit

import "testing"

// TestMaskSQL checks what is left of SQL: nothing of comments and of what is quoted, but the code of DO.
func TestMaskSQL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{`a 'b''c' d`, `a '    ' d`},
		{`a E'b\'c' d`, `a E'    ' d`},
		{`a 'b\' d`, `a '  ' d`},
		{`some'b\' d`, `some'  ' d`}, // the last letter of a word is no E
		{`a "b""c" d`, `a "    " d`},
		{"a -- b 'c\nd", "a        \nd"},
		{`a /* b /* c */ d */ e`, `a                   e`},
		{`a $$ b ' $$ c`, `a $$     $$ c`},
		{`a $x$ b $$ c $x$ d`, `a $x$        $x$ d`},
		{`a$$b $1 $2`, `a$$b $1 $2`}, // names and parameters
		{`DO $$ a 'b' $$ c`, `DO $$ a ' ' $$ c`},
		{`do language plpgsql $x$ a -- b $x$ c`, `do language plpgsql $x$ a      $x$ c`},
		{`DO 'a ''b'' c' d`, `DO 'a ''b'' c' d`},
		{`undo $$ a $$ b`, `undo $$   $$ b`},
		{`a 'b`, `a ' `},
		{`a $$b`, `a $$ `},
		{`a '`, `a '`},
		{`a /* b`, `a     `},
		{`a /*/ b`, `a      `},
		{`$`, `$`},
		{``, ``},
	} {
		if got := maskSQL(c.in); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzMaskSQL(f *testing.F) {
	f.Add(`DO $$ a 'b' $$ E'\' /* `)
	f.Fuzz(func(t *testing.T, in string) {
		if got := maskSQL(in); len(got) != len(in) {
			t.Errorf("%q: %q has another length", in, got)
		}
	})
}
