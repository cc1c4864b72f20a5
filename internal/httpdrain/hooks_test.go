package httpdrain

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// namedConn and namedListener are what a user may put around the real ones.
type namedConn struct{ net.Conn }

type namedListener struct{ net.Listener }

func (l namedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &namedConn{nc}, nil
}

// ConnContext and ConnState get the connection that the user's listener has accepted, or
// the TLS connection around it. All calls get the same value: users look at its type and
// use it as a key. Hijack returns a connection of this package, which wraps it.
func TestHooksSeeTheAcceptedConnection(t *testing.T) {
	listen := func(network, address string) net.Listener {
		ln, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	for _, tt := range []struct {
		ln     net.Listener
		tls    bool
		want   string
		hijack bool
		http2  bool
	}{
		{ln: listen("tcp", "127.0.0.1:0"), want: "*net.TCPConn"},
		{ln: listen("tcp", "127.0.0.1:0"), want: "*net.TCPConn", hijack: true},
		{ln: listen("unix", filepath.Join(t.TempDir(), "s")), want: "*net.UnixConn"},
		{ln: namedListener{listen("tcp", "127.0.0.1:0")}, want: "*httpdrain.namedConn"},
		{ln: listen("tcp", "127.0.0.1:0"), want: "*tls.Conn", tls: true},
		{ln: listen("tcp", "127.0.0.1:0"), want: "*tls.Conn", tls: true, hijack: true},
		{ln: listen("tcp", "127.0.0.1:0"), want: "*tls.Conn", tls: true, http2: true},
		{ln: listen("tcp", "127.0.0.1:0"), want: "*net.TCPConn", http2: true},
	} {
		t.Run(fmt.Sprintf("%s hijacked %v HTTP2 %v", tt.want, tt.hijack, tt.http2), func(t *testing.T) {
			var mu sync.Mutex
			var seen []net.Conn
			var states []http.ConnState
			see := func(nc net.Conn) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, nc)
			}
			srv := &http.Server{
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !tt.hijack {
						hello(w, r)
						return
					}
					nc, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer nc.Close()
					if _, is := nc.(*net.TCPConn); is {
						t.Error("Hijack returned the accepted connection: the server would not see its end")
					}
					_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
				}),
				ConnContext: func(ctx context.Context, nc net.Conn) context.Context { see(nc); return ctx },
				ConnState: func(nc net.Conn, state http.ConnState) {
					see(nc)
					mu.Lock()
					defer mu.Unlock()
					states = append(states, state)
				},
			}
			if tt.tls {
				srv.TLSConfig = serverTLS()
			}
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!tt.http2)
			protocols.SetHTTP2(tt.http2)
			protocols.SetUnencryptedHTTP2(tt.http2)
			srv.Protocols = protocols
			s := start(t, srv, Config{}, WithListener(tt.ln))
			transport := &http.Transport{
				Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
				DialContext: func(context.Context, string, string) (net.Conn, error) {
					return net.Dial(tt.ln.Addr().Network(), tt.ln.Addr().String())
				},
			}
			scheme := map[bool]string{true: "https", false: "http"}[tt.tls]
			res, err := (&http.Client{Transport: transport}).Get(scheme + "://127.0.0.1/")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); err != nil || string(body) != "hello" {
				t.Errorf("got %q, %v", body, err)
			}
			transport.CloseIdleConnections()
			last := http.StateClosed
			if tt.hijack {
				last = http.StateHijacked
			}
			eventually(t, "the last state", func() bool { mu.Lock(); defer mu.Unlock(); return slices.Contains(states, last) })
			eventually(t, "the connection leaves", func() bool { st := s.Stats(); return st.Conns+st.Hijacked == 0 })
			mu.Lock()
			defer mu.Unlock()
			for _, nc := range seen {
				if got := fmt.Sprintf("%T", nc); got != tt.want || nc != seen[0] {
					t.Errorf("a hook got a %s, want the one %s", got, tt.want)
				}
			}
			if len(seen) < 4 {
				t.Errorf("%d calls", len(seen))
			}
		})
	}
}

// Below a TLS connection, NetConn leads to the connection that the listener has accepted.
func TestNetConnBelowTLS(t *testing.T) {
	found := make(chan error, 1)
	s := start(t, &http.Server{TLSConfig: serverTLS(), Handler: http.HandlerFunc(hello),
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			for {
				if _, is := nc.(*net.TCPConn); is {
					found <- nil
					return ctx
				}
				below, has := nc.(interface{ NetConn() net.Conn })
				if !has {
					found <- fmt.Errorf("the walk ends at a %T", nc)
					return ctx
				}
				nc = below.NetConn()
			}
		}}, Config{})
	dial(t, s).Close()
	if err := receive(t, "ConnContext", found); err != nil {
		t.Error(err)
	}
}
