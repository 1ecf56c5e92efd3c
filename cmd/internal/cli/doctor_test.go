//go:build unix

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// The exit code says what --fail-on asks for, and a store that does not open is examined all the same.
func TestDoctorCommand(t *testing.T) {
	p := testenv.SharedPostgres(t) // which does not sync
	url := p.URL("schema=doctor")
	code, out, stderr := invoke("doctor", "--store", url)
	if code != exitFindings || !strings.Contains(out, "refuses") || !strings.Contains(out, "holdlock migrate --grant postgres") {
		t.Errorf("without tables: %d %s%s", code, out, stderr)
	}
	if code, _, stderr := invoke("migrate", "--store", url); code != exitOK {
		t.Fatalf("migrate: %d %s", code, stderr)
	}
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitOK, []string{"doctor", "--store", url}},
		{exitFindings, []string{"doctor", "--store", url, "--fail-on", "warning"}},
		{exitOK, []string{"doctor", "--store", strings.Replace(url, "postgres:", "postgres+advisory:", 1)}},
		{exitOK, []string{"doctor", "--store", url, "--in-transactions"}},
		{exitOK, []string{"doctor", "--store", "postgres://app:sesame@127.0.0.1:1/x?sslmode=disable", "--fail-on", "never"}},
		{exitUsage, []string{"doctor", "--store", "sqlite:x", "--in-transactions"}},
	} {
		code, out, stderr := invoke(append(c.args, "--json")...)
		if code != c.code || strings.Contains(out+stderr, "sesame") || code != exitUsage && !strings.Contains(out, `"check"`) {
			t.Errorf("%v: %d, want %d: %s%s", c.args, code, c.code, out, stderr)
		}
		for line := range strings.Lines(out) {
			var f struct{ Check, Verdict, Found string }
			if err := json.Unmarshal([]byte(line), &f); err != nil || f.Check == "" || f.Verdict == "" {
				t.Errorf("%v: %s (%v)", c.args, line, err)
			}
		}
	}
}

// Every kind of Redis has a doctor.
func TestDoctorCommandOnRedis(t *testing.T) {
	s := testenv.StartSentinel(t)
	var quorum []string
	for range 3 {
		quorum = append(quorum, "redis://"+testenv.StartRedis(t).Addr)
	}
	for store, want := range map[string][]string{
		"redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + s.Primary: {"sentinel quorum", "failover time", "min-replicas-to-write"},
		strings.Join(quorum, " "): {"number of nodes", "independence", "majority", "holdlock quorum init"},
	} {
		t.Setenv("HOLDLOCK_STORE", store)
		code, out, stderr := invoke("doctor")
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("%s: it says nothing of %s: %s%s", store, text, out, stderr)
			}
		}
		// A quorum that was not declared new grants nothing for a while.
		refuses := exitOK
		if !strings.Contains(store, "sentinel") {
			refuses = exitFindings
		}
		if code != refuses {
			t.Errorf("%s: %d, want %d", store, code, refuses)
		}
		if code, _, _ := invoke("doctor", "--fail-on", "warning"); code != exitFindings {
			t.Errorf("%s: %d, want 1, as there are warnings", store, code)
		}
	}
	// The doctor is not the first one to use a quorum: it can still be declared new.
	if code, _, stderr := invoke("quorum", "init", "--store", quorum[0], "--store", quorum[1], "--store", quorum[2]); code != exitOK {
		t.Errorf("quorum init: %d %s", code, stderr)
	}
	t.Setenv("HOLDLOCK_STORE", strings.Join(quorum, " "))
	if code, out, _ := invoke("doctor"); code != exitOK {
		t.Errorf("declared new: %d %s", code, out)
	}
}
