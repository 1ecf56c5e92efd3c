package testenv

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A Proxy stands between a client and a server and does to their bytes what its script says.
type Proxy struct {
	Addr string // where clients connect

	target   string
	listener net.Listener
	mu       sync.Mutex
	script   Script
	conns    map[*link]struct{}
	freed    chan struct{} // closed, and made anew, by Free
	closed   bool
	pumps    sync.WaitGroup
}

// Script decides about each piece of data: up is true on its way to the server. It is called under a lock.
type Script func(up bool, data []byte) Verdict

// Verdict is what happens to a piece of data.
type Verdict uint8

// The verdicts.
const (
	Pass      Verdict = iota
	Drop              // it is never delivered; the connection stays
	Cut               // the connection is closed at once
	LoseReply         // it is delivered; the connection is cut when the server answers
	Hold              // it waits for Free, and all that comes behind it
)

type link struct {
	client, server net.Conn
	doomed         bool // the next answer cuts it; under Proxy.mu
}

// StartProxy puts a proxy in front of an address until the test ends. A nil script lets everything pass.
func StartProxy(tb testing.TB, target string, script Script) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := &Proxy{
		Addr: l.Addr().String(), target: target, listener: l, script: script,
		conns: map[*link]struct{}{}, freed: make(chan struct{}),
	}
	p.pumps.Go(p.accept)
	tb.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		_ = l.Close()
		p.Free()
		p.CutAll()
		p.pumps.Wait()
	})
	return p
}

// SetScript changes what happens to later data. Data that is held stays held.
func (p *Proxy) SetScript(s Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

// Free delivers what is held now.
func (p *Proxy) Free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.freed)
	p.freed = make(chan struct{})
}

// CutAll closes all connections. New ones can be made.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.cut()
	}
}

func (c *link) cut() {
	_ = c.client.Close()
	_ = c.server.Close()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &link{client: client, server: server}
		p.mu.Lock()
		if p.closed {
			c.cut()
		}
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.pumps.Go(func() { p.pump(c, true) })
		p.pumps.Go(func() { p.pump(c, false) })
	}
}

// pump carries the data of one direction.
func (p *Proxy) pump(c *link, up bool) {
	from, to := c.server, c.client
	if up {
		from, to = to, from
	}
	defer func() {
		c.cut()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.carry(c, up, buf[:n], to) {
			return
		}
		if err != nil {
			return
		}
	}
}

// carry delivers one piece, or not, and says whether the connection goes on.
func (p *Proxy) carry(c *link, up bool, data []byte, to io.Writer) bool {
	p.mu.Lock()
	v, freed := Pass, p.freed
	if p.script != nil {
		v = p.script(up, data)
	}
	if !up && c.doomed {
		v = Cut
	}
	if up && v == LoseReply {
		c.doomed = true
	}
	p.mu.Unlock()
	switch v {
	case Drop:
		return true
	case Cut:
		return false
	case Hold:
		<-freed
	}
	_, err := to.Write(data)
	return err == nil
}
