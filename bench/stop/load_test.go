package stop

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/internal/rawhttp"
)

// timing is one replacement: everything else follows from it. The steps have the same
// proportions as in a cluster, but are shorter: otherwise a run would take an hour.
type timing struct {
	warm        time.Duration // load before the stop
	propagation time.Duration // from the stop until no new connection comes to the old server
	window      time.Duration // that the server is given to wait for that
	idle        time.Duration // longest pause of a keep-alive client: longer than the window
	handler     time.Duration // what a request takes
}

func times() timing {
	t := timing{
		warm:        500 * time.Millisecond,
		propagation: 700 * time.Millisecond,
		window:      time.Second,
		idle:        1600 * time.Millisecond,
		handler:     5 * time.Millisecond,
	}
	if testing.Short() {
		for _, d := range []*time.Duration{&t.warm, &t.propagation, &t.window, &t.idle} {
			*d /= 4
		}
	}
	return t
}

const (
	keepAliveClients = 200
	freshClients     = 8
	freshPause       = 10 * time.Millisecond
)

// service is the address that clients know. Connections go to the old server
// until the cluster has noticed that it goes, and to its successor from then
// on.
type service struct {
	old, successor string
	moved          atomic.Bool
}

func (s *service) dial() (net.Conn, error) {
	addr := s.old
	if s.moved.Load() {
		addr = s.successor
	}
	return net.DialTimeout("tcp", addr, 10*time.Second)
}

// account is what happened to requests. Nothing is ever sent twice: a request
// is answered or it is lost.
type account struct {
	answered  atomic.Int64
	lostFresh atomic.Int64 // of clients that open a connection for each
	lostAlive atomic.Int64 // of clients that keep theirs
}

var (
	keepAlive = []byte("POST / HTTP/1.1\r\nHost: service\r\nContent-Length: 4\r\n\r\nwork")
	oneShot   = []byte("POST / HTTP/1.1\r\nHost: service\r\nConnection: close\r\nContent-Length: 4\r\n\r\nwork")
)

// load sends requests until stop is closed, and returns when every client has
// ended.
func load(s *service, t timing, acc *account, stop <-chan struct{}) {
	var wg sync.WaitGroup
	for range freshClients {
		wg.Go(func() {
			for pause(freshPause, stop) {
				if fresh(s) != nil {
					acc.lostFresh.Add(1)
				} else {
					acc.answered.Add(1)
				}
			}
		})
	}
	for range keepAliveClients {
		wg.Go(func() {
			var c client
			defer c.close()
			for pause(rand.N(t.idle), stop) {
				if c.request(s) != nil {
					acc.lostAlive.Add(1)
				} else {
					acc.answered.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

// pause waits, and reports false when it is time to end.
func pause(d time.Duration, stop <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}

// fresh sends one request over a connection of its own.
func fresh(s *service) error {
	nc, err := s.dial()
	if err != nil {
		return err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
	return rawhttp.New(nc).Do(oneShot)
}

// client keeps its connection for as long as the server lets it.
type client struct {
	nc net.Conn
	c  *rawhttp.Conn
}

// request sends one request. Like any pool of connections, it first replaces a connection
// that the server has closed while it was idle. A request on a connection that fails is
// lost.
func (c *client) request(s *service) error {
	if c.nc != nil && c.gone() {
		c.close()
	}
	if c.nc == nil {
		nc, err := s.dial()
		if err != nil {
			return err
		}
		c.nc, c.c = nc, rawhttp.New(nc)
	}
	_ = c.nc.SetDeadline(time.Now().Add(10 * time.Second))
	err := c.c.Do(keepAlive)
	if err != nil || c.c.Closes() {
		c.close()
	}
	return err
}

// gone reports whether the server has closed the connection. From an idle connection only
// its end can be read.
func (c *client) gone() bool {
	_ = c.nc.SetReadDeadline(time.Now().Add(200 * time.Microsecond))
	var p [1]byte
	_, err := c.nc.Read(p[:])
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (c *client) close() {
	if c.nc != nil {
		c.nc.Close()
		c.nc = nil
	}
}
