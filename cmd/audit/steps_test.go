package audit

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/go/packages"
)

// heavy are the ways in which values branch that are followed: each line of code leads to the ones before it, several times.
// @N is the number of the line, @P of the one before it.
var heavy = []struct{ name, start, line, end string }{
	{
		"SQL in branches", `q := "SELECT id FROM jobs WHERE true"`, `if f["a@N"] { q = q + " AND a@N" }`,
		`_, _ = tx.QueryContext(ctx, q+" AND pg_try_advisory_xact_lock(id) LIMIT 1")`,
	},
	{
		"SQL with arguments", "q, args := \"SELECT id FROM jobs WHERE true\", []any{}",
		`if f["a@N"] { args = append(args, @N); q = fmt.Sprintf("%s AND a@N = $%d", q, len(args)) }`,
		`_, _ = tx.QueryContext(ctx, q+" AND pg_try_advisory_xact_lock(id) LIMIT 1", args...)`,
	},
	{
		"SQL in a loop", `q := "SELECT id FROM jobs WHERE true"`, `for range f { q += " AND a@N"; q = q + q }`,
		`_, _ = tx.QueryContext(ctx, fmt.Sprintf("%s AND pg_try_advisory_xact_lock(id)", q))`,
	},
	{
		"SQL doubled", `q0 := "true"`, `q@N := q@P + " AND " + q@P + os.Args[0] + q@P`,
		`_, _ = tx.QueryContext(ctx, q@N+" AND pg_try_advisory_xact_lock(id)")`,
	},
	{
		"keys", `k0 := os.Args[0]`, `k@N := strings.Join(parts(k@P, k@P, k@P, k@P, k@P, k@P, k@P, k@P), "")`,
		`locked, _ := rdb.SetNX(ctx, "lock:"+k@N, k@N, time.Minute).Result(); defer rdb.Del(ctx, "lock:"+k@N); _ = locked`,
	},
	{
		"values", `v0 := os.Args[0]`, `v@N := fmt.Sprint(v@P, v@P, v@P, v@P, v@P, v@P, v@P, v@P, v@P)`,
		`locked, _ := rdb.SetNX(ctx, "lock:x", v@N, time.Minute).Result(); defer rdb.Eval(ctx, compare, []string{"lock:x"}, v@N); _ = locked`,
	},
	{
		"contexts", `a, b := ctx, ctx`, `if f["a@N"] { a = context.WithValue(b, key{}, @N); b = context.WithValue(a, key{}, @N) }`,
		`locked, _ := rdb.SetNX(ctx, "lock:x", os.Args[0], time.Minute).Result(); defer rdb.Del(a, "lock:x"); _ = locked`,
	},
}

// heavyCode is one function with n lines of a kind.
func heavyCode(kind, n int) string {
	h := heavy[kind]
	var b strings.Builder
	fmt.Fprintf(&b, "func f%d(ctx context.Context, tx *sql.Tx, rdb *redis.Client, f map[string]bool) {\n%s\n", kind, h.start)
	number := func(text string, i int) string {
		return strings.NewReplacer("@N", strconv.Itoa(i), "@P", strconv.Itoa(i-1)).Replace(text) + "\n"
	}
	for i := 1; i <= n; i++ {
		b.WriteString(number(h.line, i))
	}
	b.WriteString(number(h.end, n) + "}\n")
	return b.String()
}

const heavyHead = `package a

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var _, _ = fmt.Sprint, strings.Join
var _ = os.Args
var _ = time.Minute
var _ *redis.Client
var _ *sql.Tx

type key struct{}

const compare = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"

func parts(s ...string) []string { return s }

`

// auditHeavy audits generated code, which has to be over long before the deadline.
func auditHeavy(t *testing.T, code string) *Inventory {
	t.Helper()
	p := &packages.Package{PkgPath: "example.com/a", GoFiles: []string{"a.go"}, Imports: map[string]*packages.Package{}}
	for _, f := range loadFixtures(t) {
		if f.Name != "hold" { // which is loaded by itself and has types of its own
			packages.Visit([]*packages.Package{f}, nil, func(d *packages.Package) { p.Imports[d.PkgPath] = d })
		}
	}
	type outcome struct {
		inv  *Inventory
		errs int
	}
	over := make(chan outcome, 1)
	go func() {
		inv, errs := inventorySources(t, p, [][]byte{[]byte(code)})
		over <- outcome{inv, errs}
	}()
	select {
	case o := <-over:
		if o.errs > 0 || o.inv == nil {
			t.Fatalf("the code has %d type errors:\n%s", o.errs, code)
		}
		return o.inv
	case <-time.After(time.Minute):
		t.Fatalf("the audit does not end:\n%.2000s", code)
		return nil
	}
}

// TestStepsAreLinear audits code whose values branch at every line. Two hundred branches take at most ten times the steps
// of twenty, and whoever has a lock there learns of it.
func TestStepsAreLinear(t *testing.T) {
	for kind, h := range heavy {
		t.Run(h.name, func(t *testing.T) {
			few, many := auditHeavy(t, heavyHead+heavyCode(kind, 20)), auditHeavy(t, heavyHead+heavyCode(kind, 200))
			if few.steps == 0 || many.steps > 12*few.steps {
				t.Errorf("%d steps for 20 lines, %d for 200", few.steps, many.steps)
			}
			if len(many.Locks) != 1 {
				t.Errorf("%d locks", len(many.Locks))
			}
		})
	}
}

// TestStepsGenerated does so for functions that mix them at random.
func TestStepsGenerated(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		code, lines := heavyHead, 0
		for kind := range heavy {
			n := 1 + rng.IntN(60)
			lines += n
			code += heavyCode(kind, n)
		}
		inv := auditHeavy(t, code)
		if len(inv.Locks) != len(heavy) || inv.steps > 20*maxSteps+100*lines {
			t.Errorf("%d locks, %d steps for %d lines", len(inv.Locks), inv.steps, lines)
		}
	}
}

// TestStepsOfWrappers has functions that release through one another, each many times, and one through itself.
func TestStepsOfWrappers(t *testing.T) {
	var b strings.Builder
	b.WriteString(heavyHead + `func lock(ctx context.Context, rdb *redis.Client) {
	locked, _ := rdb.SetNX(ctx, "lock:x", os.Args[0], time.Minute).Result()
	defer unlock5(ctx, rdb)
	_ = locked
}

func unlock0(ctx context.Context, rdb *redis.Client) {
	rdb.Eval(ctx, compare, []string{"lock:x"}, os.Args[0])
` + strings.Repeat("\tunlock0(ctx, rdb)\n", 50) + "}\n")
	for i := 1; i <= 5; i++ {
		fmt.Fprintf(&b, "func unlock%d(ctx context.Context, rdb *redis.Client) {\n%s}\n", i, strings.Repeat(fmt.Sprintf("\tunlock%d(ctx, rdb)\n", i-1), 50))
	}
	inv := auditHeavy(t, b.String())
	if n := len(inv.all()); n != 1 || inv.steps > 10*maxSteps {
		t.Errorf("%d faults, %d steps", n, inv.steps)
	}
}

// TestTooManySteps checks that an answer that would take too many steps is unknown, and says so.
func TestTooManySteps(t *testing.T) {
	for i, h := range heavy {
		if h.name != "values" {
			continue
		}
		for _, l := range auditHeavy(t, heavyHead+heavyCode(i, 200)).Locks {
			if got := l.Checks[GuessableValue]; got != (Check{Unknown, tooFar}) {
				t.Errorf("%+v", got)
			}
		}
	}
}
