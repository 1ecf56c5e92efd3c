package watermillonce_test

import (
	"strings"
	"testing"
	"time"
)

// Each rule of judge finds what it is for, and the ways in which a job may go are not accused.
func TestJudge(t *testing.T) {
	const killed, alive = 7, 8
	for _, tt := range []struct {
		name, want string // "" if nothing is wrong
		entries    []entry
	}{
		{"done", "", []entry{{began, "1", 1, alive, 0, 1}, {effect, "1", 1, alive, 0, 1}, {ended, "1", 1, alive, 0, 1}}},
		{"killed before its effect", "", []entry{{began, "1", 1, killed, 0, 1}, {rerun, "1", 2, alive, 0, 2}, {effect, "1", 2, alive, 0, 2}}},
		{"killed after its effect", "", []entry{{effect, "1", 1, killed, 0, 1}, {rerun, "1", 2, alive, 0, 2}, {effect, "1", 2, alive, 0, 2}}},
		{"killed before it noted anything", "", []entry{{rerun, "1", 2, alive, 0, 2}, {effect, "1", 2, alive, 0, 2}}},
		{"lost", "", []entry{{began, "1", 1, alive, 0, 1}, {rerun, "1", 2, alive, 0, 2}, {effect, "1", 2, alive, 0, 2}, {lost, "1", 1, alive, 0, 1}}},
		{"nothing", "skipped and lost", nil},
		{"no effect", "skipped and lost", []entry{{began, "1", 1, killed, 0, 1}}},
		{"again", "recorded as done", []entry{{effect, "1", 1, alive, 0, 1}, {ended, "1", 1, alive, 0, 1}, {effect, "1", 2, alive, 0, 2}}},
		{"not told", "was not told", []entry{{effect, "1", 1, killed, 0, 1}, {effect, "1", 2, alive, 0, 2}}},
		{"for no reason", "was not killed", []entry{{began, "1", 1, alive, 0, 1}, {rerun, "1", 2, alive, 0, 2}, {effect, "1", 2, alive, 0, 2}}},
		{"told for nothing", "first run was told", []entry{{rerun, "1", 1, alive, 0, 1}, {effect, "1", 1, alive, 0, 1}}},
		{"a lapse untold", "2 runs lapsed", []entry{{rerun, "1", 3, alive, 0, 3}, {effect, "1", 3, alive, 0, 3}}},
		{"miscounted", "of 5 lapses", []entry{{effect, "1", 1, alive, 0, 1}, {miscounted, "1", 1, alive, 0, 5}}},
	} {
		v := judge(tt.entries, []string{"1"}, map[int]bool{killed: true})
		if found := strings.Join(v.wrong, "; "); (tt.want == "") != (found == "") || !strings.Contains(found, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, found, tt.want)
		}
	}
	if soon, shortest := tooSoon([]entry{{later, "1", 1, alive, 600_000, 100_000}, {acked, "1", 1, alive, 1_000_000, 600_001}, {later, "1", 2, alive, 1, 0}}); soon != 1 || shortest > 400*time.Millisecond {
		t.Errorf("tooSoon: %d, %s", soon, shortest)
	}
	meets := []entry{{later, "1", 2, alive, 100_000, 0}, {later, "1", 1, alive, 100_001, 0}, {later, "1", 2, alive, 600_000, 0}, {later, "1", 2, alive, 1_100_000, 0}}
	if wrong := tooOften(meets); len(wrong) > 0 {
		t.Errorf("tooOften accuses %v", wrong)
	}
	if wrong := tooOften(append(meets, entry{later, "1", 2, alive, 1_500_000, 0})); len(wrong) != 1 {
		t.Errorf("tooOften: %v", wrong)
	}
}
