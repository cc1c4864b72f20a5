package clients

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// balancer is a balancer of connections, as kube-proxy and the balancers of clouds are:
// it picks a server for each connection when the connection begins, and never moves it.
// It sends all connections to the old server until it notices the stop, and all to the
// new one from then on. That is the worst order: a balancer that shares connections out
// sends fewer to the server that stops.
//
// When the old server refuses connections before the balancer has noticed, the
// balancer's port refuses them too: clients see what they would see without it.
type balancer struct {
	addr string

	mu     sync.Mutex // guards everything that follows
	ln     net.Listener
	target string
	conns  map[net.Conn]bool
	closed bool

	stopping bool // the old server was stopped, and the balancer has not noticed
	late     int  // connections to the old server in that time
	reset    int  // connections that were accepted here and refused by the server

	wg sync.WaitGroup // of goroutines; has its own lock
}

func newBalancer(old string) (*balancer, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{addr: ln.Addr().String(), ln: ln, target: old, conns: make(map[net.Conn]bool)}
	b.wg.Go(func() { b.accept(ln) })
	return b, nil
}

func (b *balancer) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b.wg.Go(func() { b.serve(c) })
	}
}

// serve joins one connection to a server.
func (b *balancer) serve(client net.Conn) {
	b.mu.Lock()
	target := b.target
	if b.stopping {
		b.late++
	}
	b.mu.Unlock()
	backend, err := net.Dial("tcp", target)
	if err != nil {
		b.refuse(target)
		_ = client.(*net.TCPConn).SetLinger(0) // a reset
		client.Close()
		return
	}
	if !b.keep(client, backend) {
		return
	}
	defer b.forget(client, backend)
	var wg sync.WaitGroup
	wg.Go(func() { join(backend, client) })
	wg.Go(func() { join(client, backend) })
	wg.Wait()
}

// join copies until from ends, and ends to in the same way.
func join(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if errors.Is(err, syscall.ECONNRESET) {
		_ = to.(*net.TCPConn).SetLinger(0)
		to.Close()
		return
	}
	_ = to.(*net.TCPConn).CloseWrite()
}

func (b *balancer) keep(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		if b.closed {
			c.Close()
			continue
		}
		b.conns[c] = true
	}
	return !b.closed
}

func (b *balancer) forget(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		delete(b.conns, c)
		c.Close()
	}
}

// refuse closes the port, because target refuses connections.
func (b *balancer) refuse(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reset++
	if b.target == target && b.ln != nil {
		b.ln.Close()
		b.ln = nil
	}
}

// replace stops the old server, and sends new connections to the next one when lag has
// passed.
func (b *balancer) replace(old, next *server, lag time.Duration) error {
	b.mu.Lock()
	b.stopping = true
	b.mu.Unlock()
	if err := old.terminate(); err != nil {
		return err
	}
	time.Sleep(lag)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopping = false
	b.target = next.Addr
	if b.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", b.addr)
	if err != nil {
		return err
	}
	b.ln = ln
	b.wg.Go(func() { b.accept(ln) })
	return nil
}

// counts returns how many connections the old server got after SIGTERM, and how many
// of them it refused although the balancer had accepted them.
func (b *balancer) counts() (late, reset int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.late, b.reset
}

func (b *balancer) close() {
	b.mu.Lock()
	b.closed = true
	if b.ln != nil {
		b.ln.Close()
	}
	for c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
}
