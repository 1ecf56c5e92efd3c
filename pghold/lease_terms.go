package pghold

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The values of lease.state that a term which stands can have.
const (
	stateHeld    = 1
	stateCooling = 2
)

// A record is what the server says about a term: the function term_json.
type record struct {
	Nonce     string  `json:"nonce"`
	State     int16   `json:"state"`
	Token     int64   `json:"token"`
	Acquired  int64   `json:"acquired"`  // µs since 1970
	Remaining int64   `json:"remaining"` // µs
	Holder    string  `json:"holder"`
	Broken    *string `json:"broken"`
}

func (r *record) term(key string) driver.Term {
	t := driver.Term{
		Key: key, Nonce: r.Nonce, Token: driver.Token(r.Token), Acquired: time.UnixMicro(r.Acquired),
		Remaining: time.Duration(max(0, r.Remaining)) * time.Microsecond, Cooling: r.State == stateCooling,
	}
	if r.Broken != nil {
		t.Broken = *r.Broken
	}
	// It is for people only; if it cannot be read the rest is still worth showing.
	_ = json.Unmarshal([]byte(r.Holder), &t.Holder)
	return t
}

func parseTerm(key, text string) (driver.Term, error) {
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return driver.Term{}, fmt.Errorf("the server described the term as %.80q: %w", text, err)
	}
	return r.term(key), nil
}

// parseGrant reads "TOKEN PREVIOUS" and, if there is more to say about the term before, " PRIOR".
func parseGrant(key, text string) (g driver.Grant, err error) {
	token, rest, _ := strings.Cut(text, " ")
	previous, prior, told := strings.Cut(rest, " ")
	number, err1 := strconv.ParseUint(token, 10, 53)
	ending, err2 := strconv.ParseUint(previous, 10, 8)
	if err1 != nil || err2 != nil || number == 0 || driver.Ending(ending) > driver.Broken {
		return g, fmt.Errorf("the server granted %.80q", text)
	}
	g = driver.Grant{Token: driver.Token(number), Previous: driver.Ending(ending)}
	if !told {
		return g, nil
	}
	t, err := parseTerm(key, prior)
	if err != nil {
		return g, nil // that is for people only
	}
	t.Remaining = 0
	g.Prior = &t
	return g, nil
}
