package main

import (
	"fmt"
	"strings"

	"github.com/holdlock/holdlock/driver"
)

// columns are the facts of the table, and what they mean.
var columns = []struct {
	head, meaning string
	cell          func(t *driver.Traits) string
}{
	{
		"excludes", "how far the exclusion reaches. Outside of that, nobody is kept out.",
		func(t *driver.Traits) string { return t.Scope.String() },
	},
	{
		"can forget a lock", "when the store can lose a lock whose holder is still alive, so that a second one gets it.",
		func(t *driver.Traits) string { return t.Forgets.String() },
	},
	{
		"a frozen holder", "what becomes of the lock of a process that stands still, past its TTL and with its machine and connection alive. " +
			"Where it keeps the lock nobody runs beside it when it wakes up, and nobody runs at all before.",
		func(t *driver.Traits) string {
			if t.FrozenBlocks {
				return "keeps it"
			}
			return "loses it"
		},
	},
	{
		"clock", "what measures the expiry. The holder measures its own trust on a clock of its own, and lets go earlier.",
		func(t *driver.Traits) string { return t.Clock.String() },
	},
	{
		"tokens", "what the fencing tokens are worth to a resource that compares them. " +
			"A lock that is declared `Harmful` with a `Guard` needs durable ones.",
		func(t *driver.Traits) string { return t.Fencing.String() },
	},
	{
		"records", "what the records of jobs that are to run once survive (package `once`). A lock that is declared `Harmful` " +
			"runs under `OnLapse: Hold` on durable ones.",
		func(t *driver.Traits) string { return t.Records.String() },
	},
	{
		"in order", "whether those who wait are served in the order in which they came.",
		func(t *driver.Traits) string { return yes(t.FIFO) },
	},
	{
		"shortest TTL", "the soonest that a dead holder can be noticed.",
		func(t *driver.Traits) string { return t.MinTTL.String() },
	},
	{
		"in your transaction", "whether the lock can live and die with the database transaction of the job's own writes. " +
			"It is the only kind that no pause can get around.",
		func(t *driver.Traits) string { return yes(t.Transactional) },
	},
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// table returns the promises as a table in Markdown.
func table(stores []store) string {
	var b strings.Builder
	b.WriteString("| store |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.head)
	}
	b.WriteString("\n|---|")
	b.WriteString(strings.Repeat("---|", len(columns)))
	for _, s := range stores {
		fmt.Fprintf(&b, "\n| %s |", s.name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", c.cell(&s.traits))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// page returns docs/promises.md.
func page(stores []store) []byte {
	var b strings.Builder
	b.WriteString(`# What each store promises

<!-- Written by internal/gen/promises from the traits that the stores report, as on Linux. Do not edit: make generate. -->

`)
	b.WriteString(table(stores))
	b.WriteString("\n")
	for _, c := range columns {
		fmt.Fprintf(&b, "- **%s**: %s\n", c.head, c.meaning)
	}
	b.WriteString(`
Programs read the same facts with ` + "`Client.Traits`" + `, and the conformance suite ` + "`driver/drivertest`" + ` tests each store
against what it claims.

No store promises that work never overlaps: a holder that is paused between its last check and its
write wakes up after its lease has passed on. What stops that write is a resource that compares tokens, or a lock in the
transaction of the write itself.
`)
	return []byte(b.String())
}
