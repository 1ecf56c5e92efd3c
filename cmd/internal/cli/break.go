package cli

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/holdlock/holdlock"
)

type breakCmd struct {
	Lock   string  `arg:"" help:"LOCK or LOCK/KEY."`
	Token  *uint64 `help:"The term to end, by the token that a first run has shown. Without it nothing is done." placeholder:"N"`
	Reason string  `help:"Why; shown to the holder and to its successor. Required with --token." placeholder:"TEXT"`
	Now    bool    `help:"Free the lock at once, although its holder may still be at work: the job can run twice."`
}

// Run shows the term, and ends it if it is named by its token.
func (b *breakCmd) Run(g *globals) error {
	name, key, err := holdlock.ParseName(b.Lock)
	if err != nil {
		return err
	}
	if b.Token != nil && b.Reason == "" {
		return usage("--token needs --reason: say why the lock is broken")
	}
	if b.Token == nil && (b.Now || b.Reason != "") {
		return usage("name the term to break with --token; holdlock break LOCK shows it")
	}
	return g.withClient(func(ctx context.Context, c *holdlock.Client) error {
		info, held, err := c.Inspect(ctx, name, key)
		if err != nil {
			return err
		}
		if b.Token == nil { // 0 is a token too: that of every term in a store that issues none
			if !held {
				return g.printFree(c, name, key)
			}
			if err := g.print(info); err != nil {
				return err
			}
			g.say("dry-run", fmt.Sprintf("nothing was changed; to end this term: holdlock break%s --token %d --reason WHY %s",
				g.again(), info.Token, lockWord(name, key)), nil)
			return nil
		}
		by := user() + ": " + b.Reason
		if err := c.Break(ctx, name, key, holdlock.Token(*b.Token), holdlock.BreakOptions{By: by, Now: b.Now}); err != nil {
			return err
		}
		text := fmt.Sprintf("broke lock %s, token %d of %s; its holder is told at its next renewal, and the lock is free within %s",
			lockName(name, key), *b.Token, holder(info), info.FreeIn.Round(time.Millisecond))
		if b.Now {
			text = fmt.Sprintf("broke lock %s, token %d of %s; it is free now, and its holder may still be at work",
				lockName(name, key), *b.Token, holder(info))
		}
		g.say("broken", text, fieldsOf(info))
		return nil
	})
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// again is the part of a command line that says where the lock is. A URL that may hold a secret is left to the reader.
func (g *globals) again() string {
	var b strings.Builder
	for _, url := range g.stores().URLs {
		if strings.Contains(url, "@") || strings.Contains(strings.ToLower(url), "passw") {
			url = "URL"
		}
		b.WriteString(" --store " + shellWord(url))
	}
	if g.Namespace != "" {
		b.WriteString(" --namespace " + shellWord(g.Namespace))
	}
	return b.String()
}

// lockWord names a lock as a shell reads it, unless a terminal would not show that as it is.
func lockWord(name, key string) string {
	if key != "" {
		name += "/" + key
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return readable(name)
	}
	return shellWord(name)
}

// shellWord is a word as a shell reads it.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
