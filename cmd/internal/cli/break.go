package cli

import (
	"context"
	"fmt"
	"time"

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
			g.say("dry-run", fmt.Sprintf("nothing was changed; to end this term: holdlock break --token %d --reason WHY %s",
				info.Token, lockName(name, key)), nil)
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
