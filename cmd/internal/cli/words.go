package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/holdlock/holdlock"
)

// The library speaks of the options that a programmer sets. Whoever has typed a command is told of its flags.

// flagOf are the flags for options that holdlock.InvalidError names.
var flagOf = map[string]string{
	"TTL": "--ttl", "MaxHold": "--max-hold", "MinHold": "--min-hold", "Wait": "--wait", "By": "--reason", "Keep": "--keep",
	"Input": "--input", "MaxRuns": "--max-runs", "OnLapse": "--on-lapse", "CallTimeout": "--timeout",
}

// inFlags are phrases of the library, and what they are on the command line.
var inFlags = strings.NewReplacer(
	"at least the TTL, ", "at least --ttl, ",
	"; Break with Now ends that", "; holdlock break --now ends that",
	"only Now ends its session", "only --now ends its session",
	"; set Again to overrule that", "; --again overrules that",
	"settle it with Client.Settle or holdlock jobs settle", "settle it with holdlock jobs settle",
	"`holdlock migrate` or pghold.Migrate", "holdlock migrate",
	", or set AllowWeak", "",
	"quorumhold: MaxTTL", "--quorum-max-ttl",
	"longer than MaxTTL", "longer than --quorum-max-ttl",
	"with the same MaxTTL in all", "with the same --quorum-max-ttl in all",
	"has run for its MaxTTL", "has run for its --quorum-max-ttl",
	"raise its MaxTTL in all", "raise --quorum-max-ttl in all",
	"raise MaxTTL in all", "raise --quorum-max-ttl in all",
	"abstains for MaxTTL", "abstains for --quorum-max-ttl",
	"there or SessionOptions.MaxLocks here, or use lease rows (pghold.Open)", "there, or use lease rows (postgres://)",
	"OnFrozen: Expire needs", "on_frozen=expire needs",
	"use Block, or lease rows", "use on_frozen=block, or lease rows (postgres://)",
	"this store opens MaxConns and one to listen", "each holdlock needs up to two",
	"with PlainKeys on a Cluster", "with plain_keys=true on a Cluster",
	"such as redishold on one server, or sqlitehold (docs", "such as redis://HOST without plain_keys, postgres://HOST/DB or sqlite:PATH (docs",
	"; take them away, or set AllowReplicas if nothing ever promotes them", "; take them away",
	"by themselves after MaxTTL (", "by themselves after --quorum-max-ttl (",
	"nodes with MaxTTL ", "nodes with --quorum-max-ttl ",
	"it reached MaxHold", "it reached --max-hold",
	"its last run's MinHold", "its last run's --min-hold",
)

// spoken is the text of an error in the words of the command line.
func spoken(err error) string {
	text := err.Error()
	var invalid *holdlock.InvalidError
	if errors.As(err, &invalid) && flagOf[invalid.What] != "" {
		said := *invalid
		said.What = flagOf[said.What]
		text = strings.ReplaceAll(text, invalid.Error(), said.Error())
	}
	var refused *holdlock.RefusedError
	if errors.As(err, &refused) {
		text = strings.ReplaceAll(text, refused.Error(), refusedText(refused))
	}
	return eachOnce(inFlags.Replace(text))
}

// eachOnce leaves out a line that says what the one before it has said: the PostgreSQL client tries each address with TLS and without.
func eachOnce(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(slices.CompactFunc(lines, func(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }), "\n")
}

// count is a number of things.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// hint guesses at what an error may mean, where its text cannot say it: a Redis without TLS waits for the rest of what it takes
// for a command.
func (g *globals) hint(err error) string {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	if late && slices.ContainsFunc(g.stores().URLs, func(url string) bool { return strings.HasPrefix(url, "rediss") }) {
		return "; if the server does not speak TLS at this port, use redis:// or its TLS port"
	}
	return ""
}

func refusedText(e *holdlock.RefusedError) string {
	missing := strings.ReplaceAll(strings.ReplaceAll(e.Missing, "no Guard is declared", "no --guard is declared"),
		"a Guard is declared", "--guard is given")
	return fmt.Sprintf("lock %q refused: --double-run harmful, and no lease on %s can prevent a double run (%s). Run the job with --once "+
		"--on-lapse hold on a store whose records are durable; or give --guard (a fence or an idempotency key that the resource checks) on a "+
		"store with durable tokens; or accept the risk with --accept-risk REASON; or put the lock into the transaction of the job's own "+
		"writes, which takes a program", e.Name, e.Store, missing)
}

var negative = regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "(-[0-9][^"]*)"`)

// parseText is what is wrong with a command line. A negative number looks like a flag to the parser.
func parseText(err error) string {
	text := err.Error()
	if m := negative.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s %s is not allowed: it must not be negative", m[1], m[2])
	}
	return text
}
