package httpdrain

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that must happen sooner or later.
const patience = time.Minute

// start binds and serves srv on a free port of the loopback and ends it with
// the test.
func start(t testing.TB, srv *http.Server, cfg Config, opts ...Option) *Server {
	t.Helper()
	if srv.Addr == "" {
		srv.Addr = "127.0.0.1:0"
	}
	if srv.ErrorLog == nil {
		srv.ErrorLog = log.New(io.Discard, "", 0)
	}
	s := New("test", srv, cfg, opts...)
	if err := s.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	serve(t, s)
	return s
}

// serve runs Serve until the end of the test, where it must return nil.
func serve(t testing.TB, s *Server) {
	served := make(chan error, 1)
	base, stop := context.WithCancel(context.Background())
	go func() { served <- s.Serve(base) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		eventually(t, "requests end", func() bool { return s.Stats().InFlight == 0 })
	})
}

// raw is a client by hand: it never retries.
type raw struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func dial(t testing.TB, s *Server) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return newRaw(t, nc)
}

func newRaw(t testing.TB, nc net.Conn) *raw {
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	return &raw{t, nc, bufio.NewReader(nc)}
}

func (c *raw) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// response reads one response with its body.
func (c *raw) response(method string) (*http.Response, string) {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("read response: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("read body: %v", err)
	}
	return res, string(body)
}

// rest reads until the server closes.
func (c *raw) rest() string {
	c.t.Helper()
	all, err := io.ReadAll(c.r)
	if err != nil {
		c.t.Fatalf("read to the end: %v (have %q)", err, all)
	}
	return string(all)
}

const get = "GET / HTTP/1.1\r\nHost: test\r\n\r\n"

// eventually polls for a state that the test cannot be told of.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func receive[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("never: %s", what)
	}
	return v
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
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

func serverTLS() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{certificate()}} }

func dialAddr(t testing.TB, addr string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

// soon returns a context that ends after patience.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
