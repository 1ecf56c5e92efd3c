package audit

import (
	"go/ast"
	"strings"
)

// random are the functions that make identifiers which nobody else gets: random ones, and those that count up besides. By
// packages, without major versions. What else these packages have reads identifiers, or computes them from what it gets.
var random = map[string]map[string]bool{
	"github.com/google/uuid":         set("New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"),
	"github.com/gofrs/uuid":          set("NewV1", "NewV4", "NewV6", "NewV7"),
	"github.com/satori/go.uuid":      set("NewV1", "NewV4"),
	"github.com/hashicorp/go-uuid":   set("GenerateUUID", "GenerateRandomBytes"),
	"github.com/pborman/uuid":        set("New", "NewRandom", "NewUUID"),
	"github.com/rs/xid":              set("New", "NewWithTime"),
	"github.com/oklog/ulid":          set("Make"),
	"github.com/segmentio/ksuid":     set("New", "NewRandom", "NewRandomWithTime"),
	"github.com/lithammer/shortuuid": set("New", "NewWithEncoder", "NewWithAlphabet"),
	"github.com/matoous/go-nanoid":   set("New", "Must", "Generate", "MustGenerate", "ID", "Nanoid"),
}

// computed are those of their functions that make the same identifier of the same arguments.
var computed = set("NewSHA1", "NewMD5", "NewV3", "NewV5", "NewWithNamespace", "Parse", "ParseBytes", "ParseStrict", "MustParse", "MustParseStrict",
	"ParseUUID", "FromString", "FromStringOrNil", "FromBytes", "FromBytesOrNil", "Must", "FormatUUID")

// shown are the methods that give an identifier as text or bytes.
var shown = set("String", "URN", "Bytes", "Encode", "EncodeToString")

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// constantID tells whether a variable of a package for identifiers is one that does not change.
func constantID(path, name string) bool {
	switch {
	case random[path] == nil:
		return false
	case name == "Nil", name == "NIL", name == "Max", name == "Zero":
		return true
	}
	return strings.HasPrefix(strings.ToLower(name), "namespace")
}

// gradeID grades what a function of a package for identifiers returns.
func (s *scan) gradeID(call *ast.CallExpr, path, name string, key ast.Expr, depth int) (grade, parts) {
	_, method, isMethod := strings.Cut(name, ".")
	if !isMethod {
		method = name
	}
	switch {
	case isMethod && shown[method] && len(call.Args) == 0:
		return s.grade(receiver(call), key, depth+1)
	case random[path][method]:
		return strong, nil
	case !isMethod && computed[method] && len(call.Args) > 0:
		return s.strongest(call.Args, key, depth)
	}
	return unclear, nil
}
