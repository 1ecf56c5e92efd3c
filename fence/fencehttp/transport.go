package fencehttp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
	// long (Lease.Check). 0 still refuses to send when the lease has ended. A GET, HEAD, OPTIONS or TRACE without a body, whose connection is cut,
	// is repeated by net/http without another look.
	Need time.Duration
	// IdempotencyKey returns the key of the job in the context, or "". nil adds no such header. A request that has one is repeated by net/http
	// if its connection is cut: with a body only after another Check, and without a body not at all, for which Base gets the header in lower
	// case.
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
	check := func(which string) error {
		if err := c.Check(t.Need); err != nil {
			return fmt.Errorf("fencehttp: request to %s not sent%s: %w", req.URL.Host, which, err)
		}
		return nil
	}
	if err := check(""); err != nil {
		return nil, err
	}
	out.Header.Set(LockHeader, url.PathEscape(c.Lock()))
	out.Header.Set(TokenHeader, strconv.FormatUint(uint64(c.Token), 10))
	checkRepeats(out, func() error { return check(" again, after its connection was cut") })
	return out, nil
}

// net/http sends a request again by itself if a connection that it has used before is cut before the answer, and the request is a GET, HEAD,
// OPTIONS or TRACE or has an idempotency key. The lease may have ended meanwhile. For another body it asks GetBody; a request without a body it
// just repeats. It knows the key by the canonical spelling of the header, which is the same header to a server in any other.
func checkRepeats(out *http.Request, check func() error) {
	if body := out.GetBody; body != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			if err := check(); err != nil {
				return nil, err
			}
			return body()
		}
	}
	if out.Body != nil && out.Body != http.NoBody {
		return
	}
	switch out.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace: // they change nothing
		return
	}
	for _, name := range []string{IdempotencyHeader, "X-" + IdempotencyHeader} {
		if value, ok := out.Header[name]; ok {
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = value
		}
	}
}
