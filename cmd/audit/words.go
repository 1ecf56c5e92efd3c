package audit

import (
	"go/ast"
	"go/types"
	"strings"
	"unicode"
)

// lockWords are what people call locks. They are compared with whole words, so that a block, a clock or an account's
// lockout is none.
var lockWords = map[string]bool{
	"lock": true, "locks": true, "locker": true, "trylock": true, "mutex": true, "mutexes": true, "mtx": true, "lease": true,
	"leader": true, "leadership": true, "redlock": true, "distlock": true, "dlock": true, "rlock": true, "semaphore": true,
	"singleton": true, "lockkey": true, "lockname": true, "lockid": true, "redislock": true,
}

// takeWords are what functions and scripts that take locks are called besides, and gotWords what their results are. They
// would say too little elsewhere: an account that is locked, a level that is unlocked.
var (
	takeWords = map[string]bool{"acquire": true, "relock": true}
	gotWords  = map[string]bool{"locked": true, "acquired": true}
)

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

// names are what the code around an expression is called: the function, its receiver, and the package.
func (s *scan) names(d *ast.FuncDecl) []string {
	out := []string{s.pass.Pkg.Name()}
	if d != nil {
		out = append(out, funcName(d))
	}
	return out
}

// identifiers are the names and constant texts in an expression, and in what it comes from.
func (s *scan) identifiers(e ast.Expr) []string {
	var out []string
	for _, x := range []ast.Expr{e, s.source(e)} {
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
