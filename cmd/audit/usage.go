package audit

import (
	"strings"
	"time"
)

// Usage is what is known of the use of one lock of this library, from whatever counts it.
type Usage struct {
	Lock     string    // its declared name
	LastUsed time.Time // zero if it was never used
}

// A Used lock is declared and was used.
type Used struct {
	Lock     Lock
	LastUsed time.Time
}

// A Comparison is what Join found. A name that the code computes cannot be compared; the fields say what that leaves open.
type Comparison struct {
	Used       []Used
	Unused     []Lock  // declared under a constant name, and not used
	Computed   []Lock  // declared under a name that is not constant, so that its use cannot be told
	Undeclared []Usage // used, and no declaration has this name or can compute it
	Perhaps    []Usage // used, and only a declaration whose name is computed can be its own
}

// Join compares the declared locks of this library (kind Holdlock; others are left out) with what was used. Both lists
// keep their order.
func Join(declared []Lock, usage []Usage) Comparison {
	var c Comparison
	last := make(map[string]time.Time, len(usage))
	for _, u := range usage {
		if u.LastUsed.After(last[u.Lock]) {
			last[u.Lock] = u.LastUsed
		}
	}
	constant := map[string]bool{}
	for _, l := range declared {
		switch {
		case l.Kind != Holdlock:
		case !l.Name.Constant:
			c.Computed = append(c.Computed, l)
		default:
			constant[l.Name.Text] = true
			if at := last[l.Name.Text]; at.IsZero() {
				c.Unused = append(c.Unused, l)
			} else {
				c.Used = append(c.Used, Used{l, at})
			}
		}
	}
	for _, u := range usage {
		if u.LastUsed.IsZero() || constant[u.Lock] {
			continue
		}
		perhaps := false
		for _, l := range c.Computed {
			perhaps = perhaps || l.Name.canBe(u.Lock)
		}
		if perhaps {
			c.Perhaps = append(c.Perhaps, u)
		} else {
			c.Undeclared = append(c.Undeclared, u)
		}
	}
	return c
}

// canBe tells whether a computed name can come out as this one: by the parts of it that are known, if any are.
func (n Name) canBe(name string) bool {
	parts := strings.Split(n.Text, "…")
	if len(parts) == 1 { // an expression of which nothing is known
		return true
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for i, p := range parts[1:] {
		if i == len(parts)-2 {
			return strings.HasSuffix(rest, p)
		}
		_, after, found := strings.Cut(rest, p)
		if !found {
			return false
		}
		rest = after
	}
	return true
}
