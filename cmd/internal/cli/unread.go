package cli

import (
	"errors"
	"fmt"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// unread counts what a list could not read. Each is told when it is met, and the list goes on.
type unread struct {
	g *globals
	n int
}

// pass tells what could not be read, and returns the error that ends the list.
func (u *unread) pass(err error) error {
	if !errors.Is(err, holdlock.ErrDamaged) && !errors.Is(err, driver.ErrBadRecord) {
		return err
	}
	u.n++
	u.g.say("unread", err.Error(), nil)
	return nil
}

// err is the end of a list that is not whole.
func (u *unread) err() error {
	if u.n == 0 {
		return nil
	}
	return &exitError{code: exitIncomplete, kind: "incomplete", err: fmt.Errorf("the list is incomplete: %s could not be read", count(u.n, "key", "keys"))}
}
