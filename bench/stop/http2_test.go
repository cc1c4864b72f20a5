package stop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c" //nolint:staticcheck // deprecated, and what servers have
)

// The siege: connections of Go's client, each with some requests in progress at
// all times, which are POSTs that the client cannot send twice.
const (
	siegeConns   = 8
	siegeWorkers = 12
	siegeDelay   = 4 * time.Millisecond // that a request is on its way
	siegeWindow  = 600 * time.Millisecond
)

// siegeStops returns how often each server is replaced; HTTP2_STOPS sets it.
func siegeStops(t *testing.T) int {
	text := os.Getenv("HTTP2_STOPS")
	if text == "" {
		return 2
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// http2Server is a way to serve HTTP/2.
type http2Server struct {
	name  string
	tls   bool
	build func(tb testing.TB, srv *http.Server)
}

var http2Servers = []http2Server{
	{"net-http-tls", true, func(testing.TB, *http.Server) {}},
	{"net-http-clear", false, protocols},
	{"x-net-tls", true, func(tb testing.TB, srv *http.Server) {
		if err := http2.ConfigureServer(srv, new(http2.Server)); err != nil { //nolint:staticcheck // as above
			tb.Fatal(err)
		}
	}},
	{"x-net-clear", false, func(tb testing.TB, srv *http.Server) {
		protocols(tb, srv)
		if err := http2.ConfigureServer(srv, new(http2.Server)); err != nil { //nolint:staticcheck // as above
			tb.Fatal(err)
		}
	}},
	{"h2c-NewHandler", false, func(_ testing.TB, srv *http.Server) {
		srv.Handler = h2c.NewHandler(srv.Handler, new(http2.Server)) //nolint:staticcheck // as above
	}},
}

func protocols(_ testing.TB, srv *http.Server) {
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
}

// run is one way to run a server until stop.
type runner func(tb testing.TB, srv *http.Server, ln net.Listener) (stop func() error)

func http2App(tb testing.TB, srv *http.Server, ln net.Listener) func() error {
	a, err := lifecycle.New(lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
		DrainInterval: siegeWindow,
		GoAwayAfter:   siegeWindow / 4,
		AcceptQuiet:   siegeWindow / 4,
		Linger:        10 * time.Second, // ends when the last connection is gone
	}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	a.Serve("http", srv, lifecycle.WithListener(ln))
	result := make(chan error, 1)
	go func() { result <- a.Run(context.Background()) }()
	<-a.Reached(lifecycle.PhaseRunning)
	return func() error {
		a.Stop(nil)
		err := <-result
		if cut := a.Report().CutRequests; cut != 0 && err == nil {
			err = fmt.Errorf("%d requests cut", cut)
		}
		return err
	}
}

// http2Shutdown returns http.Server.Shutdown after the window.
func http2Shutdown(_ testing.TB, srv *http.Server, ln net.Listener) func() error {
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil && len(srv.TLSConfig.Certificates) > 0 {
			served <- srv.ServeTLS(ln, "", "")
		} else {
			served <- srv.Serve(ln)
		}
	}()
	return func() error {
		time.Sleep(siegeWindow)
		err := srv.Shutdown(context.Background())
		<-served
		return err
	}
}

// Clients that cannot replay their requests lose none with any implementation of HTTP/2,
// and lose some with http.Server.Shutdown: else this test shows nothing.
func TestHTTP2LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("a siege of seven servers: make test-long runs it")
	}
	stops := siegeStops(t)
	for _, kind := range http2Servers {
		t.Run(kind.name, func(t *testing.T) {
			sent, lost, why := siege{kind: kind, run: http2App, stops: stops}.lay(t)
			t.Logf("%d stops, %d requests, %d lost %s", stops, sent, lost, why)
			if lost != 0 || sent == 0 {
				t.Error("requests were lost")
			}
		})
	}
	t.Run("control", func(t *testing.T) {
		sent, lost, why := siege{kind: http2Servers[0], run: http2Shutdown, stops: stops}.lay(t)
		t.Logf("%d stops, %d requests, %d lost %s", stops, sent, lost, why)
		if lost == 0 {
			t.Error("http.Server.Shutdown lost no request: this test shows nothing")
		}
	})
}

// The GOAWAY that IdleTimeout sends loses no request either, even when clients pause for
// as long as the timeout. golang.org/x/net/http2 sends it in one step and loses requests.
// Our first step comes a second earlier, so that a starved client has time to read it.
func TestHTTP2IdleTimeoutLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for many seconds: make test-long runs it")
	}
	for _, kind := range http2Servers {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel() // they sleep most of the time
			sent, lost, why := siege{kind: kind, run: http2App, idle: 2 * time.Second}.lay(t)
			t.Logf("%d requests, %d lost %s", sent, lost, why)
			if lost != 0 && (!strings.HasPrefix(kind.name, "x-net") || lost > sent/20) || sent == 0 {
				t.Error("requests were lost")
			}
		})
	}
}

// siege is one server after the other under clients.
type siege struct {
	kind  http2Server
	run   runner
	stops int // how often the server is replaced
	// idle is the IdleTimeout of the server, if it has one. Clients then pause for about
	// as long, three times, and each has a connection of its own.
	idle time.Duration
}

func (s siege) pause() time.Duration {
	if s.idle > 0 {
		return s.idle - 5*time.Millisecond + mrand.N(10*time.Millisecond)
	}
	return mrand.N(20 * time.Millisecond)
}

// lay replaces the server and counts requests without a response.
func (s siege) lay(t *testing.T) (sent, lost int64, why string) {
	kind, conns, workers := s.kind, siegeConns, siegeWorkers
	if s.idle > 0 {
		conns, workers = conns*workers, 1
	}
	var nSent, nLost, nUnsent atomic.Int64
	var reasons sync.Map
	var addr atomic.Value // of the newest server
	next := func() (stop func() error) {
		srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(mrand.N(5 * time.Millisecond)) // work
			_, _ = io.Copy(w, r.Body)
		})}
		if kind.tls {
			srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate()}}
		}
		srv.IdleTimeout = s.idle
		kind.build(t, srv)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		stop = s.run(t, srv, ln)
		addr.Store(ln.Addr().String())
		return stop
	}
	stop := next()
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range conns {
		transport := &http.Transport{
			Protocols:       new(http.Protocols),
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr.Load().(string))
				if err != nil {
					return nil, err
				}
				return newLateConn(nc), nil
			},
		}
		scheme := "http"
		if transport.Protocols.SetUnencryptedHTTP2(!kind.tls); kind.tls {
			transport.Protocols.SetHTTP2(true)
			scheme = "https"
		}
		client := &http.Client{Transport: transport, Timeout: time.Minute}
		for range workers {
			wg.Go(func() {
				defer transport.CloseIdleConnections()
				for {
					select {
					case <-over:
						return
					case <-time.After(s.pause()):
					}
					switch err := post(client, scheme+"://127.0.0.1/"); {
					case errors.Is(err, errUnsent):
						nUnsent.Add(1)
					case err != nil:
						nLost.Add(1)
						reasons.Store(err.Error(), true)
						fallthrough
					default:
						nSent.Add(1)
					}
				}
			})
		}
	}
	time.Sleep(100 * time.Millisecond)
	if s.idle > 0 {
		time.Sleep(3 * s.idle)
	}
	for range s.stops {
		old := stop
		stop = next() // new connections go there; open ones stay
		if err := old(); err != nil {
			t.Error(err)
		}
	}
	close(over)
	wg.Wait()
	if err := stop(); err != nil {
		t.Error(err)
	}
	why = fmt.Sprintf("(and %d that were not sent)", nUnsent.Load())
	reasons.Range(func(text, _ any) bool { why += "\n" + text.(string); return true })
	return nSent.Load(), nLost.Load(), why
}

// onceBody is read once: net/http sets no GetBody for it.
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

func post(client *http.Client, url string) error {
	once := &onceBody{Reader: strings.NewReader("body")}
	res, err := client.Post(url, "text/plain", once)
	if err != nil {
		if !once.read.Load() && strings.Contains(err.Error(), "net/http: cannot rewind body") {
			return errUnsent
		}
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && (string(body) != "body" || res.ProtoMajor != 2) {
		err = fmt.Errorf("%s: %q", res.Proto, body)
	}
	return err
}

// lateConn sends data some time after it is written, as a network does.
type lateConn struct {
	net.Conn
	sent chan letter

	mu     sync.Mutex
	closed bool
}

type letter struct {
	due  time.Time
	data []byte
}

func newLateConn(nc net.Conn) *lateConn {
	c := &lateConn{Conn: nc, sent: make(chan letter, 4096)}
	go func() {
		for l := range c.sent {
			time.Sleep(time.Until(l.due))
			_, _ = c.Conn.Write(l.data) // the server may be gone
		}
	}()
	return c
}

func (c *lateConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	c.sent <- letter{time.Now().Add(siegeDelay), append([]byte(nil), p...)}
	return len(p), nil
}

func (c *lateConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("closed twice")
	}
	c.closed = true
	close(c.sent)
	return c.Conn.Close()
}

var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})
