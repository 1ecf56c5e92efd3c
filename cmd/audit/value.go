package audit

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"
)

// grade says how well a lock's value tells one holder from another.
type grade int

const (
	weak    grade = iota // the same for several holders, or easily so
	unclear              // it comes from elsewhere
	strong               // random enough
)

// judgeValue judges the value of a lock that is given as an expression.
func (s *scan) judgeValue(l *lock, value ast.Expr, how string) {
	g, why := s.strength(value, nil)
	s.judgeStrength(l, g, why, value.Pos(), how)
}

func (s *scan) judgeStrength(l *lock, g grade, why string, at token.Pos, how string) {
	switch g {
	case strong:
		l.ok(GuessableValue)
	case unclear:
		l.unknown(GuessableValue, "the value comes from elsewhere")
	default:
		s.report(l, GuessableValue, at, "the value of "+called(l, nil)+" is "+why+" ("+how+"): a release cannot tell one holder from the next",
			"use 128 bits of crypto/rand for every attempt")
	}
}

// strength judges a value. It is as strong as its strongest part. key, if it is not nil, is the lock's own.
func (s *scan) strength(e, key ast.Expr) (grade, string) { return s.grade(e, key, 0) }

func (s *scan) grade(e, key ast.Expr, depth int) (grade, string) {
	if e == nil || depth > maxDepth {
		return unclear, ""
	}
	if v := s.constant(e); v != nil {
		return weak, "the constant " + v.String()
	}
	if key != nil {
		if k := s.canon(key, false, 0); k != "" && k == s.canon(e, false, 0) {
			return weak, "the lock's own key"
		}
	}
	switch src := s.source(e).(type) {
	case *ast.BinaryExpr:
		if src.Op == token.ADD {
			return s.strongest(src.X, src.Y, key, depth)
		}
	case *ast.CallExpr:
		return s.gradeCall(src, key, depth)
	case *ast.SliceExpr:
		return s.grade(src.X, key, depth+1)
	}
	return unclear, ""
}

func (s *scan) strongest(x, y, key ast.Expr, depth int) (grade, string) {
	a, why := s.grade(x, key, depth+1)
	b, why2 := s.grade(y, key, depth+1)
	if strings.HasPrefix(why, "the constant") || (b > a) { // the part that varies says more
		why = why2
	}
	return max(a, b), why
}

// random are packages whose results are random identifiers, without major versions.
var random = map[string]bool{
	"github.com/google/uuid": true, "github.com/gofrs/uuid": true, "github.com/satori/go.uuid": true, "github.com/hashicorp/go-uuid": true,
	"github.com/pborman/uuid": true, "github.com/rs/xid": true, "github.com/oklog/ulid": true, "github.com/segmentio/ksuid": true,
	"github.com/lithammer/shortuuid": true, "github.com/matoous/go-nanoid": true, "github.com/jaevor/go-nanoid": true,
}

func (s *scan) gradeCall(call *ast.CallExpr, key ast.Expr, depth int) (grade, string) {
	fn := s.callee(call)
	if fn == nil {
		return unclear, ""
	}
	path, name := library(fn)
	switch {
	case random[path], path == "crypto/rand":
		return strong, ""
	case path == "os" && (name == "Getpid" || name == "Getppid"):
		return weak, "the process id"
	case path == "os" && name == "Hostname":
		return weak, "the name of the host"
	case path == "time" && name == "Now":
		return weak, "the time"
	case (path == "math/rand" || path == "math/rand/v2") && (name == "Intn" || name == "IntN" || name == "Int31n" || name == "Int32N") && len(call.Args) == 1:
		if v := s.constant(call.Args[0]); v != nil {
			if n, ok := constant.Int64Val(v); ok && n <= 1<<32 {
				return weak, "one of " + v.String() + " numbers"
			}
		}
		return unclear, ""
	case path == "time" && strings.HasPrefix(name, "Time."):
		return s.grade(receiver(call), key, depth+1)
	case path == "encoding/hex" || path == "encoding/base64":
		if len(call.Args) == 1 {
			return s.gradeBytes(call.Args[0])
		}
	case path == "fmt" && strings.HasPrefix(name, "Sprint"), path == "strconv", path == "strings" && name == "Join":
		best, why := weak, "a constant"
		for _, a := range call.Args {
			g, w := s.grade(a, key, depth+1)
			if g > best || (g == best && w != "" && !strings.HasPrefix(w, "the constant")) {
				best, why = g, w
			}
		}
		return best, why
	case strings.HasSuffix(name, ".String") && receiver(call) != nil:
		return s.grade(receiver(call), key, depth+1)
	}
	return unclear, ""
}

// gradeBytes knows bytes that crypto/rand has filled.
func (s *scan) gradeBytes(e ast.Expr) (grade, string) {
	x := ast.Unparen(e)
	if sl, ok := x.(*ast.SliceExpr); ok {
		x = sl.X
	}
	v, ok := s.object(x).(*types.Var)
	if !ok {
		return unclear, ""
	}
	for _, u := range s.uses[v] {
		for c := range u.Enclosing((*ast.CallExpr)(nil)) {
			call := c.Node().(*ast.CallExpr)
			fn := s.callee(call)
			if fn == nil {
				continue
			}
			if fn.FullName() == "crypto/rand.Read" {
				return strong, ""
			}
			if fn.FullName() == "io.ReadFull" && len(call.Args) == 2 {
				if r := s.object(call.Args[0]); r != nil && r.Pkg() != nil && r.Pkg().Path() == "crypto/rand" {
					return strong, ""
				}
			}
		}
	}
	return unclear, ""
}
