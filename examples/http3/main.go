// Command http3 serves HTTP/3 beside HTTP/2 and HTTP/1.1, on one port, and stops all of
// them without a lost request:
//
//	go run ./examples/http3
//	curl --http3-only -k https://127.0.0.1:8443/   # a curl with HTTP/3
//	curl -k https://127.0.0.1:8443/                # its answer offers HTTP/3 (Alt-Svc)
//
// Ctrl-C shows the stop.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8443", "where to listen, on TCP and UDP")
	flag.Parse()
	lifecycle.Main(func() error { return run(*addr) })
}

func run(addr string) error {
	app, _, err := newApp(lifecycle.Config{}, addr)
	if err != nil {
		return err
	}
	return app.Run(context.Background())
}

// newApp returns an App that serves on addr, and the address that it has on UDP.
func newApp(cfg lifecycle.Config, addr string, opts ...lifecycle.Option) (*lifecycle.App, net.Addr, error) {
	app, err := lifecycle.New(cfg, opts...)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := selfSigned()
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", hello)
	mux.HandleFunc("/events", events)
	over3 := &http3.Server{
		Handler: mux, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: certificate}),
		// An App sees no QUIC. This is how Draining works in the handlers.
		ConnContext: func(ctx context.Context, _ *quic.Conn) context.Context { return app.CallContext(ctx, "http3") },
	}
	overTCP := &http.Server{Addr: addr, TLSConfig: &tls.Config{Certificates: certificate},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = over3.SetQUICHeaders(w.Header()) // an error before it listens
			mux.ServeHTTP(w, r)
		})}
	app.Serve("https", overTCP)
	serveHTTP3(app, "http3", over3, udp)
	return app, udp.LocalAddr(), nil
}

// serveHTTP3 adds srv as a unit that serves on udp. It serves everything through the
// drain window. Then it sends GOAWAY on each connection (RFC 9114, 5.2), waits for the
// requests in flight, and closes udp. A request that was on its way then is rejected
// unread, and its client sends it again elsewhere. A client that cannot send its body
// again (a POST without GetBody) loses the request: quic-go sends one GOAWAY with the
// final stream id, where RFC 9114 advises a first one without a limit.
func serveHTTP3(app *lifecycle.App, name string, srv *http3.Server, udp net.PacketConn) {
	drained := make(chan error, 1)
	app.Actor(name, func() error {
		err := srv.Serve(udp)
		if !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return <-drained // Serve returns when Shutdown begins, and not when it ends
	}, func(error) {
		// A second less than the App waits for its units, so that they do not end late.
		ctx, cancel := context.WithTimeout(context.Background(), max(app.Config().UnitSlice-time.Second, time.Second))
		defer cancel()
		err := srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("requests were in flight when their time was over")
		}
		drained <- errors.Join(err, udp.Close())
	})
}

func hello(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = fmt.Fprintf(w, "hello over %s\n", r.Proto)
}

// events has no end. It says goodbye when the App drains, and the client connects again.
func events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "retry: 1000\ndata: hello\n\n")
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	select {
	case <-lifecycle.Draining(r.Context()):
		_, _ = io.WriteString(w, "event: goodbye\ndata:\n\n")
	case <-r.Context().Done():
	}
}

// selfSigned makes a certificate for this machine that lasts a day.
func selfSigned() ([]tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, nil
}
