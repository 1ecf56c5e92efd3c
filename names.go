package holdlock

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdlock/holdlock/driver"
)

const (
	maxNameLen = 512 // bytes, of a lock's name and of a key
	maxTTL     = 365 * 24 * time.Hour
)

// checkName reports what is wrong with a lock's name or a key.
func checkName(what, s string) error {
	show := func() string { return fmt.Sprintf("%.60q", s) } // nearly always nothing is wrong
	switch {
	case s == "":
		return &InvalidError{what, `""`, "it is empty"}
	case len(s) > maxNameLen:
		return &InvalidError{what, show() + "…", fmt.Sprintf("it has %d bytes; at most %d", len(s), maxNameLen)}
	case !utf8.ValidString(s):
		return &InvalidError{what, show(), "it is not valid UTF-8"}
	case strings.ContainsRune(s, 0):
		return &InvalidError{what, show(), "it contains a NUL byte"}
	}
	return nil
}

// storeKey is the key under which a driver knows a lock and key. A lock's name holds no slash, so no two collide.
func storeKey(name, key string) string {
	if key == "" {
		return name
	}
	return name + "/" + key
}

func splitStoreKey(s string) (name, key string) {
	name, key, _ = strings.Cut(s, "/")
	return name, key
}

// ParseName splits "LOCK" or "LOCK/KEY", as it is written in a shell, at the first slash, and checks both parts.
func ParseName(s string) (name, key string, err error) {
	name, key, keyed := strings.Cut(s, "/")
	if err := checkName("lock name", name); err != nil {
		return "", "", err
	}
	if !keyed {
		return name, "", nil
	}
	if err := checkName("key of lock "+name, key); err != nil {
		return "", "", err
	}
	return name, key, nil
}

// checkOptions reports what is wrong with the settings of a lock on a store with these traits.
func (o *LockOptions) check(t *driver.Traits) error {
	bad := func(what string, d time.Duration, why string) error {
		return &InvalidError{what, d.String(), why}
	}
	floor, ceiling := max(t.MinTTL, 100*time.Millisecond), time.Duration(maxTTL)
	raise, kept := "", ""
	if t.MaxTTL > 0 && t.MaxTTL < ceiling {
		ceiling = t.MaxTTL
	}
	if t.Name == "quorum" { // elsewhere it is the server's limit
		raise, kept = "; raise its MaxTTL in all programs", ", which keeps nothing for longer if parts of it restart"
	}
	switch {
	case o.TTL < floor:
		return bad("TTL", o.TTL, fmt.Sprintf("at least %s on this store", floor))
	case o.TTL > ceiling:
		return bad("TTL", o.TTL, fmt.Sprintf("at most %s on this store%s", ceiling, raise))
	case o.Renew != RenewOn && o.Renew != RenewOff:
		return &InvalidError{"Renew", fmt.Sprint(uint8(o.Renew)), "RenewOn or RenewOff"}
	case o.MaxHold < o.TTL && o.Renew == RenewOn:
		return bad("MaxHold", o.MaxHold, fmt.Sprintf("at least the TTL, %s", o.TTL))
	case o.MinHold < 0 || o.MinHold > maxTTL:
		return bad("MinHold", o.MinHold, "between 0 and a year")
	case o.MinHold > ceiling:
		return bad("MinHold", o.MinHold, fmt.Sprintf("at most %s on this store%s%s", ceiling, kept, raise))
	case o.Wait < 0:
		return bad("Wait", o.Wait, "0 for a single attempt, or how long to wait")
	case o.DoubleRun > Harmful:
		return &InvalidError{"DoubleRun", fmt.Sprint(uint8(o.DoubleRun)), "Harmless, Costly or Harmful"}
	case o.Guard > IdempotencyKey:
		return &InvalidError{"Guard", fmt.Sprint(uint8(o.Guard)), "Unguarded, Fenced or IdempotencyKey"}
	}
	return o.checkMode()
}
