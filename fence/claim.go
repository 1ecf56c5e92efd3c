package fence

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/holdlock/holdlock"
)

// A Claim is what a holder shows to a resource: the lock, and the token of its lease. It is no secret and no proof; it orders
// holders that do not lie.
type Claim struct {
	Name  string // of the lock
	Key   string // or ""
	Token holdlock.Token

	check func(need time.Duration) error // nil if the lease is not at hand
}

// Of returns the claim of a lease.
func Of(l *holdlock.Lease) Claim {
	return Claim{Name: l.Name(), Key: l.Key(), Token: l.Token(), check: l.Check}
}

// FromEnv returns the claim of the lock that this command runs under: holdlock run sets HOLDLOCK_LOCK, HOLDLOCK_KEY and
// HOLDLOCK_TOKEN. It fails if they are missing or damaged.
func FromEnv() (Claim, error) {
	c := Claim{Name: os.Getenv("HOLDLOCK_LOCK"), Key: os.Getenv("HOLDLOCK_KEY")}
	if c.Name == "" {
		return Claim{}, fmt.Errorf("%w: HOLDLOCK_LOCK is not set; start this command with holdlock run", ErrNoClaim)
	}
	token, err := strconv.ParseUint(os.Getenv("HOLDLOCK_TOKEN"), 10, 53)
	if err != nil || token == 0 {
		return Claim{}, fmt.Errorf("%w of lock %s: HOLDLOCK_TOKEN is %.40q, which is not a token",
			ErrNoClaim, c.Lock(), os.Getenv("HOLDLOCK_TOKEN"))
	}
	c.Token = holdlock.Token(token)
	return c, nil
}

// Lock returns LOCK or LOCK/KEY, under which marks are kept. Lock names hold no slash, so no two collide.
func (c Claim) Lock() string {
	if c.Key == "" {
		return c.Name
	}
	return c.Name + "/" + c.Key
}

// Check is Lease.Check for a claim that was made by Of: is the lease ours for at least need longer? Claims from elsewhere
// cannot tell, and pass.
func (c Claim) Check(need time.Duration) error {
	if c.check == nil {
		return nil
	}
	return c.check(need)
}

// Valid returns why the claim cannot be shown to a resource, or nil.
func (c Claim) Valid() error {
	switch {
	case c.Name == "":
		return fmt.Errorf("%w: it names no lock", ErrNoClaim)
	case c.Token == 0:
		return fmt.Errorf("%w of lock %s: the token is 0; a store whose traits say \"no tokens\" cannot be fenced", ErrNoClaim, c.Lock())
	}
	return nil
}

type contextKey struct{}

// WithClaim returns a context that carries the claim to what works for its holder.
func WithClaim(ctx context.Context, c Claim) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the claim that WithClaim, or the middleware of fencehttp, has put into a context.
func FromContext(ctx context.Context) (Claim, bool) {
	c, ok := ctx.Value(contextKey{}).(Claim)
	return c, ok
}
