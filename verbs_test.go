package holdlock_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Every exported function, and every exported method of what users hold, has an example with checked output.
func TestEveryVerbHasAnExample(t *testing.T) {
	t.Parallel()
	exempt := map[string]string{
		"Lock_Name": "a getter", "Lock_Key": "a getter", "Lock_Wait": "a getter", "Lease_Name": "a getter", "Lease_Key": "a getter",
		"Lease_Err": "shown by ExampleLease_Done", "Lock_InTransaction": "for packages such as pghold", "Lock_Claimable": "for packages such as once",
		"Lease_Ref": "a secret that programs have no use for",
	}
	code, tests := parseDir(t)
	examples := map[string]bool{}
	for _, e := range doc.Examples(tests...) {
		if e.Output == "" {
			t.Errorf("Example%s has no output to check", e.Name)
		}
		examples[e.Name] = true
	}
	verbs := map[string]bool{}
	for _, f := range code {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.IsExported() {
				verbs[verb(fn)] = true
			}
		}
	}
	delete(verbs, "")
	if len(verbs) < 15 {
		t.Errorf("only %d verbs found", len(verbs))
	}
	for v := range verbs {
		if !examples[v] && exempt[v] == "" {
			t.Errorf("there is no Example%s", v)
		}
	}
	for v := range exempt {
		if !verbs[v] || examples[v] {
			t.Errorf("%s is exempt without need", v)
		}
	}
}

// verb returns what an example of fn is called after "Example", or "" if users do not call it.
func verb(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	if ptr, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
		switch recv := ptr.X.(*ast.Ident).Name; recv {
		case "Client", "Lock", "Lease":
			return recv + "_" + fn.Name.Name
		}
	}
	return ""
}

func parseDir(t *testing.T) (code, tests []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name(), "_test.go") {
			tests = append(tests, f)
		} else {
			code = append(code, f)
		}
	}
	return code, tests
}
