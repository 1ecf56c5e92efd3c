package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdlock/holdlock/cmd/internal/guard"
)

type checkCmd struct {
	Need time.Duration `help:"How much time the next step needs at most." default:"0s"`
}

// Run answers from what the guard publishes: it works while holdlock itself is stopped, and does not ask the store.
func (c *checkCmd) Run(g *globals) error {
	if c.Need < 0 {
		return usage(fmt.Sprintf("--need %s is not allowed: it must not be negative", c.Need))
	}
	if os.Getenv("HOLDLOCK_LOCK") == "" {
		return usage("check works only inside a command that holdlock run has started")
	}
	name := lockName(os.Getenv("HOLDLOCK_LOCK"), os.Getenv("HOLDLOCK_KEY"))
	left, err := guard.Remaining(os.Getenv(guard.LeaseEnv))
	if err != nil {
		return &exitError{code: exitLost, kind: "lost", err: fmt.Errorf("cannot tell how long lock %s is ours; stop here: %w", name, err)}
	}
	ok := left > 0 && left >= c.Need
	if g.JSON {
		err := json.NewEncoder(g.stdout).Encode(map[string]any{
			"ok": ok, "remaining_ms": left.Milliseconds(), "need_ms": c.Need.Milliseconds(),
		})
		if err != nil || !ok {
			return &exitError{code: exitLost, kind: "lost", silent: true, err: errors.Join(err, errors.New("too little time"))}
		}
		return nil
	}
	if !ok {
		return &exitError{code: exitLost, kind: "lost", err: fmt.Errorf("lock %s is ours for %s more, %s needed; stop here",
			name, max(0, left).Round(time.Millisecond), c.Need)}
	}
	return nil
}
