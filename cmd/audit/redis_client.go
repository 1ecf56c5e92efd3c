package audit

import (
	"go/ast"
	"go/types"
	"strings"
)

// isRedis tells whether a method is one of a client of Redis: one that is known, or a type that also sets a key if it is
// absent. Faulty is a type of this program that does nothing of the kind; what others and interfaces do is Unknown.
func (s *scan) isRedis(call *ast.CallExpr, fn *types.Func) Verdict {
	path, name := library(fn)
	if _, ok := clients[path]; ok || strings.HasSuffix(path, "/internal/cmds") || strings.HasPrefix(path, "github.com/redis/") {
		return OK
	}
	for _, t := range []types.Type{s.info.TypeOf(receiver(call)), fn.Signature().Recv().Type()} {
		if t == nil {
			continue
		}
		for _, other := range []string{"SetNX", "SetNx", "SetArgs", "Eval", "EvalSha"} {
			if obj, _, _ := types.LookupFieldOrMethod(t, true, fn.Pkg(), other); obj != nil {
				return OK
			}
		}
	}
	if s.setsToo(fn) {
		return OK
	}
	if fn.Pkg() == s.pass.Pkg && !types.IsInterface(fn.Signature().Recv().Type()) && !s.usesRedis(fn) {
		return Faulty
	}
	if strings.HasPrefix(name, "Script.") { // the client is an argument
		return OK
	}
	return Unknown
}

// setsToo tells whether the type of a method sets keys if they are absent in another of its methods.
func (s *scan) setsToo(fn *types.Func) bool {
	if s.setters == nil {
		s.setters = map[string]bool{}
		for _, l := range s.locks {
			if d := s.decl(l.cur); l.Kind == RedisSet && d != nil {
				s.setters[recvName(d)] = true
			}
		}
	}
	recv := typeName(fn.Signature().Recv().Type())
	return fn.Pkg() == s.pass.Pkg && recv != "" && s.setters[recv]
}

// usesRedis tells whether a method of this package calls something that a client of Redis may have.
func (s *scan) usesRedis(fn *types.Func) bool {
	if known, ok := s.callers[fn]; ok {
		return known
	}
	d := s.declOf(fn)
	found := d == nil || d.Body == nil
	if !found {
		ast.Inspect(d.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && !found {
				if f := s.callee(call); f != nil && f != fn {
					path, _ := library(f)
					kind, known := touchNames[f.Name()]
					found = strings.Contains(path, "redis") || strings.Contains(path, "valkey") || known && kind == touchDelete
				}
			}
			return !found
		})
	}
	s.callers[fn] = found
	return found
}
