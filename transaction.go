package holdlock

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A TxUse is one use of a lock inside the caller's own database transaction. It is for packages that put locks into
// transactions, such as pghold, whose functions are what programs call. Through it the declared lock decides whether it
// may be used, and observers and logs hear of it as of any other.
type TxUse struct {
	lock           *Lock
	start          time.Time
	atOnce, doubts bool
}

// InTransaction begins a use. The error is an *InvalidError if the key is not allowed. A Harmful lock is allowed, whatever
// the store of its client can do: lock and writes commit or vanish together.
func (l *Lock) InTransaction() (*TxUse, error) {
	if l.keyErr != nil {
		return nil, l.keyErr
	}
	if err := l.notInShadow("a lock in a transaction has no shadow mode: the server itself makes others wait for it",
		"leave it out of the transaction and take a lock beside it, with Do"); err != nil {
		return nil, err
	}
	if err := l.permit(entryTransaction); err != nil {
		return nil, err
	}
	return &TxUse{lock: l, start: time.Now()}, nil
}

// Driver returns the store of the lock's client, for a package that wants to know whether it is its own.
func (u *TxUse) Driver() driver.Driver { return u.lock.c.drv }

// StoreKey returns the name under which stores know the lock: LOCK or LOCK/KEY.
func (u *TxUse) StoreKey() string { return storeKey(u.lock.name, u.lock.key) }

// Holder returns what the client says about itself, and the lock's purpose.
func (u *TxUse) Holder() Holder {
	h := u.lock.c.holder
	h.Purpose = u.lock.opts.Purpose
	return h
}

// AtOnce says that the server does not make this use wait: if it is granted, it has met nobody. Without it a grant is Unclear, since
// only the server knows whether it waited.
func (u *TxUse) AtOnce() { u.atOnce = true }

// Doubtful says that Skipped of this use may have another reason than somebody who has the lock.
func (u *TxUse) Doubtful() { u.doubts = true }

// Ended tells observers and the log how it went: Granted, Skipped, Failed or Duplicate, with the error if there is one.
// Skipped is that somebody else has it. How the transaction ends is not observed.
func (u *TxUse) Ended(kind EventKind, err error) {
	e := Event{Kind: kind, Name: u.lock.name, Key: u.lock.key, Waited: time.Since(u.start), InTx: true, Err: err}
	switch kind {
	case Skipped:
		e.Contended, e.Unclear = !u.doubts, u.doubts
	case Granted, Duplicate:
		e.Unclear = !u.atOnce
	}
	u.lock.c.emit(e)
}
