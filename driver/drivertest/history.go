package drivertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Tenure is the time in which one caller may believe that it holds a key. All times are of one clock.
type Tenure struct {
	Key     string
	Who     string       // for messages
	Token   driver.Token // 0 if the store issues none
	Invoked time.Time    // before the first request for it was sent
	Granted time.Time    // when the grant was heard
	Ended   time.Time    // when its release was called, or its own deadline: the sending of its last good request + TTL
}

func (t Tenure) String() string {
	return fmt.Sprintf("%s of %q, token %d, asked %s, granted %s, ended %s", t.Who, t.Key, t.Token,
		t.Invoked.Format(stamp), t.Granted.Format(stamp), t.Ended.Format(stamp))
}

const stamp = "04:05.000000"

// CheckHistory returns what is wrong with a set of tenures, in any order:
//
//   - Two tenures of a key overlap (R1).
//   - Two tenures of a key have the same token, or one that was asked for after another had been granted has a lower
//     token (R3). Tokens are not looked at if one of the key's tenures has none.
//
// It is no proof of a store, but what it finds is a fault without any doubt.
func CheckHistory(tenures []Tenure) []string {
	byKey := map[string][]Tenure{}
	for _, t := range tenures {
		byKey[t.Key] = append(byKey[t.Key], t)
	}
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		wrong = append(wrong, overlaps(byKey[key])...)
		wrong = append(wrong, disorder(byKey[key])...)
	}
	return wrong
}

// overlaps finds the tenures of one key that began before an earlier one had ended.
func overlaps(tenures []Tenure) (wrong []string) {
	sorted := slices.SortedFunc(slices.Values(tenures), func(a, b Tenure) int { return a.Granted.Compare(b.Granted) })
	var last Tenure // of those so far, the one that ends last
	for _, t := range sorted {
		if !t.Granted.Before(t.Ended) {
			continue // heard of too late: nobody ever believed in it
		}
		if t.Granted.Before(last.Ended) {
			wrong = append(wrong, fmt.Sprintf("R1: two holders at once for %v:\n\t%v\n\t%v",
				min(t.Ended.Sub(t.Granted), last.Ended.Sub(t.Granted)), last, t))
		}
		if t.Ended.After(last.Ended) {
			last = t
		}
	}
	return wrong
}

// disorder finds the tenures of one key whose tokens are equal, or fall although one came wholly after the other.
func disorder(tenures []Tenure) (wrong []string) {
	if slices.ContainsFunc(tenures, func(t Tenure) bool { return t.Token == 0 }) {
		return nil
	}
	byToken := slices.SortedFunc(slices.Values(tenures), func(a, b Tenure) int { return cmp.Compare(a.Token, b.Token) })
	for i := 1; i < len(byToken); i++ {
		if byToken[i].Token == byToken[i-1].Token {
			wrong = append(wrong, fmt.Sprintf("R3: one token twice:\n\t%v\n\t%v", byToken[i-1], byToken[i]))
		}
	}
	// From the highest token down: nobody may have asked after a higher token had been granted.
	var first Tenure // of those with higher tokens, the one granted first
	for i, t := range slices.Backward(byToken) {
		if i < len(byToken)-1 && first.Granted.Before(t.Invoked) && first.Token != t.Token {
			wrong = append(wrong, fmt.Sprintf("R3: the token fell:\n\t%v\n\t%v", first, t))
		}
		if i == len(byToken)-1 || t.Granted.Before(first.Granted) {
			first = t
		}
	}
	return wrong
}
