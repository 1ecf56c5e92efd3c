package fencehttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencetest"
	"github.com/holdlock/holdlock/memhold"
)

// page is a document behind a service.
type page struct {
	url    string
	client http.Client
	marks  fence.Memory

	mu      sync.Mutex
	content string
}

// ServeHTTP keeps the document, and checks the claim again with the write.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c, _ := fence.FromContext(r.Context())
	err := p.marks.Do(c, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.Method == http.MethodPut {
			p.content = string(body)
		}
		_, _ = io.WriteString(w, p.content)
		return nil
	})
	if err != nil {
		w.WriteHeader(http.StatusConflict)
	}
}

func newPage(t *testing.T, fenced bool) *page {
	p := &page{}
	h := http.Handler(p)
	if fenced {
		h = Handler(h, &p.marks, false)
	} else {
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.content = string(body)
		})
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	p.url = s.URL
	p.client.Transport = &Transport{Base: s.Client().Transport}
	return p
}

func (p *page) send(ctx context.Context, method string, c fence.Claim, body string) (string, error) {
	req, err := http.NewRequestWithContext(fence.WithClaim(ctx, c), method, p.url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := Stale(resp); err != nil {
		return "", err
	}
	got, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusConflict {
		err = fence.ErrStale
	}
	return string(got), err
}

func (p *page) Begin(ctx context.Context, c fence.Claim) (string, error) {
	return p.send(ctx, http.MethodGet, c, "")
}

func (p *page) Write(ctx context.Context, c fence.Claim, content string) error {
	_, err := p.send(ctx, http.MethodPut, c, content)
	return err
}

func (p *page) Read(context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.content, nil
}

func TestService(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Resource { return newPage(t, true) })
}

// A holder whose lease has run out and who does not notice is refused by the service; a service without the middleware
// takes the late write.
func TestStaleWriter(t *testing.T) {
	for name, fenced := range map[string]bool{"fenced": true, "unfenced": false} {
		t.Run(name, func(t *testing.T) {
			locks, err := memhold.Open(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Shutdown(context.Background())
			l, err := locks.NewLock("page", &holdlock.LockOptions{TTL: 100 * time.Millisecond, Renew: holdlock.RenewOff})
			if err != nil {
				t.Fatal(err)
			}
			p := newPage(t, fenced)
			paused, err := l.TryAcquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			next, err := l.Acquire(t.Context()) // when the first has run out
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Write(t.Context(), fence.Of(next), "new"); err != nil {
				t.Fatal(err)
			}
			late := fence.Claim{Name: "page", Token: paused.Token()} // it does not look at its lease any more
			err = p.Write(t.Context(), late, "old")
			content, _ := p.Read(t.Context())
			if fenced && (!errors.Is(err, fence.ErrStale) || content != "new") || !fenced && content != "old" {
				t.Errorf("the late write: %v; the page holds %q", err, content)
			}
			if err := p.Write(t.Context(), fence.Of(paused), "old"); !errors.Is(err, holdlock.ErrLost) {
				t.Errorf("with the lease at hand the request is sent: %v, want ErrLost", err)
			}
			_, _ = paused.Release(t.Context()), next.Release(t.Context())
		})
	}
}

type brokenMarks struct{}

func (brokenMarks) Mark(context.Context, fence.Claim) error {
	return errors.New("database password=secret is down")
}

func TestHandlerAnswers(t *testing.T) {
	served := 0
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	var marks fence.Memory
	if err := marks.Mark(t.Context(), fence.Claim{Name: "l", Key: "a b/ü", Token: 100}); err != nil {
		t.Fatal(err)
	}
	lock := url.PathEscape("l/a b/ü")
	for _, c := range []struct {
		name         string
		lock, tokens []string
		marks        fence.Marks
		optional     bool
		want         int
	}{
		{name: "larger", lock: []string{lock}, tokens: []string{"101"}, want: 200},
		{name: "equal", lock: []string{lock}, tokens: []string{"101"}, want: 200},
		{name: "stale", lock: []string{lock}, tokens: []string{"100"}, want: 409},
		{name: "none", want: 428},
		{name: "none, optional", optional: true, want: 200},
		{name: "half, optional", tokens: []string{"9"}, optional: true, want: 400},
		{name: "no token", lock: []string{lock}, want: 400},
		{name: "two tokens", lock: []string{lock}, tokens: []string{"100", "200"}, want: 400},
		{name: "not a number", lock: []string{lock}, tokens: []string{"0x66"}, want: 400},
		{name: "signed", lock: []string{lock}, tokens: []string{"+102"}, want: 400},
		{name: "zero", lock: []string{lock}, tokens: []string{"0"}, want: 400},
		{name: "leading zero", lock: []string{lock}, tokens: []string{"0102"}, want: 400},
		{name: "too large", lock: []string{lock}, tokens: []string{"9007199254740992"}, want: 400},
		{name: "bad escape", lock: []string{"%zz"}, tokens: []string{"102"}, want: 400},
		{name: "empty lock", lock: []string{""}, tokens: []string{"102"}, want: 400},
		{name: "NUL in the lock", lock: []string{"l%00"}, tokens: []string{"102"}, want: 400},
		{name: "marks broken", lock: []string{lock}, tokens: []string{"102"}, marks: brokenMarks{}, want: 503},
	} {
		if c.marks == nil {
			c.marks = &marks
		}
		req := httptest.NewRequest(http.MethodPost, "/", nil)
		req.Header[LockHeader], req.Header[TokenHeader] = c.lock, c.tokens
		w := httptest.NewRecorder()
		before := served
		Handler(next, c.marks, c.optional).ServeHTTP(w, req)
		if w.Code != c.want || (served > before) != (c.want == 200) {
			t.Errorf("%s: %d, served %v; want %d", c.name, w.Code, served > before, c.want)
		}
		if w.Code != 200 && w.Header().Get("Content-Type") != problemType || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: answer %s %s", c.name, w.Header(), w.Body)
		}
	}
}

func TestTransport(t *testing.T) {
	var got http.Header
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer s.Close()
	get := func(ctx context.Context, tr *Transport) error {
		got = nil
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("body"))
		resp, err := tr.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if len(req.Header) > 0 {
			t.Errorf("the caller's request was changed: %v", req.Header)
		}
		return err
	}
	keyed := &Transport{IdempotencyKey: func(context.Context) string { return "l/k" }}
	claimed := fence.WithClaim(t.Context(), fence.Claim{Name: "l", Key: "a\nb", Token: 12})
	if err := get(claimed, keyed); err != nil || got.Get(LockHeader) != "l%2Fa%0Ab" || got.Get(TokenHeader) != "12" ||
		got.Get(IdempotencyHeader) != "l%2Fk" {
		t.Errorf("sent %v, %v", got, err)
	}
	if err := get(t.Context(), &Transport{}); !errors.Is(err, fence.ErrNoClaim) || got != nil {
		t.Errorf("without a claim: %v, sent %v", err, got)
	}
	if err := get(fence.WithClaim(t.Context(), fence.Claim{Name: "l"}), &Transport{Optional: true}); !errors.Is(err, fence.ErrNoClaim) || got != nil {
		t.Errorf("without a token: %v, sent %v", err, got)
	}
	if err := get(t.Context(), &Transport{Optional: true}); err != nil || got == nil || got.Get(TokenHeader) != "" {
		t.Errorf("optional: %v, sent %v", err, got)
	}

	locks, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Shutdown(context.Background())
	l, err := locks.NewLock("l", nil)
	if err != nil {
		t.Fatal(err)
	}
	err = l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
		return get(fence.WithClaim(ctx, fence.Of(lease)), &Transport{Need: time.Hour})
	})
	if !errors.Is(err, holdlock.ErrShort) || got != nil {
		t.Errorf("with too little time: %v, sent %v; want ErrShort and nothing sent", err, got)
	}
}

// A request with an idempotency key, whose connection is cut when its effect is there already: net/http sends it again by itself, which must not
// come without a look at the lease.
func TestConnectionIsCut(t *testing.T) {
	for _, c := range []struct {
		name         string
		method, body string
		base         bool // the request goes to net/http itself, with the header of the caller: the control
		ended        bool // the lease, before the request can be repeated
		sent         int  // requests that the server got
		want         error
	}{
		{name: "control: net/http repeats it", method: http.MethodPost, body: "charge", base: true, ended: true, sent: 2},
		{name: "control: net/http repeats it without a body", method: http.MethodPost, base: true, ended: true, sent: 2},
		{name: "body", method: http.MethodPost, body: "charge", sent: 2},
		{name: "body, lease ended", method: http.MethodPost, body: "charge", ended: true, sent: 1, want: holdlock.ErrReleased},
		{name: "no body", method: http.MethodPost, sent: 1, want: errCut},
		{name: "no body, lease ended", method: http.MethodDelete, ended: true, sent: 1, want: errCut},
		{name: "a read", method: http.MethodGet, sent: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			locks, err := memhold.Open(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Shutdown(context.Background())
			l, err := locks.NewLock("l", nil)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := l.TryAcquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release(context.Background())
			var mu sync.Mutex
			var got []http.Header
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				if r.URL.Path == "/warm" { // the connection has been used before
					return
				}
				mu.Lock()
				got = append(got, r.Header.Clone())
				first := len(got) == 1
				mu.Unlock()
				if !first {
					return
				}
				if c.ended {
					_ = lease.Release(context.Background())
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
			}))
			defer s.Close()
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			var rt http.RoundTripper = &Transport{Base: base, IdempotencyKey: func(context.Context) string { return "k" }}
			if c.base {
				rt = base
			}
			send := func(rt http.RoundTripper, method, path, body string) error {
				var r io.Reader
				if body != "" {
					r = strings.NewReader(body)
				}
				req, err := http.NewRequestWithContext(fence.WithClaim(t.Context(), fence.Of(lease)), method, s.URL+path, r)
				if err != nil {
					t.Fatal(err)
				}
				if c.base {
					req.Header.Set(IdempotencyHeader, "k")
				}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					return err
				}
				_, _ = io.ReadAll(resp.Body)
				return resp.Body.Close()
			}
			if err := send(base, http.MethodGet, "/warm", ""); err != nil {
				t.Fatal(err)
			}
			err = send(rt, c.method, "/", c.body)
			mu.Lock()
			defer mu.Unlock()
			if len(got) != c.sent || (err != nil) != (c.want != nil) || c.want != errCut && !errors.Is(err, c.want) {
				t.Errorf("the server got %d requests, the error is %v; want %d and %v", len(got), err, c.sent, c.want)
			}
			for _, h := range got {
				if h.Get(IdempotencyHeader) != "k" || !c.base && h.Get(TokenHeader) == "" {
					t.Errorf("sent %v", h)
				}
			}
		})
	}
}

// errCut stands for whatever net/http says of a connection that was cut.
var errCut = errors.New("the connection was cut")

// A conflict that is not of this middleware is not taken for one, and its body is left for the caller.
func TestStaleOnlyOurs(t *testing.T) {
	for _, c := range []struct {
		code       int
		kind, body string
	}{
		{409, "text/plain", "busy"},
		{412, problemType, `{"token":"1","seen":"2"}`},
	} {
		resp := &http.Response{StatusCode: c.code, Header: http.Header{"Content-Type": {c.kind}}, Body: io.NopCloser(strings.NewReader(c.body))}
		if err := Stale(resp); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if body, _ := io.ReadAll(resp.Body); string(body) != c.body {
			t.Errorf("%+v: the body was read", c)
		}
	}
	ours := &http.Response{
		StatusCode: 409, Header: http.Header{"Content-Type": {problemType + "; charset=utf-8"}}, // as proxies make it
		Body: io.NopCloser(strings.NewReader(`{"lock":"l","token":"1","seen":"2"}`)),
	}
	var stale *fence.StaleError
	if err := Stale(ours); !errors.As(err, &stale) || stale.Seen != 2 {
		t.Errorf("a refusal with a charset: %v", err)
	}
}
