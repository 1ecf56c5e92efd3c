package audit

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	// A function of PostgreSQL after a word of SQL, so that a message that names the function is no statement.
	sqlLock     = regexp.MustCompile(`(?is)\b(?:select|perform|where|values|from|and|case|when|then|do|begin|set|,)\s*.*?\b(pg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?)\s*\(`)
	sqlFunction = regexp.MustCompile(`(?i)\b(pg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?)\s*\(`)
	sqlUnlock   = regexp.MustCompile(`(?is)\b(?:select|perform|where|from|do|begin)\b.*?\bpg_advisory_unlock(?:_all|_shared)?\s*\(([^)]*)`)
	// A statement that does nothing but take a lock for the transaction.
	sqlOnlyXact = regexp.MustCompile(`(?is)^\s*select\s+(?:pg_catalog\.)?pg_(?:try_)?advisory_xact_lock(?:_shared)?\s*\([^;]*\)\s*(?:as\s+\w+\s*)?;?\s*$`)
	sqlHolder   = regexp.MustCompile(`\$(\d+)`)
	// What stands before and after a call whose answer is only given back, or thrown away by PERFORM.
	sqlAsked    = regexp.MustCompile(`(?is)(?:(?:^|;|\bbegin)\s*select|\bperform)\s+(?:pg_catalog\.)?$`)
	sqlAnswered = regexp.MustCompile(`(?is)^\)?\s*(?:as\s+)?\w*\s*(?:;|$)`)
	// What names a function without calling it, as GRANT EXECUTE ON FUNCTION does.
	sqlNamed  = regexp.MustCompile(`(?is)\bfunction\s+(?:pg_catalog\.)?$`)
	sqlDo     = regexp.MustCompile(`(?is)\bdo\s+(?:language\s+\S+\s*)?$`)
	dollarTag = regexp.MustCompile(`^\$(?:[\pL_][\pL\pN_]*)?\$`)
)

// sqlCall is a place in SQL that takes an advisory lock.
type sqlCall struct {
	function string // in lower case
	args     string // as they stand in the text, on one line
	masked   string // as args, without what is quoted
	at       int    // of the function's name
	start    int    // of args
	end      int
}

// sqlLocks returns the places of a text that take an advisory lock; masked is the text without what is no code.
func sqlLocks(text, masked string) []sqlCall {
	var out []sqlCall
	first := sqlLock.FindStringSubmatchIndex(masked)
	if first == nil {
		return nil
	}
	// After a word of SQL the rest is SQL too.
	from := first[2]
	for _, m := range sqlFunction.FindAllStringSubmatchIndex(masked[from:], -1) {
		for i := range m {
			m[i] += from
		}
		if sqlNamed.MatchString(masked[:m[2]]) {
			continue
		}
		n := len(arguments(masked[m[1]:]))
		out = append(out, sqlCall{
			function: strings.ToLower(masked[m[2]:m[3]]), at: m[2], start: m[1], end: m[1] + n,
			args: strings.Join(strings.Fields(text[m[1]:m[1]+n]), " "), masked: masked[m[1] : m[1]+n],
		})
	}
	return out
}

// maskSQL returns SQL of the same length, in which blanks stand for comments and for what is quoted: a statement that only
// mentions a function does not call it. The code of DO stays.
func maskSQL(text string) string {
	out := []byte(text)
	maskCode(out)
	return string(out)
}

func maskCode(text []byte) {
	for i := 0; i < len(text); {
		n := 1
		switch rest := text[i:]; {
		case hasPrefix(rest, "--"):
			n = lineLen(rest)
			blank(rest[:n])
		case hasPrefix(rest, "/*"):
			n = commentLen(rest)
			blank(rest[:n])
		case rest[0] == '\'':
			in, whole := quotedLen(rest, '\'', escapes(text, i))
			n = whole
			maskQuoted(text[:i], rest[1:in])
		case rest[0] == '"':
			in, whole := quotedLen(rest, '"', false)
			n = whole
			blank(rest[1:in])
		case rest[0] == '$' && !wordBefore(text, i):
			if tag := dollarTag.Find(rest); tag != nil {
				in, whole := dollarLen(rest, string(tag))
				n = whole
				maskQuoted(text[:i], rest[len(tag):in])
			}
		}
		i += n
	}
}

// maxDo is how far before a quoted text the word DO is looked for: the whole of what stands before would be too much in a
// text with many quotes.
const maxDo = 256

// maskQuoted masks what stands between quotes, unless it is the code of DO: then only what is quoted in that.
func maskQuoted(before, quoted []byte) {
	if sqlDo.Match(before[max(0, len(before)-maxDo):]) {
		maskCode(quoted)
		return
	}
	blank(quoted)
}

func hasPrefix(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix
}

func blank(b []byte) {
	for i := range b {
		if b[i] != '\n' {
			b[i] = ' '
		}
	}
}

func lineLen(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i
	}
	return len(b)
}

// commentLen is the length of a comment at the start; they nest.
func commentLen(b []byte) int {
	depth := 0
	for i := 0; i < len(b); {
		switch {
		case hasPrefix(b[i:], "/*"):
			depth++
			i += 2
		case hasPrefix(b[i:], "*/"):
			i += 2
			if depth--; depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(b)
}

// quotedLen is the length of what is quoted at the start, without the second quote and with it, which may be missing. A
// doubled quote is one in it.
func quotedLen(b []byte, quote byte, escaped bool) (in, whole int) {
	for i := 1; i < len(b); i++ {
		switch {
		case escaped && b[i] == '\\':
			i++
		case b[i] == quote && i+1 < len(b) && b[i+1] == quote:
			i++
		case b[i] == quote:
			return i, i + 1
		}
	}
	return len(b), len(b)
}

func dollarLen(b []byte, tag string) (in, whole int) {
	if i := bytes.Index(b[len(tag):], []byte(tag)); i >= 0 {
		return i + len(tag), i + 2*len(tag)
	}
	return len(b), len(b)
}

// escapes tells whether the quote at i begins a string with backslashes, as in E'\”.
func escapes(text []byte, i int) bool {
	return i > 0 && (text[i-1] == 'e' || text[i-1] == 'E') && !wordBefore(text, i-1)
}

// wordBefore tells whether a letter, a digit, or what is part of a name stands before i.
func wordBefore(text []byte, i int) bool {
	if i == 0 {
		return false
	}
	c := text[i-1]
	return c == '_' || c == '$' || c >= utf8.RuneSelf && !hasSuffix(text[:i], "…") ||
		'0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func hasSuffix(b []byte, suffix string) bool { return bytes.HasSuffix(b, []byte(suffix)) }
