// Command page brings docs/where-redlock-falls-short.md up to date: it runs holdlock lab as the page says and puts the output
// between the marks.
//
//	<!-- lab: ARGUMENTS -->
//	…
//	<!-- /lab -->
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: page HOLDLOCK FILE")
		os.Exit(2)
	}
	if err := update(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

var block = regexp.MustCompile(`(?s)<!-- lab:(.*?) -->\n.*?<!-- /lab -->`)

func update(holdlock, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var errs []error
	text = block.ReplaceAllFunc(text, func(b []byte) []byte {
		args := strings.TrimSpace(string(block.FindSubmatch(b)[1]))
		out, err := run(holdlock, strings.Fields(args))
		if err != nil {
			errs = append(errs, err)
			return b
		}
		return fmt.Appendf(nil, "<!-- lab: %s -->\n```text\n$ holdlock lab %s\n%s```\n<!-- /lab -->", args, args, out)
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// run returns what the lab prints, and the line about how long it took.
func run(holdlock string, args []string) (string, error) {
	cmd := exec.Command(holdlock, append([]string{"lab"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%v: %w: %s", cmd.Args, err, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if strings.Contains(stdout.String(), "not run:") {
		return "", fmt.Errorf("%v: something was not run: %s", cmd.Args, stdout.String())
	}
	var kept strings.Builder
	for line := range strings.Lines(stdout.String()) {
		fmt.Fprintf(&kept, "%s\n", strings.TrimRight(line, " \n"))
	}
	return kept.String() + lines[len(lines)-1] + "\n", nil
}
