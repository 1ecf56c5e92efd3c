package drivertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Faults in who holds what, and for how long.
func exclusionMutants() []Mutant {
	var process atomic.Int64
	return []Mutant{
		{
			Name:  "excludes within the process only",
			Cases: []string{"R1/OneHolderAcrossDrivers", "R1/OneWinnerAmongRacers", "R1/OnlyOneTakesOverAfterExpiry"},
			Wrap: func(d driver.Driver) driver.Driver {
				me := process.Add(1)
				return naming(func(key string) string { return fmt.Sprintf("%d/%s", me, key) })(d)
			},
		},
		{
			Name:  "grants what is held",
			Cases: []string{"R1/OneHolderWithinOneDriver", "R1/OneWinnerAmongRacers"},
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					var held *driver.HeldError
					if errors.As(err, &held) {
						return driver.Grant{Token: held.Term.Token}, nil
					}
					return g, err
				}
			}),
		},
		{
			Name:  "is re-entrant by holder",
			Cases: []string{"R1/OneHolderWithinOneDriver"},
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					var held *driver.HeldError
					if errors.As(err, &held) && held.Term.Holder == req.Holder {
						return driver.Grant{Token: held.Term.Token}, nil
					}
					return g, err
				}
			}),
		},
		{
			Name:  "has one lock for all keys",
			Cases: []string{"R1/KeysAreIndependent", "R11/KeysHaveRecordsOfTheirOwn"},
			Wrap:  naming(func(string) string { return "the lock" }),
		},
		{
			Name:  "ends terms early",
			Cases: []string{"R1/ATermEndsNeitherEarlyNorLate", "R5/AlreadyMineRearmsTTL"},
			Wrap:  asking(func(_ driver.Driver, req *driver.AcquireRequest) { req.TTL /= 2 }),
		},
		{
			Name:  "has a longer shortest TTL than it says",
			Cases: []string{"R1/TheShortestTTLIsAccepted"},
			Wrap: asking(func(d driver.Driver, req *driver.AcquireRequest) {
				req.TTL = max(req.TTL, 2*d.Traits().MinTTL)
			}),
		},
		{
			Name:  "rounds TTL down",
			Cases: []string{"R1/AnOddTTLIsNotRoundedDown"},
			Wrap: asking(func(_ driver.Driver, req *driver.AcquireRequest) {
				req.TTL = req.TTL.Truncate(100 * time.Millisecond)
			}),
		},
		{
			Name:  "rounds TTL up to the next second",
			Cases: []string{"R1/ATermEndsNeitherEarlyNorLate"},
			Wrap: asking(func(d driver.Driver, req *driver.AcquireRequest) {
				req.TTL = req.TTL.Truncate(time.Second) + time.Second + d.Traits().TTLStep
			}),
		},
		{
			Name:  "never ends a term",
			Cases: []string{"R1/ATermEndsNeitherEarlyNorLate"},
			Wrap: asking(func(d driver.Driver, req *driver.AcquireRequest) {
				req.TTL = 24 * time.Hour
				if most := d.Traits().MaxTTL; most > 0 {
					req.TTL = min(req.TTL, most)
				}
			}),
		},
		{
			Name:  "ignores MinHold",
			Cases: []string{"R1/MinHoldOutlivesTTL", "R1/RenewalKeepsMinHold"},
			Wrap:  asking(func(_ driver.Driver, req *driver.AcquireRequest) { req.MinHold = 0 }),
		},
		{
			Name:  "takes MinHold for TTL",
			Cases: []string{"R1/MinHoldBelowTTLChangesNothing"},
			Wrap: asking(func(_ driver.Driver, req *driver.AcquireRequest) {
				if req.MinHold > 0 {
					req.TTL = req.MinHold
				}
			}),
		},
		{
			Name:  "adds MinHold to TTL",
			Cases: []string{"R1/MinHoldOutlivesTTL"},
			Wrap:  asking(func(_ driver.Driver, req *driver.AcquireRequest) { req.TTL += req.MinHold }),
		},
		{
			Name:  "keeps MinHold after a release",
			Cases: []string{"R1/MinHoldEndsByRelease"},
			Wrap:  releasing(func(req *driver.ReleaseRequest) { req.KeepFor = 10 * time.Second }),
		},
		{
			Name:  "ignores KeepFor",
			Cases: []string{"R1/KeepForCools", "R1/CoolingHasNoHolder"},
			Wrap:  releasing(func(req *driver.ReleaseRequest) { req.KeepFor = 0 }),
		},
		{
			Name:  "cools too long",
			Cases: []string{"R1/KeepForCools"},
			Wrap:  releasing(func(req *driver.ReleaseRequest) { req.KeepFor *= 10 }),
		},
		{
			Name:  "does not end a term that cools",
			Cases: []string{"R1/CoolingHasNoHolder"},
			Wrap: bend(func(b *bent) {
				b.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					if req.KeepFor == 0 {
						return b.Driver.Release(ctx, req)
					}
					_, err := b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: req.KeepFor})
					return err
				}
			}),
		},
		{
			Name:  "folds keys to lower case",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap:  naming(strings.ToLower),
		},
		{
			Name:  "trims spaces off keys",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap:  naming(func(key string) string { return "x" + strings.TrimSpace(key) }),
		},
		{
			Name:  "cuts long keys",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap:  naming(func(key string) string { return key[:min(len(key), 1024)] }),
		},
		{
			Name:  "composes the accents in keys",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap:  naming(strings.NewReplacer("e\u0301", "é").Replace),
		},
		{
			Name:  "cleans keys like paths",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap:  naming(func(key string) string { return strings.ReplaceAll(key, "//", "/") }),
		},
		{
			Name:  "takes the part in braces for the key",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap: naming(func(key string) string {
				if _, rest, ok := strings.Cut(key, "{"); ok {
					if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
						return tag
					}
				}
				return key
			}),
		},
		{
			Name:  "hashes keys to eight bits",
			Cases: []string{"R1/KeysAreToldApart"},
			Wrap: naming(func(key string) string {
				sum := sha256.Sum256([]byte(key))
				return hex.EncodeToString(sum[:1])
			}),
		},
	}
}

// Faults in tokens.
func tokenMutants() []Mutant {
	fenced := func(d driver.Driver) bool { return d.Traits().Fencing != driver.NoTokens }
	seeds := func(d driver.Driver) bool { return d.Traits().Seeds }
	const seed, passed = "R3/ASeedKeepsItsToken", "R3/ASeedThatIsPassed"
	const rise, expiry, reopen = "R3/TokensRiseOverRelease", "R3/TokensRiseOverExpiry", "R3/TokensRiseOverReopen"
	return []Mutant{
		{
			Name:  "has one token",
			Cases: []string{rise, expiry, reopen},
			Needs: fenced,
			Wrap:  granting(func(g *driver.Grant) { g.Token = driver.MaxToken }),
		},
		{
			Name:  "starts tokens from 1 in each process",
			Cases: []string{rise, reopen, "R3/TokensAreNotBehindTheClock"},
			Needs: fenced,
			Wrap: func(d driver.Driver) driver.Driver {
				var last atomic.Uint64
				return granting(func(g *driver.Grant) { g.Token = driver.Token(last.Add(1)) })(d)
			},
		},
		{
			Name:  "lets tokens fall",
			Cases: []string{rise, expiry, reopen},
			Needs: fenced,
			Wrap:  granting(func(g *driver.Grant) { g.Token = driver.MaxToken - g.Token }),
		},
		{
			Name:  "takes the token from the clock in seconds",
			Cases: []string{rise},
			Needs: fenced,
			Wrap:  granting(func(g *driver.Grant) { g.Token = driver.Token(time.Now().Unix()) * 1e6 }),
		},
		{
			Name:  "gives a new token on renewal",
			Cases: []string{"R3/TokenIsConstantWithinATerm"},
			Needs: fenced,
			Wrap: renewing(func(req *driver.RenewRequest) {
				if req.Floor == 0 {
					req.Floor = driver.TokenAt(time.Now().Add(time.Hour))
				}
			}),
		},
		{
			Name:  "ignores the floor of an acquire",
			Cases: []string{"R3/FloorAheadIsKept"},
			Needs: fenced,
			Wrap:  asking(func(_ driver.Driver, req *driver.AcquireRequest) { req.Floor = 0 }),
		},
		{
			Name:  "follows any floor of an acquire",
			Cases: []string{"R3/FloorFarAheadIsClamped"},
			Needs: fenced,
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					if err != nil || req.Floor <= g.Token {
						return g, err
					}
					return b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL, Floor: req.Floor})
				}
			}),
		},
		{
			Name:  "takes the floor for the token",
			Cases: []string{"R3/FloorBehindIsHarmless", "R3/FloorFarAheadIsClamped"},
			Needs: fenced,
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					if err == nil && req.Floor != 0 {
						g.Token = req.Floor
					}
					return g, err
				}
			}),
		},
		{
			Name:  "takes a seed for a floor",
			Cases: []string{seed, passed},
			Needs: seeds,
			Wrap: asking(func(_ driver.Driver, req *driver.AcquireRequest) {
				req.Floor, req.Seed = max(req.Floor, req.Seed), 0
			}),
		},
		{
			Name:  "shows a seed as of its own time",
			Cases: []string{seed},
			Needs: seeds,
			Wrap:  asking(func(_ driver.Driver, req *driver.AcquireRequest) { req.Since = time.Time{} }),
		},
		{
			Name:  "takes the token of a seed although it is passed",
			Cases: []string{passed},
			Needs: seeds,
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					if err == nil && req.Seed != 0 {
						g.Token = req.Seed
					}
					return g, err
				}
			}),
		},
		{
			Name:  "shows a seed only while its token is its own",
			Cases: []string{passed},
			Needs: seeds,
			Wrap: bend(func(b *bent) {
				b.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					g, err := b.Driver.Acquire(ctx, req)
					if err != nil || req.Seed == 0 || g.Token == req.Seed {
						return g, err
					}
					return b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL, Floor: g.Token})
				}
			}),
		},
		{
			Name:  "ignores the floor of a renewal",
			Cases: []string{"R3/RenewRaisesToExactlyTheFloor", "R3/APassedFloorChangesNothing"},
			Needs: fenced,
			Wrap:  renewing(func(req *driver.RenewRequest) { req.Floor = 0 }),
		},
		{
			Name:  "clamps the floor of a renewal",
			Cases: []string{"R3/RenewRaisesToExactlyTheFloor"},
			Needs: fenced,
			Wrap: renewing(func(req *driver.RenewRequest) {
				req.Floor = min(req.Floor, driver.TokenAt(time.Now().Add(time.Second)))
			}),
		},
		{
			Name:  "renews although the floor is passed",
			Cases: []string{"R3/APassedFloorChangesNothing"},
			Needs: fenced,
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if errors.Is(err, driver.ErrTokenPassed) {
						b.Driver.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL})
					}
					return g, err
				}
			}),
		},
		{
			Name:  "says gone when the floor is passed",
			Cases: []string{"R3/APassedFloorChangesNothing"},
			Needs: fenced,
			Wrap: bend(func(b *bent) {
				b.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
					g, err := b.Driver.Renew(ctx, req)
					if errors.Is(err, driver.ErrTokenPassed) {
						err = driver.ErrGone
					}
					return g, err
				}
			}),
		},
	}
}
