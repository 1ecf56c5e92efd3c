package audit

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// lock is a Lock while the package is read.
type lock struct {
	Lock
	at       token.Pos
	cur      inspector.Cursor // the call that declares or takes it
	base     map[Fault]Check  // what is known without looking at uses
	redis    *redisSet        // RedisSet
	shadow   bool             // Holdlock: no loss ends its work, as it was declared
	session  ast.Expr         // Etcd: what it is made on
	on       runsOn           // PgAdvisory
	gives    bool             // PgAdvisory: its own statement gives it back, or may
	released bool             // a release was seen, and its context judged
}

// verdict puts together what is known of one question.
func (l *lock) verdict(f Fault) Check {
	for _, have := range l.Findings {
		if have.Fault == f {
			return Check{Verdict: Faulty}
		}
	}
	if c, ok := l.base[f]; ok {
		return c
	}
	return Check{Verdict: None}
}

func (l *lock) unknown(f Fault, why string) {
	if l != nil {
		l.base[f] = Check{Unknown, why}
	}
}

func (l *lock) ok(f Fault) {
	if l != nil {
		l.base[f] = Check{Verdict: OK}
	}
}

// scan is the work on one package.
type scan struct {
	pass    *analysis.Pass
	info    *types.Info
	root    inspector.Cursor
	files   []inspector.Cursor // those that are read
	off     Fault
	silent  map[silenced]bool
	locks   []*lock
	byCall  map[*ast.CallExpr]*lock
	orphans []Finding
	touched []touch
	unlocks []unlock

	unlockText bool // the text of an unlock is there that no call in sight uses

	wrappers map[*types.Func][]wrapper // those whose calls are still to be judged
	wrapped  map[wrapper]bool          // all

	defs      map[types.Object][]def              // what is assigned to a variable, a field or the result of a function
	uses      map[types.Object][]inspector.Cursor // where an object is named
	params    map[types.Object]bool
	receivers map[types.Object]bool
	initial   map[types.Object]bool // it has a value before anything is assigned: a variable without one, a result, a receiver
	aliased   map[types.Object]bool // its address is taken: it can change out of sight

	embedded map[types.Object]string // what go:embed puts into a string
	decls    map[types.Object]*ast.FuncDecl
	twins    map[types.Object]bool                    // contexts that are parameters beside other contexts
	owners   map[types.Object]owner                   // of parameters of declared functions
	lentAt   map[types.Object][]inspector.Cursor      // where an address is taken
	setters  map[string]bool                          // types that set keys of Redis if they are absent; nil until they were looked for
	callers  map[*types.Func]bool                     // methods, and whether they call what a client of Redis may have
	namedIn  map[*ast.FuncDecl]map[*ast.FuncDecl]bool // functions, and those that name them, as far as that was asked
	one      *bool                                    // a pool of the package is limited to one connection; nil until it was looked for

	left  int  // steps that may still be made for this place
	spent bool // they did not suffice
	steps int  // all that were made
}

// def is one assignment: result number index of rhs, or rhs itself if index is below 0. A nil rhs is a value that is not
// in the code, as in a range clause.
type def struct {
	rhs   ast.Expr
	index int
	in    inspector.Cursor
}

func newScan(pass *analysis.Pass, in *inspector.Inspector, off Fault) *scan {
	s := &scan{
		pass: pass, info: pass.TypesInfo, root: in.Root(), off: off,
		silent: map[silenced]bool{}, byCall: map[*ast.CallExpr]*lock{},
		defs: map[types.Object][]def{}, uses: map[types.Object][]inspector.Cursor{},
		params: map[types.Object]bool{}, receivers: map[types.Object]bool{}, initial: map[types.Object]bool{}, aliased: map[types.Object]bool{},
		embedded: map[types.Object]string{}, decls: map[types.Object]*ast.FuncDecl{}, callers: map[*types.Func]bool{}, twins: map[types.Object]bool{}, owners: map[types.Object]owner{},
		lentAt: map[types.Object][]inspector.Cursor{}, namedIn: map[*ast.FuncDecl]map[*ast.FuncDecl]bool{}, wrappers: map[*types.Func][]wrapper{}, wrapped: map[wrapper]bool{},
	}
	s.index()
	return s
}

// index notes all assignments and uses of the package, also in files that are not read.
func (s *scan) index() {
	nodes := []ast.Node{
		(*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil), (*ast.RangeStmt)(nil), (*ast.IncDecStmt)(nil), (*ast.FuncType)(nil),
		(*ast.Ident)(nil), (*ast.UnaryExpr)(nil), (*ast.CompositeLit)(nil), (*ast.FuncDecl)(nil),
	}
	for c := range s.root.Preorder(nodes...) {
		switch n := c.Node().(type) {
		case *ast.AssignStmt:
			if n.Tok != token.ASSIGN && n.Tok != token.DEFINE {
				s.define(n.Lhs[0], nil, -1, c)
				break
			}
			s.assign(n.Lhs, n.Rhs, c)
		case *ast.ValueSpec:
			s.embed(n, c)
			lhs := make([]ast.Expr, len(n.Names))
			for i, name := range n.Names {
				lhs[i] = name
			}
			if len(n.Values) > 0 {
				s.assign(lhs, n.Values, c)
			} else {
				s.begin(n.Names)
			}
		case *ast.RangeStmt:
			s.define(n.Key, nil, -1, c)
			s.define(n.Value, nil, -1, c)
		case *ast.IncDecStmt:
			s.define(n.X, nil, -1, c)
		case *ast.FuncType:
			s.indexParams(n, c)
			if n.Results != nil {
				for _, f := range n.Results.List {
					s.begin(f.Names)
				}
			}
		case *ast.Ident:
			if obj := s.info.Uses[n]; obj != nil {
				s.uses[obj] = append(s.uses[obj], c)
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				if obj := s.object(n.X); obj != nil {
					s.aliased[obj] = true
					s.lentAt[obj] = append(s.lentAt[obj], c)
				}
			}
		case *ast.CompositeLit:
			s.fields(n, c)
		case *ast.FuncDecl:
			if obj := s.info.Defs[n.Name]; obj != nil {
				s.decls[obj] = n
			}
			if n.Recv != nil {
				for _, f := range n.Recv.List {
					s.begin(f.Names)
					for _, name := range f.Names {
						if obj := s.info.Defs[name]; obj != nil {
							s.receivers[obj] = true
						}
					}
				}
			}
			s.results(n, c)
		}
	}
}

// owner is the declared function that a parameter belongs to, and the parameter's place.
type owner struct {
	fn  *types.Func
	arg int
}

func (s *scan) indexParams(n *ast.FuncType, c inspector.Cursor) {
	var fn *types.Func
	if d, ok := c.Parent().Node().(*ast.FuncDecl); ok {
		fn, _ = s.info.Defs[d.Name].(*types.Func)
	}
	var contexts []types.Object
	i := 0
	for _, f := range n.Params.List {
		for _, name := range f.Names {
			if obj := s.info.Defs[name]; obj != nil {
				s.params[obj] = true
				if fn != nil {
					s.owners[obj] = owner{fn, i}
				}
				if isContext(obj.Type()) {
					contexts = append(contexts, obj)
				}
			}
			i++
		}
	}
	for _, obj := range contexts {
		s.twins[obj] = len(contexts) > 1
	}
}

// begin notes variables that have a value before anything is assigned to them.
func (s *scan) begin(names []*ast.Ident) {
	for _, name := range names {
		if obj := s.info.Defs[name]; obj != nil {
			s.initial[obj] = true
		}
	}
}

func (s *scan) assign(lhs, rhs []ast.Expr, c inspector.Cursor) {
	for i, l := range lhs {
		if len(rhs) == len(lhs) {
			s.define(l, rhs[i], -1, c)
		} else {
			s.define(l, rhs[0], i, c)
		}
	}
}

func (s *scan) define(lhs, rhs ast.Expr, index int, c inspector.Cursor) {
	if lhs == nil {
		return
	}
	if obj := s.object(lhs); obj != nil {
		s.defs[obj] = append(s.defs[obj], def{rhs, index, c})
	}
}

// fields notes what a composite literal puts into the fields of a struct.
func (s *scan) fields(n *ast.CompositeLit, c inspector.Cursor) {
	t := s.info.TypeOf(n)
	if t == nil {
		return
	}
	st, ok := types.Unalias(t).Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, e := range n.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok {
				s.define(id, kv.Value, -1, c)
			}
		} else if i < st.NumFields() {
			s.defs[st.Field(i)] = append(s.defs[st.Field(i)], def{e, -1, c})
		}
	}
}

// results notes what a function returns first, so that a lock can be followed out of a constructor.
func (s *scan) results(n *ast.FuncDecl, c inspector.Cursor) {
	obj := s.info.Defs[n.Name]
	if obj == nil || n.Body == nil || n.Type.Results.NumFields() == 0 {
		return
	}
	for r := range c.Preorder((*ast.ReturnStmt)(nil)) {
		ret := r.Node().(*ast.ReturnStmt)
		if len(ret.Results) > 0 && s.enclosing(r, true) == ast.Node(n) {
			s.defs[obj] = append(s.defs[obj], def{ret.Results[0], -1, r})
		}
	}
}

// object returns the variable, field or function that an expression names, or nil.
func (s *scan) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if e.Name == "_" {
			return nil
		}
		if obj := s.info.Defs[e]; obj != nil {
			return obj
		}
		return s.info.Uses[e]
	case *ast.SelectorExpr:
		if sel, ok := s.info.Selections[e]; ok {
			return sel.Obj()
		}
		return s.info.Uses[e.Sel]
	case *ast.StarExpr:
		return s.object(e.X)
	}
	return nil
}

// enclosing returns the innermost function around c: a *ast.FuncDecl, or with lits also a *ast.FuncLit; nil at package
// level.
func (s *scan) enclosing(c inspector.Cursor, lits bool) ast.Node {
	for e := range c.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		if _, lit := e.Node().(*ast.FuncLit); (lit && !lits) || e == c {
			continue
		}
		return e.Node()
	}
	return nil
}

// decl returns the declared function around c, or nil.
func (s *scan) decl(c inspector.Cursor) *ast.FuncDecl {
	d, _ := s.enclosing(c, false).(*ast.FuncDecl)
	return d
}

// funcName is the name of a declared function for people.
func funcName(d *ast.FuncDecl) string {
	if d == nil {
		return ""
	}
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	t := types.ExprString(d.Recv.List[0].Type)
	if t[0] == '*' {
		t = "(" + t + ")"
	}
	return t + "." + d.Name.Name
}

// callee returns the function or method that is called, or nil. A method of a generic type is its origin. A call whose
// arguments do not fit is nobody's: the code is broken, or one call gives all arguments of another.
func (s *scan) callee(call *ast.CallExpr) *types.Func {
	f, _ := typeutil.Callee(s.info, call).(*types.Func)
	if f == nil {
		return nil
	}
	f = f.Origin()
	n, sig := len(call.Args), f.Signature()
	switch {
	case sig.Variadic() && n >= sig.Params().Len()-1, n == sig.Params().Len():
		return f
	}
	return nil
}

// calls yields all calls in the files that are read, with what is called. Each is a place of its own.
func (s *scan) calls(yield func(inspector.Cursor, *ast.CallExpr, *types.Func) bool) {
	for _, f := range s.files {
		for c := range f.Preorder((*ast.CallExpr)(nil)) {
			call := c.Node().(*ast.CallExpr)
			fn := s.callee(call)
			if fn == nil {
				continue
			}
			s.site()
			before := len(s.locks)
			if !yield(c, call, fn) {
				return
			}
			s.doubt(s.locks[before:]...)
		}
	}
}

// receiver is the expression before the method's name, or nil.
func receiver(call *ast.CallExpr) ast.Expr {
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return sel.X
	}
	return nil
}

// add makes an entry of the inventory.
func (s *scan) add(c inspector.Cursor, kind Kind, api string, name Name, ttl TTL) *lock {
	at := c.Node().Pos()
	if call, ok := c.Node().(*ast.CallExpr); ok {
		if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
			at = sel.Sel.Pos() // a chain of calls starts on another line
		}
	}
	l := &lock{at: at, cur: c, base: map[Fault]Check{}}
	l.Lock = Lock{
		Pos: s.pass.Fset.Position(at), Package: s.pass.Pkg.Path(), Func: funcName(s.decl(c)),
		Kind: kind, API: api, Name: name, TTL: ttl,
	}
	s.locks = append(s.locks, l)
	if call, ok := c.Node().(*ast.CallExpr); ok {
		s.byCall[call] = l
	}
	return l
}
