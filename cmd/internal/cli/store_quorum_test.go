//go:build unix

package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

func TestStoresAreSplit(t *testing.T) {
	for _, tt := range []struct {
		given, want []string
	}{
		{nil, nil},
		{[]string{""}, nil},
		{[]string{"sqlite:a b.db"}, []string{"sqlite:a b.db"}},
		{[]string{"redis://a", "redis://b"}, []string{"redis://a", "redis://b"}},
		{[]string{"redis://a  rediss://b\n\tredis://c"}, []string{"redis://a", "rediss://b", "redis://c"}},
		{[]string{"redis://:p w,x@a redis://:q@b"}, []string{"redis://:p w,x@a", "redis://:q@b"}},
		{[]string{"redis+sentinel://a,b/main"}, []string{"redis+sentinel://a,b/main"}},
	} {
		if got := (&globals{Store: tt.given}).stores().URLs; !slices.Equal(got, tt.want) {
			t.Errorf("%q is split into %q, want %q", tt.given, got, tt.want)
		}
	}
}

func TestQuorumRefusesOtherStores(t *testing.T) {
	for _, urls := range [][]string{
		{"redis://a", "sqlite:b"},
		{"redis://a", "redis+sentinel://b/main", "redis://c"},
		{"redis://a", "redis://b"},
		{"redis://a", "redis://a:6379", "redis://b"},
		{"redis://a", "redis://b", "redis://c?plain_keys=true"},
		{"redis://a", "redis://:secret@b:0", "redis://c"},
	} {
		d, err := stores{URLs: urls, MaxTTL: 30 * time.Second}.open(t.Context(), "", time.Second)
		if code, _ := classify(err); err == nil || code != exitUsage {
			t.Errorf("%q: %v, want a usage error", urls, err)
		}
		if err == nil {
			d.Close()
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("a password is shown: %v", err)
		}
	}
}

// hold runs the command and returns its exit code and all it printed.
func hold(args ...string) (int, string) {
	var out bytes.Buffer
	code := Main(args, &out, &out)
	return code, out.String()
}

// The whole command line on three servers, of which one and then two do not answer.
func TestQuorumOnServers(t *testing.T) {
	var servers []*testenv.Redis
	var urls []string
	for range 3 {
		r := testenv.StartRedis(t)
		servers, urls = append(servers, r), append(urls, "redis://"+r.Addr)
	}
	t.Setenv("HOLDLOCK_STORE", strings.Join(urls, " "))
	if code, out := hold("quorum", "init"); code != exitOK || !strings.Contains(out, "3 nodes") {
		t.Fatalf("quorum init: %d, %s", code, out)
	}
	if code, out := hold("quorum", "init"); code != exitUnavailable || !strings.Contains(out, "in use") {
		t.Errorf("quorum init again: %d, %s", code, out)
	}
	if code, out := hold("ls", "--json"); code != exitOK || out != "" {
		t.Errorf("ls of nothing: %d, %s", code, out)
	}
	d, err := (&globals{Store: urls, QuorumMaxTTL: 30 * time.Second}).openDriver()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	grant, err := d.Acquire(t.Context(), cliRequest("job/7"))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"ls", "--json"},
		{"inspect", "job/7", "--json"},
		{"inspect", "job/7", "--json", "--store", urls[2], "--store", urls[0], "--store", urls[1]},
	} {
		if code, out := hold(args...); code != exitOK || !strings.Contains(out, fmt.Sprintf(`"token":"%d"`, grant.Token)) {
			t.Errorf("%v: %d, %s", args, code, out)
		}
	}
	// Other members are another quorum.
	if code, out := hold("run", "x", "--store", urls[0], "--store", urls[1], "--store", "redis://127.0.0.1:1", "--", "true"); code != exitUnavailable ||
		!strings.Contains(out, "belongs to a quorum of 3 nodes") {
		t.Errorf("with another list of nodes: %d, %s", code, out)
	}
	servers[0].Freeze(t)
	if code, out := hold("break", "job/7", "--token", fmt.Sprint(grant.Token), "--reason", "test", "--now"); code != exitOK {
		t.Errorf("break with one node frozen: %d, %s", code, out)
	}
	if code, out := hold("inspect", "job/7", "--json"); code != exitOK || !strings.Contains(out, `"free"`) {
		t.Errorf("inspect after break: %d, %s", code, out)
	}
	servers[1].Kill()
	if code, out := hold("ls", "--timeout", "2s"); code != exitUnavailable || !strings.Contains(out, "unreachable (1 of 3 answered, 2 needed)") {
		t.Errorf("ls with two nodes down: %d, %s", code, out)
	}
}

func cliRequest(key string) *driver.AcquireRequest {
	return &driver.AcquireRequest{Ref: driver.Ref{Key: key, Nonce: "0123456789abcdef0123456789abcdef"}, TTL: 20 * time.Second}
}

// A node gets a fifth of what a call may take, so that --timeout helps where servers are far away.
func TestNodesGetTheirShareOfTheTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		30 * time.Second: 6 * time.Second, 5 * time.Second: time.Second, 500 * time.Millisecond: time.Second,
	} {
		if got := (stores{}).options("ns", timeout).NodeTimeout; got != want {
			t.Errorf("--timeout %s: a node gets %s, want %s", timeout, got, want)
		}
	}
}
