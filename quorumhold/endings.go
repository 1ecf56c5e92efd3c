package quorumhold

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// How the term before ended is told by each node of the last term that stood there, and nodes miss terms, and ends of terms. Nonces, and tokens
// where a term was given back, say which of them tell of the same; and tokens which of them tells of the latest. That has stood on a majority, so one of those that are heard has seen it, unless it has
// forgotten. If some say that it was given back, it was, and the others have missed that. But a term of which too few nodes tell was
// never won: they granted it to an attempt that failed, whose process could not give it back.

// lastEnding says how the term before ended, from what nodes tell. So many others are silent. It is not sure of an end that only few
// tell of, which those that are silent may know better.
func lastEnding(told []driver.Grant, silent, need int) (g driver.Grant, sure bool) {
	if len(told) >= need && !slices.ContainsFunc(told, func(g driver.Grant) bool { return !harmless(g) || g != told[0] }) {
		return driver.Grant{Previous: told[0].Previous, PriorToken: told[0].PriorToken}, true // as it nearly always is, and without maps
	}
	var accounts []*account
	nameless := map[driver.Ending]int{}         // of which no token is told
	for _, named := range []bool{true, false} { // a token may be one of several of a term that is named
		for _, one := range told {
			switch {
			case named != (one.Prior != nil && one.Prior.Nonce != ""):
			case lastToken(one) != 0:
				accounts = enter(accounts, one)
			default:
				nameless[one.Previous]++
				silent++
			}
		}
	}
	if nameless[driver.Released] >= need {
		return driver.Grant{Previous: driver.Released}, true
	}
	slices.SortFunc(accounts, func(a, b *account) int { return cmp.Compare(b.token(), a.token()) })
	for _, a := range accounts {
		how, sure := endOfOne(a.tell, need)
		if how == driver.Released || len(a.tell)+silent >= need {
			return a.ending(how), sure
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

// An account is what nodes tell of one term. They know it by its nonce, if it was not given back, and by its token, of which it may have
// several: nodes that were given it later can have begun with one of their own.
type account struct{ tell []driver.Grant }

// enter adds what one node tells to the account of its term.
func enter(all []*account, one driver.Grant) []*account {
	for _, a := range all {
		if slices.ContainsFunc(a.tell, func(g driver.Grant) bool { return sameTerm(g, one) }) {
			a.tell = append(a.tell, one)
			return all
		}
	}
	return append(all, &account{[]driver.Grant{one}})
}

func sameTerm(a, b driver.Grant) bool {
	if a.Prior != nil && b.Prior != nil && a.Prior.Nonce != "" && b.Prior.Nonce != "" {
		return a.Prior.Nonce == b.Prior.Nonce
	}
	return lastToken(a) == lastToken(b)
}

// token is that of the term: what most tell, or the first.
func (a *account) token() (token driver.Token) {
	most := 0
	for _, g := range a.tell {
		one, n := lastToken(g), 0
		for _, g := range a.tell {
			if lastToken(g) == one {
				n++
			}
		}
		if n > most || n == most && one < token {
			token, most = one, n
		}
	}
	return token
}

// ending is what is told to the successor of a term that has ended so.
func (a *account) ending(how driver.Ending) driver.Grant {
	out := driver.Grant{Previous: how}
	for _, g := range a.tell {
		switch {
		case g.Previous != how || out.Prior != nil:
		case g.Prior != nil:
			prior := *g.Prior
			prior.Token = a.token()
			out.Prior = &prior
		default:
			out.PriorToken = a.token()
		}
	}
	return out
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
				if prior := t.at[i].grant.Prior; prior != nil && prior.Nonce == t.node.Nonce {
					continue // it was given this very term again
				}
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
