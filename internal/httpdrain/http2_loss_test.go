package httpdrain

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wire is a network in memory. Data takes latency to arrive, in each direction.
type wire struct {
	latency time.Duration
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newWire(latency time.Duration) *wire {
	return &wire{latency: latency, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case nc := <-w.conns:
		return nc, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error   { w.once.Do(func() { close(w.closed) }); return nil }
func (w *wire) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (w *wire) dial() (net.Conn, error) {
	client, server := net.Pipe()
	near, far := newSlowConn(client, w.latency), newSlowConn(server, w.latency)
	select {
	case w.conns <- far:
		return near, nil
	case <-w.closed:
		near.Close()
		far.Close()
		return nil, errors.New("connection refused")
	}
}

// slowConn delivers the data of each Write after latency.
type slowConn struct {
	net.Conn
	latency time.Duration
	sent    chan parcel

	mu     sync.Mutex
	closed bool
}

type parcel struct {
	due  time.Time
	data []byte
}

func newSlowConn(nc net.Conn, latency time.Duration) *slowConn {
	c := &slowConn{Conn: nc, latency: latency, sent: make(chan parcel, 4096)}
	go func() {
		for p := range c.sent {
			time.Sleep(time.Until(p.due))
			_, _ = c.Conn.Write(p.data) // the other side may be gone
		}
		c.Conn.Close()
	}()
	return c
}

func (c *slowConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	c.sent <- parcel{time.Now().Add(c.latency), append([]byte(nil), p...)}
	return len(p), nil
}

func (c *slowConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.sent)
	}
	return nil
}

func (c *slowConn) SetWriteDeadline(time.Time) error { return nil }
func (c *slowConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }

// siege is a service whose server is replaced again and again under clients that
// cannot send a request twice.
type siege struct {
	proto   string
	stops   int // how often the server is replaced
	conns   int // transports, each with one connection at a time
	workers int // of each transport: streams of its connection
	cfg     Config
	window  time.Duration
	prepare func(*http.Server)
	// open makes a listener and says how to dial it.
	open func() (net.Listener, func() (net.Conn, error))
}

type losses struct {
	sent, lost, unsent atomic.Int64
	cut                int
	dial               atomic.Value // connects to the newest server
	errs               sync.Map     // texts of errors
}

// onceBody can be read only once, since net/http sets no GetBody for it.
type onceBody struct {
	io.Reader
	read atomic.Bool
}

func (b *onceBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.Reader.Read(p)
}

func (*onceBody) Close() error { return nil }

// errUnsent is the error for a request of which the client has sent nothing. Go's
// client fails it when a GOAWAY arrives between its choice of a connection and its
// first byte there (golang/go#62450). A server never hears of such a request.
var errUnsent = errors.New("the client has sent nothing")

func (s siege) server(t testing.TB) (*http.Server, *http.Transport) {
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(rand.N(5 * time.Millisecond)) // work
		_, _ = io.Copy(w, r.Body)
	})}
	srv.Protocols.SetHTTP1(true)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	if s.proto == "https" {
		srv.TLSConfig = serverTLS()
		srv.Protocols.SetHTTP2(true)
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
		transport.Protocols.SetHTTP2(true)
	} else {
		srv.Protocols.SetUnencryptedHTTP2(true)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	if s.prepare != nil {
		s.prepare(srv)
	}
	return srv, transport
}

// serve starts a server, which gets new connections from now on. stop stops it.
func (s siege) serve(t testing.TB, l *losses) (stop func()) {
	t.Helper()
	srv, _ := s.server(t)
	ln, dial := s.open()
	one := New("test", srv, s.cfg, WithListener(ln))
	if err := one.Bind(context.Background()); err != nil {
		t.Error(err)
	}
	served := make(chan error, 1)
	go func() { served <- one.Serve(context.Background()) }()
	l.dial.Store(dial)
	return func() {
		one.BeginDrain(time.Now(), s.window)
		time.Sleep(s.window)
		one.EndWindow()
		if err := one.CloseWhenQuiet(context.Background()); err != nil {
			t.Error(err)
		}
		one.LingerOpen(context.Background())
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cut, err := one.Shutdown(ctx)
		if err != nil {
			t.Error(err)
		}
		l.cut += cut
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// run replaces the server stops times and counts requests without a response.
func (s siege) run(t testing.TB) *losses {
	t.Helper()
	var l losses
	stop := s.serve(t, &l)
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range s.conns {
		_, transport := s.server(t)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return l.dial.Load().(func() (net.Conn, error))()
		}
		client := &http.Client{Transport: transport, Timeout: patience}
		for range s.workers {
			wg.Go(func() {
				defer transport.CloseIdleConnections()
				for !isClosed(over) {
					time.Sleep(rand.N(20 * time.Millisecond)) // thinks
					switch err := s.post(client); {
					case errors.Is(err, errUnsent):
						l.unsent.Add(1)
					case err != nil:
						l.lost.Add(1)
						l.errs.Store(err.Error(), true)
						fallthrough
					default:
						l.sent.Add(1)
					}
				}
			})
		}
	}
	time.Sleep(100 * time.Millisecond)
	for range s.stops {
		old := stop
		stop = s.serve(t, &l) // the endpoint points elsewhere; connections that are open stay
		old()
	}
	close(over)
	wg.Wait()
	stop()
	return &l
}

func (s siege) post(client *http.Client) error {
	once := &onceBody{Reader: strings.NewReader("body")}
	res, err := client.Post(s.proto+"://127.0.0.1/", "text/plain", once)
	if err != nil {
		if !once.read.Load() && strings.Contains(err.Error(), "net/http: cannot rewind body") {
			return errUnsent
		}
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && (string(body) != "body" || res.ProtoMajor != 2) {
		return errors.New(res.Proto + ": " + string(body))
	}
	return err
}

func (l *losses) check(t testing.TB) {
	t.Helper()
	t.Logf("%d requests, %d lost, %d cut, and %d that were not sent", l.sent.Load(), l.lost.Load(), l.cut, l.unsent.Load())
	if l.lost.Load() != 0 || l.cut != 0 || l.sent.Load() == 0 {
		t.Error("requests were lost")
		l.errs.Range(func(text, _ any) bool { t.Log(text); return true })
	}
}

// Clients that cannot replay a request lose none, however many are on their way
// when the server says goodbye.
func TestHTTP2LosesNothing(t *testing.T) {
	stops := 5
	if testing.Short() {
		stops = 2
	}
	for _, proto := range []string{"https", "http"} {
		t.Run(proto, func(t *testing.T) {
			certificate()
			synctest.Test(t, func(t *testing.T) {
				siege{
					proto: proto, stops: stops, conns: 8, workers: 8, window: 400 * time.Millisecond,
					cfg: Config{GoAwayAfter: 100 * time.Millisecond, AcceptQuiet: 100 * time.Millisecond, Linger: 10 * time.Second},
					open: func() (net.Listener, func() (net.Conn, error)) {
						w := newWire(10 * time.Millisecond)
						return w, w.dial
					},
				}.run(t).check(t)
			})
		})
	}
}
