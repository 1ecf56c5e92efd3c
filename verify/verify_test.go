//go:build verify

package verify

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A check is one line of a model's first comment.
type check struct {
	model   string
	holds   bool
	defines []string // for spin and the compiler
	pan     []string // for the verifier
}

var (
	checkLine  = regexp.MustCompile(`^\s*(?:/\*)?\s*check\s+(holds|refuted)\b(.*)$`)
	errorCount = regexp.MustCompile(`errors: (\d+)`)
	incomplete = regexp.MustCompile(`max search depth too small|out of memory|search was incomplete|VECTORSZ|warning.*lacks`)
)

const limit = 20 * time.Minute // for one check; all that are listed take a small part of it

func TestModels(t *testing.T) {
	models, err := filepath.Glob("*.pml")
	if err != nil || len(models) == 0 {
		t.Fatalf("no models here: %v", err)
	}
	for _, m := range models {
		checks := checksOf(t, m)
		held := false
		refuted := false
		for _, c := range checks {
			held = held || c.holds
			refuted = refuted || !c.holds
			t.Run(strings.TrimSpace(m+" "+strings.Join(c.defines, " ")), func(t *testing.T) { c.run(t) })
		}
		if !held || !refuted {
			t.Errorf("%s needs a check that holds and one that is refuted", m)
		}
	}
}

func checksOf(t *testing.T, model string) (checks []check) {
	f, err := os.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		m := checkLine.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		c := check{model: model, holds: m[1] == "holds"}
		for _, word := range strings.Fields(m[2]) {
			switch {
			case strings.HasPrefix(word, "-pan:"):
				c.pan = append(c.pan, strings.TrimPrefix(word, "-pan:"))
			case strings.HasPrefix(word, "-D"):
				c.defines = append(c.defines, word)
			}
		}
		checks = append(checks, c)
	}
	return checks
}

func (c *check) run(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	dir := t.TempDir()
	model, err := filepath.Abs(c.model)
	if err != nil {
		t.Fatal(err)
	}
	command := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	command("spin", append(append([]string{}, c.defines...), "-a", model)...)
	command("cc", append([]string{"-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=8192", "-o", "pan", "pan.c"}, c.defines...)...)
	start := time.Now()
	out := command("./pan", append([]string{"-n"}, c.pan...)...)
	m := errorCount.FindStringSubmatch(out)
	switch {
	case m == nil:
		t.Fatalf("the verifier did not say how many errors there are:\n%s", out)
	case c.holds && m[1] != "0":
		t.Fatalf("spin has found an error:\n%s", out)
	case c.holds && incomplete.MatchString(out):
		t.Fatalf("spin has not searched all states:\n%s", out)
	case !c.holds && m[1] == "0":
		t.Fatalf("spin has found no error in a model that lacks a rule:\n%s", out)
	}
	states := regexp.MustCompile(`\d+ states, stored`).FindString(out)
	t.Logf("%s in %s", states, time.Since(start).Round(100*time.Millisecond))
}
