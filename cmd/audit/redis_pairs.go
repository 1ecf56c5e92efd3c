package audit

import (
	"go/ast"
	"regexp"
	"slices"
)

// Keys of different functions are taken for the same if they are made alike, whatever their parameters are called: so Lock(id) is found to
// belong to Unlock(id). But "lock:"+order and "lock:"+user are made alike, too.

// parameter is one in a key as canon writes it, and not a receiver, whose type stands behind.
var parameter = regexp.MustCompile(`\$([^A-Za-z_]|$)`)

// ofThis marks what need not be done with the key of this lock but with one that is made alike.
func (s *scan) ofThis(l *lock, in *ast.FuncDecl, key keyText, related []touch) []touch {
	if !parameter.MatchString(key.anywhere) {
		return related
	}
	own := slices.ContainsFunc(related, func(t touch) bool {
		return t.in == in && (t.what == touchDelete || t.what == touchScript && (t.script == "" || luaDelete.MatchString(t.script))) && s.ends(l, in, t)
	})
	related = slices.Clone(related)
	for i := range related {
		t := &related[i]
		if t.in == nil || has(forceWords, t.in.Name.Name) || !has(releaseWords, t.in.Name.Name) {
			continue // it is taken for nobody's release anyway
		}
		t.other = t.in != in && !s.paired(in, t.in) && (own || s.pairedElse(l, key, t.in))
	}
	return related
}

// ends says whether a release is the one that a function ends with, and not what it does if something fails before it is done.
func (s *scan) ends(l *lock, in *ast.FuncDecl, t touch) bool {
	if later, _ := s.later(l, t.at); later {
		return true
	}
	for block := range t.at.Enclosing((*ast.BlockStmt)(nil)) {
		return in != nil && block.Node() == ast.Node(in.Body)
	}
	return false
}

// pairedElse says whether what is done with a key belongs to another lock whose key is made alike: one that is taken and released
// by the same function, or is of the same type as the release and this one is not.
func (s *scan) pairedElse(l *lock, key keyText, release *ast.FuncDecl) bool {
	in := s.decl(l.cur)
	for _, o := range s.locks {
		if o == l || o.redis == nil || s.decl(o.cur) == in || s.keyText(o.redis.key).anywhere != key.anywhere {
			continue
		}
		of := s.decl(o.cur)
		if s.paired(of, release) || of != nil && release != nil && recvName(of) == recvName(release) && (in == nil || recvName(in) != recvName(release)) {
			return true
		}
	}
	return false
}

// paired says whether one function calls both, or one of them the other.
func (s *scan) paired(a, b *ast.FuncDecl) bool {
	if a == nil || b == nil {
		return false
	}
	of := s.calledIn(b)
	if of[a] || s.calledIn(a)[b] {
		return true
	}
	for d := range s.calledIn(a) {
		if of[d] {
			return true
		}
	}
	return false
}

// calledIn returns the functions that name a function.
func (s *scan) calledIn(d *ast.FuncDecl) map[*ast.FuncDecl]bool {
	in, ok := s.namedIn[d]
	if !ok {
		in = map[*ast.FuncDecl]bool{}
		for _, u := range s.uses[s.info.Defs[d.Name]] {
			s.steps++
			if by := s.decl(u); by != nil {
				in[by] = true
			}
		}
		s.namedIn[d] = in
	}
	return in
}
