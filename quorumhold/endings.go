package quorumhold

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// How the term before ended is told by each node of the last term that stood there, and nodes miss terms, and ends of terms. Tokens
// say which of them tells of the latest. That has stood on a majority, so one of those that are heard has seen it, unless it has
// forgotten. If some say that it was given back, it was, and the others have missed that. But a term of which too few nodes tell was
// never won: they granted it to an attempt that failed, whose process could not give it back.

// lastEnding says how the term before ended, from what nodes tell. So many others are silent. It is not sure of an end that only few
// tell of, which those that are silent may know better.
func lastEnding(told []driver.Grant, silent, need int) (g driver.Grant, sure bool) {
	if len(told) >= need && !slices.ContainsFunc(told, func(g driver.Grant) bool { return !harmless(g) || g != told[0] }) {
		return driver.Grant{Previous: told[0].Previous, PriorToken: told[0].PriorToken}, true // as it nearly always is, and without maps
	}
	terms := map[driver.Token][]driver.Grant{}
	nameless := map[driver.Ending]int{} // of which no token is told
	for _, one := range told {
		if token := lastToken(one); token != 0 {
			terms[token] = append(terms[token], one)
		} else {
			nameless[one.Previous]++
			silent++
		}
	}
	if nameless[driver.Released] >= need {
		return driver.Grant{Previous: driver.Released}, true
	}
	for _, token := range slices.Backward(slices.Sorted(maps.Keys(terms))) {
		tell := terms[token]
		how, sure := endOfOne(tell, need)
		if how == driver.Released || len(tell)+silent >= need {
			g := tell[slices.IndexFunc(tell, func(g driver.Grant) bool { return g.Previous == how })]
			return driver.Grant{Previous: how, Prior: g.Prior, PriorToken: g.PriorToken}, sure
		}
	}
	for _, e := range []driver.Ending{driver.Broken, driver.Lapsed} {
		if nameless[e] >= (need+1)/2 {
			return driver.Grant{Previous: e}, true
		}
	}
	if nameless[driver.Released] > 0 {
		return driver.Grant{Previous: driver.Released}, true
	}
	return driver.Grant{}, true
}

// harmless says whether a node tells that the term before was given back, or that there was none.
func harmless(g driver.Grant) bool {
	return g.Prior == nil && (g.Previous == driver.Released || g.Previous == driver.None && g.PriorToken == 0)
}

// lastToken is the token of the term of which a node tells, or 0 if it does not say.
func lastToken(g driver.Grant) driver.Token {
	if g.Prior != nil {
		return g.Prior.Token
	}
	return g.PriorToken
}

// endOfOne says how a term has ended of which all these tell. It runs out where it is not given back. One that is broken may be given
// back, and one that is broken at once may be given back where that has not arrived: so it is as most of those say.
func endOfOne(tell []driver.Grant, need int) (how driver.Ending, sure bool) {
	votes := map[driver.Ending]int{}
	for _, g := range tell {
		votes[g.Previous]++
	}
	broken, released := votes[driver.Broken], votes[driver.Released]
	switch {
	case broken > 0 && broken >= released:
		return driver.Broken, broken >= need || released == 0 && len(tell) >= need
	case released > 0:
		return driver.Released, broken == 0 || released >= need
	default:
		return driver.Lapsed, len(tell) >= need
	}
}

// ending says how the term before the one that was won ended. If that is not sure, those who have not answered yet are waited for,
// about as long as the vote has taken.
func (a *attempt) ending(ctx context.Context, took time.Duration) driver.Grant {
	t, d := a.term, a.d
	var late <-chan time.Time // made when it is needed: nearly always all say the same
	for {
		told := make([]driver.Grant, 0, len(t.at))
		open := 0
		t.mu.Lock()
		for i := range t.at {
			switch t.at[i].state {
			case granted:
				told = append(told, t.at[i].grant)
			case asking:
				open++
			}
		}
		t.mu.Unlock()
		g, sure := lastEnding(told, len(t.at)-len(told), d.need)
		if sure || open == 0 {
			return g
		}
		if late == nil {
			wait := time.NewTimer(min(max(took, pauseMin), pauseMax))
			defer wait.Stop()
			late = wait.C
		}
		select {
		case <-t.changed:
		case <-late:
			return g
		case <-ctx.Done():
			return g
		case <-d.closing:
			return g
		}
	}
}
