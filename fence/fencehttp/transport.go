package fencehttp

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdlock/holdlock/fence"
)

// The headers.
const (
	LockHeader        = "Fencing-Lock"
	TokenHeader       = "Fencing-Token"
	IdempotencyHeader = "Idempotency-Key"
)

// A Transport adds the headers to each request whose context carries a claim (fence.WithClaim). It is safe for concurrent
// use. The zero value works.
type Transport struct {
	// Base sends the requests; nil is http.DefaultTransport.
	Base http.RoundTripper
	// Need is how long a request may take at the service. A request is not sent unless the lease is ours for at least that
	// long (Lease.Check). 0 still refuses to send when the lease has ended.
	Need time.Duration
	// IdempotencyKey returns the key of the job in the context, or "". nil adds no such header.
	IdempotencyKey func(context.Context) string
	// Optional lets requests without a claim pass as they are. Otherwise they fail with fence.ErrNoClaim, because an unfenced
	// request among fenced ones is nearly always a mistake.
	Optional bool
}

// RoundTrip implements http.RoundTripper. A request that is refused here was not sent.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	sent, err := t.fenced(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(sent)
}

// fenced returns a copy of the request with the headers.
func (t *Transport) fenced(req *http.Request) (*http.Request, error) {
	out := req.Clone(req.Context())
	if t.IdempotencyKey != nil {
		if key := t.IdempotencyKey(req.Context()); key != "" {
			out.Header.Set(IdempotencyHeader, url.PathEscape(key))
		}
	}
	c, ok := fence.FromContext(req.Context())
	if !ok {
		if t.Optional {
			return out, nil
		}
		return nil, fmt.Errorf("fencehttp: %w in the context of the request to %s: use fence.WithClaim", fence.ErrNoClaim, req.URL.Host)
	}
	if err := c.Valid(); err != nil {
		return nil, fmt.Errorf("fencehttp: request to %s not sent: %w", req.URL.Host, err)
	}
	if err := c.Check(t.Need); err != nil {
		return nil, fmt.Errorf("fencehttp: request to %s not sent: %w", req.URL.Host, err)
	}
	out.Header.Set(LockHeader, url.PathEscape(c.Lock()))
	out.Header.Set(TokenHeader, strconv.FormatUint(uint64(c.Token), 10))
	return out, nil
}
