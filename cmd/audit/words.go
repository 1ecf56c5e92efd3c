package audit

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// lockWords are what people call locks. They are compared with whole words, so that a block, a clock or an account's
// lockout is none.
var lockWords = map[string]bool{
	"lock": true, "locks": true, "locker": true, "trylock": true, "mutex": true, "mutexes": true, "mtx": true, "lease": true,
	"leader": true, "leadership": true, "redlock": true, "distlock": true, "dlock": true, "rlock": true, "semaphore": true,
	"singleton": true, "lockkey": true, "lockname": true, "lockid": true, "redislock": true,
	"rueidislock": true, "valkeylock": true,
}

// takeWords are what functions and scripts that take locks are called besides, and gotWords what their results are. They
// would say too little elsewhere: an account that is locked, a level that is unlocked.
var (
	takeWords = map[string]bool{"acquire": true, "relock": true}
	gotWords  = map[string]bool{"locked": true, "acquired": true}
)

// takeCalls are what methods that take a lock are called besides.
var takeCalls = map[string]bool{"obtain": true, "campaign": true, "trylock": true}

// plainWords stand beside those words in a name that says no more than that something is locked. Any other one can be what
// the name is about: an account that is locked for good, a name that is acquired for ever.
var plainWords = map[string]bool{
	"try": true, "get": true, "got": true, "take": true, "with": true, "do": true, "new": true, "set": true, "create": true, "make": true,
	"obtain": true, "hold": true, "run": true, "wait": true, "start": true, "renew": true, "refresh": true, "extend": true, "check": true,
	"for": true, "and": true, "or": true, "by": true, "if": true, "in": true, "on": true, "the": true, "a": true, "is": true, "my": true, "under": true, "use": true,
	"redis": true, "rdb": true, "redigo": true, "rueidis": true, "valkey": true, "distributed": true, "dist": true, "global": true, "simple": true, "naive": true, "exclusive": true, "shared": true,
	"read": true, "write": true, "r": true, "w": true, "nx": true, "ex": true, "key": true, "name": true, "value": true, "token": true, "id": true,
	"ctx": true, "context": true, "timeout": true, "ttl": true, "expire": true, "expiry": true, "expiration": true, "retry": true, "once": true,
	"blocking": true, "non": true, "no": true, "spin": true, "must": true, "async": true, "internal": true, "impl": true, "func": true, "fn": true,
	"script": true, "lua": true, "src": true, "text": true, "sha": true, "cmd": true, "election": true, "elect": true, "forever": true,
}

// A sign says how sure the names around a key are that it is a lock.
type sign int

const (
	noSign    sign = iota
	someSign       // a name says that something is locked or acquired, and what
	clearSign      // a name that says lock and no more
)

// signOf looks at the name of a function or variable.
func signOf(name string) sign {
	found := false
	for _, w := range words(name) {
		switch {
		case lockWords[w] || takeWords[w]:
			found = true
		case !plainWords[w]:
			if has(lockWords, name) || has(takeWords, name) {
				return someSign
			}
			return noSign
		}
	}
	if found {
		return clearSign
	}
	return noSign
}

// around looks at what the code around a place is called: the function, its receiver, and the package. The name of a type
// or of a package that has such a word is about locks.
func (s *scan) around(d *ast.FuncDecl) sign {
	if pkg := s.pass.Pkg.Name(); has(lockWords, pkg) || has(takeWords, pkg) {
		return clearSign
	}
	if d == nil {
		return noSign
	}
	if recv := recvName(d); has(lockWords, recv) || has(takeWords, recv) {
		return clearSign
	}
	return signOf(d.Name.Name)
}

// releaseWords are what people call giving a lock back.
var releaseWords = map[string]bool{
	"unlock": true, "release": true, "free": true, "giveback": true, "resign": true, "unlease": true, "runlock": true, "relinquish": true,
}

// forceWords are what people call taking a lock away from whoever has it, which is not the holder's release.
var forceWords = map[string]bool{
	"force": true, "forced": true, "break": true, "clear": true, "reset": true, "purge": true, "cleanup": true, "flush": true, "admin": true,
	"evict": true, "steal": true, "override": true, "expired": true, "stale": true,
}

// words splits a text into lower-case words, at everything that is no letter and at the humps of camelCase.
func words(text string) []string {
	var out []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			out = append(out, strings.ToLower(string(word)))
			word = nil
		}
	}
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r):
			end()
			continue
		case unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]),
			unicode.IsUpper(r) && i+1 < len(runes) && unicode.IsLower(runes[i+1]):
			end()
		}
		word = append(word, r)
	}
	end()
	return out
}

func has(set map[string]bool, texts ...string) bool {
	for _, t := range texts {
		for _, w := range words(t) {
			if set[w] {
				return true
			}
		}
	}
	return false
}

// lockState matches what says how a lock is, and is none.
var lockState = regexp.MustCompile(`(?i)locks?[_-]?(?:state|status|reason|info)(?:$|[^a-z_-])`)

// hasLock tells whether the names and texts of a key say lock.
func hasLock(texts []string) bool {
	for _, t := range texts {
		if has(lockWords, lockState.ReplaceAllString(t, "")) {
			return true
		}
	}
	return false
}

// madeOf are an expression, what it comes from, and what the functions return that make it in one line, as those that make keys do.
func (s *scan) madeOf(e ast.Expr) []ast.Expr {
	out := []ast.Expr{e}
	if src := s.source(e); src != e {
		out = append(out, src)
	}
	for i := 0; i < len(out) && len(out) < maxDepth; i++ {
		ast.Inspect(out[i], func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(out) < maxDepth {
				if r := s.oneLine(call); r != nil && !slices.Contains(out, r) {
					out = append(out, r)
				}
			}
			return true
		})
	}
	return out
}

// oneLine returns what a call of a function of this package gives that does nothing but return it, or nil.
func (s *scan) oneLine(call *ast.CallExpr) ast.Expr {
	fn := s.callee(call)
	if fn == nil {
		return nil
	}
	d := s.decls[fn]
	if d == nil || d.Body == nil || len(d.Body.List) != 1 {
		return nil
	}
	ret, ok := d.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(ret.Results) != 1 {
		return nil
	}
	return ret.Results[0]
}

// identifiers are the names and constant texts in an expression, and in what it comes from.
func (s *scan) identifiers(e ast.Expr) []string {
	var out []string
	for _, x := range s.madeOf(e) {
		ast.Inspect(x, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				out = append(out, n.Name)
				if c, ok := s.object(n).(*types.Const); ok {
					out = append(out, c.Val().String())
				}
			case *ast.BasicLit:
				out = append(out, n.Value)
			}
			return true
		})
	}
	return out
}
