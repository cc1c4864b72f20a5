package kube

import (
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// serviceAccount writes the files of a service account.
func serviceAccount(t *testing.T, token string, ca []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{"token": token + "\n", "namespace": "demo", "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// In a pod nothing has to be configured, and a token that the kubelet has replaced is
// used from the next request on.
func TestClientInAPod(t *testing.T) {
	var token atomic.Value
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token.Store(r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(`{"metadata":{},"spec":{"holderIdentity":"rival"}}`))
	}))
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	dir := serviceAccount(t, "first", ca)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	t.Setenv("POD_NAME", "web-1")
	c, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Namespace() != "demo" || c.Pod() != "web-1" {
		t.Errorf("pod %s/%s", c.Namespace(), c.Pod())
	}
	l := newLease(t, c)
	for _, want := range []string{"first", "second"} {
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if who, err := l.Holder(t.Context()); who != "rival" || err != nil || token.Load() != "Bearer "+want {
			t.Errorf("held by %q, %v, with %v", who, err, token.Load())
		}
	}
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Holder(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a token: %v", err)
	}
}

// An authority that the kubelet has replaced is used from the next connection on.
func TestClientFollowsTheAuthority(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"metadata":{},"spec":{"holderIdentity":"rival"}}`))
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	dir := serviceAccount(t, "secret", []byte(otherCA))
	c, err := New(Config{Host: srv.URL, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := newLease(t, c)
	if _, err := l.Holder(t.Context()); err == nil {
		t.Error("the first authority is not the server's, and there is no error")
	}
	file := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if who, err := l.Holder(t.Context()); who != "rival" || err != nil {
		t.Errorf("with the server's authority: held by %q, %v", who, err)
	}
	c.Close()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Holder(t.Context()); err == nil || !strings.Contains(err.Error(), "ca.crt has no certificate in PEM form") {
		t.Errorf("without an authority: %v", err)
	}
}

// Each failure of a kind has the same text, so that a log has it once: the port of
// this side is not in it.
func TestClientErrorsAreStable(t *testing.T) {
	for name, fault := range map[string]func(w http.ResponseWriter){
		"reset": func(http.ResponseWriter) {},
		"reset in the answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fault(w)
				nc, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = nc.(*net.TCPConn).SetLinger(0) // a reset, and no FIN
				_ = nc.Close()
			}))
			defer srv.Close()
			c, err := New(Config{Host: srv.URL, Dir: serviceAccount(t, "secret", nil)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l, said := newLease(t, c), ""
			for i := range 3 {
				_, err := l.Holder(t.Context())
				if err == nil || !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("%v, want a reset", err)
				}
				if i > 0 && err.Error() != said {
					t.Errorf("the text changes from %q to %q", said, err)
				}
				said = err.Error()
			}
		})
	}
}

// A server whose certificate another authority has signed gets no token.
func TestClientTrustsOneAuthority(t *testing.T) {
	asked := false
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	c, err := New(Config{Host: srv.URL, Dir: serviceAccount(t, "secret", []byte(otherCA))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := newLease(t, c).Holder(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") || asked {
		t.Errorf("asked %v: %v", asked, err)
	}
}

func TestClientConfigIsChecked(t *testing.T) {
	good := serviceAccount(t, "secret", []byte(otherCA))
	for name, tt := range map[string]struct {
		cfg  Config
		says string
	}{
		"host without a scheme": {Config{Host: "10.0.0.1:443", Dir: good}, "want https://HOST:PORT"},
		"host with a path":      {Config{Host: "https://api/v1", Dir: good}, "want https://HOST:PORT"},
		"another scheme":        {Config{Host: "ftp://api", Dir: good}, "want https://HOST:PORT"},
		"no authority":          {Config{Host: "https://api", Dir: good, CA: []byte("x")}, "no certificate"},
		"negative timeout":      {Config{Timeout: -time.Second}, "Timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			if c, err := New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.says) || c != nil {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

// A pod without a token, or with a broken one, runs: its requests say what is missing.
func TestClientWithoutAnAccount(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(dir string) error
		says   string
	}{
		"no token":       {func(dir string) error { return os.Remove(filepath.Join(dir, "token")) }, "the service account's token: open "},
		"an empty token": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "token"), []byte("\n"), 0o600) }, "token is empty"},
		"no namespace":   {func(dir string) error { return os.Remove(filepath.Join(dir, "namespace")) }, "automountServiceAccountToken"},
		"no certificate": {func(dir string) error { return os.Remove(filepath.Join(dir, "ca.crt")) }, "the API server's authority: open "},
		"an empty one":   {func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600) }, "ca.crt has no certificate in PEM form"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := serviceAccount(t, "secret", []byte(otherCA))
			if err := tt.damage(dir); err != nil {
				t.Fatal(err)
			}
			c, err := New(Config{Host: "https://api", Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			l := newLease(t, c)
			if granted, err := l.Acquire(t.Context()); granted != 0 || err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("granted %v, %v, want an error that says %q", granted, err, tt.says)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// otherCA is a valid certificate that has signed no other here.
const otherCA = `-----BEGIN CERTIFICATE-----
MIIBhTCCASugAwIBAgIQIRi6zePL6mKjOipn+dNuaTAKBggqhkjOPQQDAjASMRAw
DgYDVQQKEwdBY21lIENvMB4XDTE3MTAyMDE5NDMwNloXDTE4MTAyMDE5NDMwNlow
EjEQMA4GA1UEChMHQWNtZSBDbzBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABD0d
7VNhbWvZLWPuj/RtHFjvtJBEwOkhbN/BnnE8rnZR8+sbwnc/KhCk3FhnpHZnQz7B
5aETbbIgmuvewdjvSBSjYzBhMA4GA1UdDwEB/wQEAwICpDATBgNVHSUEDDAKBggr
BgEFBQcDATAPBgNVHRMBAf8EBTADAQH/MCkGA1UdEQQiMCCCDmxvY2FsaG9zdDo1
NDUzgg4xMjcuMC4wLjE6NTQ1MzAKBggqhkjOPQQDAgNIADBFAiEA2zpJEPQyz6/l
Wf86aX6PepsntZv2GYlA5UpabfT2EZICICpJ5h/iI+i341gBmLiAFQOyTDT+/wQc
6MF9+Yw1Yy0t
-----END CERTIFICATE-----
`

// A server that accepts connections and does no more costs one connection at a time.
func TestClientLeavesNoDials(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted []net.Conn
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			accepted = append(accepted, nc)
		}
	}()
	c, err := New(Config{Host: "https://" + ln.Addr().String(), Dir: serviceAccount(t, "secret", []byte(otherCA)), Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l := newLease(t, c)
	for range 5 {
		if _, err := l.Holder(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer in 50ms") {
			t.Errorf("%v", err)
		}
	}
	_ = ln.Close()
	<-ended
	for i, nc := range accepted {
		_ = nc.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d of %d is still open", i+1, len(accepted))
		}
		_ = nc.Close()
	}
}
