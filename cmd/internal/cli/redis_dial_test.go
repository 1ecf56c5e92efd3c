package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// server answers each connection with what it is told to, after each thing that it hears, and then closes it.
func server(t *testing.T, replies ...string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			for _, reply := range replies {
				if _, err := conn.Read(make([]byte, 4096)); err != nil {
					break
				}
				_, _ = io.WriteString(conn, reply)
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// What fails before the server has heard a command has certainly changed nothing, and what answers is named. What fails later
// may have changed something.
func TestFailuresOfTheGreeting(t *testing.T) {
	t.Parallel()
	const hello = "%1\r\n$5\r\nproto\r\n:3\r\n"
	for name, c := range map[string]struct {
		scheme  string
		replies []string
		certain bool
		says    string
	}{
		"closed at once":        {"redis", nil, true, ""},
		"closed without a word": {"redis", []string{""}, true, "without TLS"},
		"HTTP":                  {"redis", []string{"HTTP/1.1 400 Bad Request\r\n\r\n"}, true, "is not Redis"},
		"a TLS port":            {"redis", []string{"\x15\x03\x01\x00\x02\x02\x46"}, true, "is not Redis"},
		"no room":               {"redis", []string{"-ERR max number of clients reached\r\n"}, true, "maxclients"},
		"TLS to a plain port":   {"rediss", []string{"-ERR unknown command\r\n"}, true, "TLS"},
		"TLS, closed":           {"rediss", []string{""}, true, "TLS"},
		"closed at the command": {"redis", []string{hello, ""}, false, "EOF"},
		"no HELLO, then closed": {"redis", []string{"-ERR unknown command 'HELLO'\r\n", ""}, false, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := openStore(fmt.Sprintf("%s://%s", c.scheme, server(t, c.replies...)), "")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, err = d.Acquire(context.Background(), &driver.AcquireRequest{Ref: driver.Ref{Key: "job", Nonce: strings.Repeat("a", 32)}, TTL: time.Minute})
			if err == nil || errors.Is(err, driver.ErrNotApplied) != c.certain || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v; want certain %v, and %q", err, c.certain, c.says)
			}
		})
	}
}
