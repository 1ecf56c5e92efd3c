package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// A call that fails before the server has heard more than the greeting has certainly done nothing. The client library does not
// tell which failure was of a greeting, so our connections do: then nobody looks for a lock that was never granted, and what
// answers at the port can be named.

// redisDialer makes the connections of our Redis clients, as the library's own dialer does.
func redisDialer(timeout time.Duration, conf *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := redis.NewDialer(&redis.Options{DialTimeout: timeout, TLSConfig: conf})
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			var header tls.RecordHeaderError
			if conf != nil && (errors.Is(err, io.EOF) || !errors.As(err, &header) && strings.Contains(err.Error(), "reset by peer")) {
				err = fmt.Errorf("the TLS handshake with %s: the server closed the connection; it may not speak TLS at this port: %w", addr, err)
			}
			return nil, &ungranted{err}
		}
		g := &greeting{addr: addr}
		if tcp, ok := conn.(*net.TCPConn); ok {
			return &plainConn{tcp, g}, nil
		}
		return &secureConn{conn, g}, nil
	}
}

// ungranted is a failure that has certainly changed nothing. Its text is that of the failure.
type ungranted struct{ error }

func (e *ungranted) Unwrap() []error { return []error{e.error, driver.ErrNotApplied} }

// plainConn shows the library the socket, so that it sees which of its idle connections have ended.
type plainConn struct {
	*net.TCPConn
	g *greeting
}

func (c *plainConn) Write(b []byte) (int, error) { return c.g.write(c.TCPConn, b) }
func (c *plainConn) Read(b []byte) (int, error)  { return c.g.read(c.TCPConn, b) }

type secureConn struct {
	net.Conn
	g *greeting
}

func (c *secureConn) Write(b []byte) (int, error) { return c.g.write(c.Conn, b) }
func (c *secureConn) Read(b []byte) (int, error)  { return c.g.read(c.Conn, b) }

// A greeting is what is known of a connection until its first answer. The library uses a connection from one goroutine at a
// time.
type greeting struct {
	addr     string
	greeted  bool // HELLO was sent,
	answered bool // and answered
	refused  error
	over     bool // something else was sent
}

func (g *greeting) write(conn net.Conn, b []byte) (int, error) {
	if !g.over {
		_, command, _ := bytes.Cut(b, []byte("\r\n"))
		g.over = g.greeted || !bytes.HasPrefix(bytes.ToLower(command), []byte("$5\r\nhello\r\n"))
		g.greeted = true
	}
	n, err := conn.Write(b)
	if err != nil && !g.over {
		err = &ungranted{err}
	}
	return n, err
}

func (g *greeting) read(conn net.Conn, b []byte) (int, error) {
	if g.refused != nil { // the library may look twice
		return 0, g.refused
	}
	n, err := conn.Read(b)
	if g.over || g.answered {
		return n, err
	}
	if n == 0 && err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s closed the connection before its first answer; is this Redis, without TLS at this port (rediss:// for TLS)? %w", g.addr, err)
		}
		return n, &ungranted{err}
	}
	first, _, _ := bytes.Cut(b[:n], []byte("\r\n"))
	switch {
	case n == 0:
		return n, err
	case bytes.HasPrefix(first, []byte("-ERR max number of clients")):
		g.refused = &ungranted{errors.New("the server has no room for another connection (maxclients): " + string(first[1:]))}
	case !strings.ContainsRune("+-:$*_,#!=(~>|%", rune(first[0])):
		g.refused = &ungranted{fmt.Errorf("what answers at %s is not Redis: %.40q", g.addr, first)}
	}
	if g.refused != nil {
		return 0, g.refused
	}
	g.answered = true
	return n, err
}
