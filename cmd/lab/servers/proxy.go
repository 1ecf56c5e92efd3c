package servers

import (
	"io"
	"net"
	"sync"
)

// A Proxy is one address in front of a primary, as managed services have: behind it a replica can take over.
type Proxy struct {
	Addr string

	listener net.Listener
	mu       sync.Mutex
	target   string
	conns    map[net.Conn]struct{}
	closed   bool
	running  sync.WaitGroup
}

// StartProxy starts one.
func StartProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: l.Addr().String(), listener: l, target: target, conns: map[net.Conn]struct{}{}}
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(client) })
		}
	})
	return p, nil
}

// Switch sends new connections to another server, and ends those that there are.
func (p *Proxy) Switch(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	p.cut()
}

// Close ends it.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.cut()
	p.mu.Unlock()
	p.running.Wait()
}

// cut is called with mu held.
func (p *Proxy) cut() {
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	if p.closed || target != p.target {
		_, _ = client.Close(), server.Close()
	}
	p.mu.Unlock()
	carry := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // until one of them is closed
		_, _ = to.Close(), from.Close()
	}
	p.running.Go(func() { carry(server, client) })
	carry(client, server)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}
