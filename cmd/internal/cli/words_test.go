package cli

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/pghold"
)

// goOption is how an option of the library looks, and a function or field of it.
var goOption = regexp.MustCompile(`\b([A-Z][a-z]+[A-Z][A-Za-z]+|Wait|Guard|By|Keep|Input|Client\.\w+|[a-z]+hold\.[A-Z]\w+)\b`)

// What the command says names flags, and nothing that only a programmer can set.
func TestMessagesNameFlags(t *testing.T) {
	store := "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
	for _, c := range []struct{ args, want string }{
		{"--wait -1s", "--wait -1s is not allowed: it must not be negative"},
		{"--wait=-1s", "--wait -1s is not allowed: 0 for a single attempt"},
		{"--ttl -5s", "--ttl -5s is not allowed: it must not be negative"},
		{"--ttl=-5s", "--ttl -5s is not allowed: at least 100ms"},
		{"--ttl 9000h", "--ttl 9000h0m0s is not allowed: at most"},
		{"--max-hold 1s", "--max-hold 1s is not allowed: at least --ttl, 30s"},
		{"--min-hold=-1s", "--min-hold -1s is not allowed"},
		{"--double-run harmful", "--accept-risk REASON"},
		{"--double-run harmful --guard fenced", "--guard is given, but this store's tokens are not durable"},
		{"--store redis://a --store redis://b", "2 nodes survive no failure; use 3 or 5"},
		{"--store redis://a --store redis://b --store redis://c --store redis://d", "use an odd number"},
		{"--store redis://a --store redis://b --store redis://c --quorum-max-ttl 1ms", "--quorum-max-ttl 1ms is too short"},
		{"--store redis://a --store redis://b --store redis://c --min-hold 1m", "at most 30s on this store, which keeps nothing for longer if parts of it restart; raise --quorum-max-ttl in all"},
		{"--store redis://a --store redis://b --store redis://c --ttl 1m", "at most 30s on this store; raise --quorum-max-ttl in all"},
	} {
		args := append([]string{"run", "job"}, strings.Fields(c.args)...)
		if !strings.Contains(c.args, "--store") {
			args = append(args, "--store", store)
		}
		var out bytes.Buffer
		code := Main(append(args, "--", "true"), &out, &out)
		text := strings.TrimSuffix(out.String(), "holdlock: see holdlock --help\n")
		if code != exitUsage || !strings.Contains(text, c.want) || goOption.MatchString(text) {
			t.Errorf("%s: %d, %s(%q looks like Go)", c.args, code, text, goOption.FindString(text))
		}
	}
	for _, err := range []error{
		&holdlock.JobError{Name: "job", Job: driver.Job{Changed: time.Now()}, Err: driver.ErrSuspended},
		fmt.Errorf("%w: make them with `holdlock migrate` or pghold.Migrate", pghold.ErrSchema),
		&holdlock.RefusedError{Name: "job", Store: "x", Missing: "the records of this store are not durable, and no Guard is declared"},
		fmt.Errorf("lock was lost: %s", holdlock.LossMaxHold.Explain()),
		errors.Join(&holdlock.InvalidError{What: "Keep", Value: "0s", Why: "it must be positive"}),
	} {
		if text := spoken(err); goOption.MatchString(text) || text == err.Error() {
			t.Errorf("%s (%q looks like Go)", text, goOption.FindString(text))
		}
	}
}

func TestCountsAndRepeatedLines(t *testing.T) {
	t.Parallel()
	if one, two := count(1, "process", "processes"), count(2, "process", "processes"); one != "1 process" || two != "2 processes" {
		t.Errorf("%q, %q", one, two)
	}
	if got, want := eachOnce("connect:\n\ta: refused\n\ta: refused\n\tb: refused\n\ta: refused"), "connect:\n\ta: refused\n\tb: refused\n\ta: refused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNothingIsChangedOnce(t *testing.T) {
	t.Parallel()
	for _, why := range []error{driver.ErrDamaged, driver.ErrAbstains, fmt.Errorf("refused (%w)", driver.ErrNotApplied), errors.Join(errors.New("full"), driver.ErrNotApplied)} {
		err := &holdlock.StoreError{Op: "acquire", Name: "job", Store: "here", Err: why}
		if n := strings.Count(err.Error(), "nothing was changed"); n != 1 || !errors.Is(why, driver.ErrNotApplied) {
			t.Errorf("%v: said %d times", err, n)
		}
	}
}

func TestNoCommandIsNoSuccess(t *testing.T) {
	t.Parallel()
	var out, told strings.Builder
	if code := Main(nil, &out, &told); code != exitUsage || out.String() != "" || !strings.Contains(told.String(), "--help") {
		t.Errorf("code %d, %q, %q; want a usage error", code, out.String(), told.String())
	}
}
