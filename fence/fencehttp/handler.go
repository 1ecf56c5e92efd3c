package fencehttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
)

// Handler returns a middleware that lets a request through to next unless its token is below the mark of its lock. Reads
// move the mark too, because a resource has to be marked before it is read.
//
//	no headers                428 Precondition Required, or passed on if optional
//	headers that are damaged  400
//	stale token               409, with the token seen
//	marks cannot be reached   503
//
// Bodies of refusals are problem details (RFC 9457). next finds the claim by fence.FromContext and shows it to the fence of
// its data: see the package comment.
func Handler(next http.Handler, marks fence.Marks, optional bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, given, err := claimOf(r.Header)
		switch {
		case err != nil:
			refuse(w, problem{Status: http.StatusBadRequest, Title: "Damaged fencing headers", Detail: err.Error()})
			return
		case !given && optional:
			next.ServeHTTP(w, r)
			return
		case !given:
			refuse(w, problem{
				Status: http.StatusPreconditionRequired, Title: "Fencing token required",
				Detail: "send " + LockHeader + " and " + TokenHeader,
			})
			return
		}
		var stale *fence.StaleError
		switch err := marks.Mark(r.Context(), c); {
		case errors.As(err, &stale):
			refuse(w, problem{
				Status: http.StatusConflict, Title: "Stale fencing token", Detail: stale.Error(),
				Lock: stale.Lock, Token: text(stale.Token), Seen: text(stale.Seen),
			})
		case err != nil:
			refuse(w, problem{
				Status: http.StatusServiceUnavailable, Title: "Fencing token could not be checked",
				Detail: "nothing was changed; try again",
			})
		default:
			next.ServeHTTP(w, r.WithContext(fence.WithClaim(r.Context(), c)))
		}
	})
}

// claimOf reads the headers. given is false if there are none.
func claimOf(h http.Header) (c fence.Claim, given bool, err error) {
	locks, tokens := h.Values(LockHeader), h.Values(TokenHeader)
	if len(locks) == 0 && len(tokens) == 0 {
		return c, false, nil
	}
	if len(locks) != 1 || len(tokens) != 1 {
		return c, false, fmt.Errorf("there must be one %s and one %s, not %d and %d", LockHeader, TokenHeader, len(locks), len(tokens))
	}
	lock, err := url.PathUnescape(locks[0])
	if err != nil {
		return c, false, fmt.Errorf("%s is not percent-encoded", LockHeader)
	}
	if c.Name, c.Key, err = holdlock.ParseName(lock); err != nil {
		return c, false, fmt.Errorf("%s: %w", LockHeader, err)
	}
	token, err := strconv.ParseUint(tokens[0], 10, 53)
	if err != nil || token == 0 || strings.HasPrefix(tokens[0], "0") {
		return c, false, fmt.Errorf("%s is not a decimal number from 1 to 2^53-1", TokenHeader)
	}
	c.Token = holdlock.Token(token)
	return c, true, nil
}

// problem is the body of a refusal. Tokens are text, because not every reader of JSON keeps 53 bits.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Lock   string `json:"lock,omitempty"`
	Token  string `json:"token,omitempty"`
	Seen   string `json:"seen,omitempty"`
}

func text(t holdlock.Token) string { return strconv.FormatUint(uint64(t), 10) }

const problemType = "application/problem+json"

func refuse(w http.ResponseWriter, p problem) {
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// maxProblem bounds what is read of a refusal.
const maxProblem = 64 << 10

// Stale returns the *fence.StaleError that a response stands for, or nil if it is no refusal by Handler. It reads the body
// of a 409 with problem details only.
func Stale(resp *http.Response) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // a proxy may have added a charset
	if resp.StatusCode != http.StatusConflict || kind != problemType {
		return nil
	}
	var p problem
	if json.NewDecoder(io.LimitReader(resp.Body, maxProblem)).Decode(&p) != nil || p.Token == "" {
		return nil
	}
	token, err1 := strconv.ParseUint(p.Token, 10, 53)
	seen, err2 := strconv.ParseUint(p.Seen, 10, 53)
	if err1 != nil || err2 != nil {
		return nil
	}
	return &fence.StaleError{Lock: p.Lock, Token: holdlock.Token(token), Seen: holdlock.Token(seen)}
}
