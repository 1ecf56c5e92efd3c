//go:build soak

package audit

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
)

// TestSoakLargePublicModules does as TestSoakPublicModules does, for programs that take long to download.
func TestSoakLargePublicModules(t *testing.T) {
	checkPublic(t, "testdata/large", []public{
		{
			name:     "livekit: one lock of a room, with go-redis",
			patterns: []string{"github.com/livekit/livekit-server/pkg/service"},
			want: []string{
				`github.com/livekit/livekit-server/pkg/service redisstore.go:268: lock redis-set "room_lock:…" duration`,
			},
		},
		{
			name:     "dapr: a lock through an interface of its own",
			patterns: []string{"github.com/dapr/components-contrib/lock/redis"},
			want: []string{
				`github.com/dapr/components-contrib/lock/redis standalone.go:87: lock redis-set "req.ResourceID" time.Second * time.Duration(req.ExpiryInSeconds)`,
			},
		},
	}, &LoadOptions{})
}

// TestSoakPublicModules compares what is found in published modules with lists made by hand.
func TestSoakPublicModules(t *testing.T) {
	t.Parallel()
	checkPublic(t, "testdata/public", publics, &LoadOptions{})
}

// TestSoakPublicModulesGenerated does so for generated code.
func TestSoakPublicModulesGenerated(t *testing.T) {
	t.Parallel()
	river := publics[len(publics)-1]
	river.want = []string{
		`github.com/riverqueue/river/riverdriver/riverpgxv5/internal/dbsqlc pg_misc.sql.go:19: lock pg-advisory "key" end of transaction`,
	}
	checkPublic(t, "testdata/public", []public{river}, &LoadOptions{All: true})
}

func checkPublic(t *testing.T, dir string, modules []public, o *LoadOptions) {
	t.Helper()
	o.Dir, o.Env = dir, moduleEnv()
	var patterns, want []string
	for _, m := range modules {
		patterns = append(patterns, m.patterns...)
		want = append(append(want, m.want...), m.faults...)
	}
	r, err := Run(context.Background(), o, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Errorf("cannot read %s: %s: %s", p.Package, p.Pos, p.Message)
	}
	var got []string
	for _, l := range r.Locks {
		what := "lock"
		if l.Maybe {
			what = "maybe"
		}
		got = append(got, fmt.Sprintf("%s %s:%d: %s %s %q %s", l.Package, filepath.Base(l.Pos.Filename), l.Pos.Line, what, l.Kind, l.Name.Text, l.TTL))
		for _, f := range l.Findings {
			got = append(got, fmt.Sprintf("%s %s:%d: %s", l.Package, filepath.Base(f.Pos.Filename), f.Pos.Line, f.Fault))
		}
	}
	for _, f := range r.Findings {
		t.Errorf("%s: a finding without its lock: %s", f.Pos, f.Message)
	}
	slices.Sort(got)
	slices.Sort(want)
	for _, d := range differ(got, want) {
		t.Error(d)
	}
	t.Logf("%d modules, %d packages, %d places, %d faults", len(modules), r.Packages, len(r.Locks), len(r.All()))
}
