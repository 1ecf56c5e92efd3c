package hold

import (
	"time"

	"github.com/holdlock/holdlock"
)

// Options whose address only the library gets are what was written.
func goodLent(c *holdlock.Client) (*holdlock.Lock, error) {
	opts := holdlock.LockOptions{TTL: time.Minute, Purpose: "sends mail", DoubleRun: holdlock.Costly}
	return c.NewLock("lent", &opts) // want lock holdlock "lent" 1m0s
}

func goodLentLater(c *holdlock.Client) (*holdlock.Lock, error) {
	var opts holdlock.LockOptions
	opts.TTL = time.Minute
	first, err := c.NewLock("lent first", &opts) // want lock holdlock "lent first" 1m0s
	if err != nil {
		return first, err
	}
	night := opts
	night.TTL = time.Hour
	return c.NewLock("lent second", &night) // want lock holdlock "lent second" &night.TTL
}

func change(o *holdlock.LockOptions) { o.TTL = time.Hour }

func goodChanged(c *holdlock.Client) (*holdlock.Lock, error) {
	opts := holdlock.LockOptions{TTL: time.Minute}
	change(&opts)
	return c.NewLock("changed", &opts) // want lock holdlock "changed" &opts
}
