package httpdrain

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// relay is an address that leads new connections to the newest server, as a service
// of a cluster does. Connections that are open stay where they are. It counts the
// requests and the responses that pass, which are HTTP/2 without TLS.
type relay struct {
	net.Listener
	target              atomic.Value // of type string
	requests, responses atomic.Int64
	wg                  sync.WaitGroup
}

func newRelay(t testing.TB) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: ln}
	r.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", r.target.Load().(string))
			if err != nil {
				t.Errorf("relay: %v", err)
				in.Close()
				continue
			}
			// With TLS there is nothing to count.
			r.pass(out, in, frames{before: clientPreface}, frameHeaders, &r.requests)
			r.pass(in, out, frames{}, frameData, &r.responses)
		}
	})
	t.Cleanup(func() { ln.Close(); r.wg.Wait() })
	return r
}

// pass copies bytes and counts frames of this kind, one for each stream: the HEADERS of a
// request, or the DATA that ends a response.
func (r *relay) pass(to, from net.Conn, f frames, kind byte, count *atomic.Int64) {
	r.wg.Go(func() {
		defer to.(*net.TCPConn).CloseWrite()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			for p := buf[:n]; len(p) > 0; {
				k, whole := f.advance(p)
				p = p[k:]
				if whole && f.kind() == kind && (kind == frameHeaders || f.flag(flagEndStream)) {
					count.Add(1)
				}
			}
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
}

// underTool runs a program again and again, and replaces the servers behind its address
// meanwhile, until there were enough stops. The program sends POSTs, which the servers
// echo, and fails when one gets no response. Without TLS the test also counts: each
// request must be answered, even when the program does not wait for the response.
func underTool(t *testing.T, proto string, stops int, name string, args func(url string) []string) {
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("there is no %s: install it to run this test", name)
	}
	r := newRelay(t)
	rig := siege{
		proto: proto, window: 300 * time.Millisecond,
		cfg: Config{GoAwayAfter: 100 * time.Millisecond, AcceptQuiet: 50 * time.Millisecond, Linger: 10 * time.Second},
		open: func() (net.Listener, func() (net.Conn, error)) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			r.target.Store(ln.Addr().String())
			return ln, nil
		},
	}
	var l losses
	stop := rig.serve(t, &l)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	program := func() chan error {
		ended := make(chan error, 1)
		cmd := exec.CommandContext(ctx, path, args(proto+"://"+r.Addr().String()+"/")...)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Logf("%v: %v\n%s", cmd.Args, err, out)
			}
			ended <- err
		}()
		return ended
	}
	ended := program()
	for n := 0; n < stops; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			ended = program()
		case <-time.After(100 * time.Millisecond):
			old := stop
			stop = rig.serve(t, &l)
			old()
			n++
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stop()
	r.Close()
	r.wg.Wait()
	requests, responses := r.requests.Load(), r.responses.Load()
	t.Logf("%d stops, %d requests, %d of them without a response, %d cut", stops, requests, requests-responses, l.cut)
	if proto == "http" && requests == 0 || requests != responses || l.cut != 0 {
		t.Error("requests were lost")
	}
}

// Clients that are not written in Go lose nothing either. h2load gives up the rest of its
// requests after a GOAWAY; curl and the client of Node go on with a new connection. (curl
// 7.88 cannot use a connection without TLS twice.)
func TestHTTP2OtherClientsLoseNothing(t *testing.T) {
	stops := 3
	if testing.Short() {
		stops = 1
	}
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, []byte("body"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("h2load", func(t *testing.T) {
		underTool(t, "http", stops, "h2load", func(url string) []string {
			return []string{"-n", "20000", "-c", "16", "-m", "8", "-d", body, url}
		})
	})
	t.Run("curl", func(t *testing.T) {
		underTool(t, "https", stops, "curl", func(url string) []string {
			return []string{"-sSk", "--fail", "--http2", "-o", os.DevNull, "--data-binary", "@" + body, url + "[1-500]"}
		})
	})
	t.Run("curl-parallel", func(t *testing.T) {
		underTool(t, "https", stops, "curl", func(url string) []string {
			return []string{"-sSk", "--fail", "--http2", "-Z", "-o", os.DevNull, "--data-binary", "@" + body, url + "[1-2000]"}
		})
	})
	t.Run("node", func(t *testing.T) {
		underTool(t, "http", stops, "node", func(url string) []string { return []string{"testdata/posts.mjs", url} })
	})
}
