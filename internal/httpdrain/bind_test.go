package httpdrain

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestBindErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tlsTaken := tls.NewListener(taken, serverTLS())
	shut := New("shut", &http.Server{}, Config{})
	if _, err := shut.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		s    *Server
		want []string
	}{
		{New("taken", &http.Server{Addr: taken.Addr().String()}, Config{}), []string{`bind server "taken" to "` + taken.Addr().String() + `"`, "in use"}},
		{New("wrong", &http.Server{Addr: "localhost:wrong"}, Config{}), []string{`"localhost:wrong"`, "unknown port"}},
		{New("tls", &http.Server{}, Config{}, WithListener(tlsTaken)), []string{`server "tls"`, "set TLSConfig", taken.Addr().String()}},
		{shut, []string{"closed"}},
	} {
		err := tt.s.Bind(t.Context())
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	}
}

// A Bind that takes long, as with a slow name server, delays no other call: neither
// BeginDrain nor Stats nor the end of the server, which closes the listener.
func TestBindDoesNotBlock(t *testing.T) {
	for name, end := range map[string]func(s *Server) error{
		"served":   nil,
		"Shutdown": func(s *Server) error { _, err := s.Shutdown(context.Background()); return err },
		"Close":    (*Server).Close,
	} {
		t.Run(name, func(t *testing.T) {
			listening, release := make(chan struct{}), make(chan struct{})
			s := New("test", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(hello)}, Config{})
			s.lc.Control = func(string, string, syscall.RawConn) error { close(listening); <-release; return nil }
			bound, others := make(chan error, 1), make(chan error, 1)
			go func() { bound <- s.Bind(context.Background()) }()
			receive(t, "listen", listening)
			go func() {
				s.BeginDrain(time.Now(), 0)
				if addr := s.Addr(); addr != nil {
					t.Errorf("on %v before it is bound", addr)
				}
				s.Stats()
				var err error
				if end != nil {
					err = end(s)
				} else {
					s.EndWindow()
				}
				others <- err
			}()
			if err := receive(t, "the others while Bind is on its way", others); err != nil {
				t.Error(err)
			}
			close(release)
			err := receive(t, "the end of Bind", bound)
			if end != nil {
				if !errors.Is(err, http.ErrServerClosed) || s.Addr() != nil {
					t.Errorf("bound to %v after the end: %v", s.Addr(), err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			serve(t, s)
			c := dial(t, s)
			c.send(get)
			if res, body := c.response("GET"); body != "hello" || !res.Close {
				t.Errorf("%q, close %v", body, res.Close)
			}
		})
	}
}

// The listener that comes too late is closed.
func TestListenerThatComesAfterTheEndIsClosed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	s := New("test", &http.Server{Addr: addr}, Config{})
	s.lc.Control = func(string, string, syscall.RawConn) error { return s.Close() }
	if err := s.Bind(t.Context()); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the listener is open")
	}
}

// An empty address means the port of the scheme, as net/http has it.
func TestBindDefaultAddress(t *testing.T) {
	for _, tt := range []struct {
		addr    string
		config  *tls.Config
		want    string
		withTLS bool
	}{
		{"", nil, ":http", false},
		{"", &tls.Config{}, ":http", false},
		{"", serverTLS(), ":https", true},
		{"", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }}, ":https", true},
		{"", &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }}, ":https", true},
		{"localhost:1", serverTLS(), "localhost:1", true},
	} {
		if addr, withTLS := listenAddr(&http.Server{Addr: tt.addr, TLSConfig: tt.config}); addr != tt.want || withTLS != tt.withTLS {
			t.Errorf("%q: %s, %v, want %s, %v", tt.addr, addr, withTLS, tt.want, tt.withTLS)
		}
	}
}
