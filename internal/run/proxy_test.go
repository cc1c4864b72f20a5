//go:build unix

package run

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/run/runconfig"
	"github.com/prometheus/client_golang/prometheus"
)

// deafServer serves until it is killed. It does not know of SIGTERM, and it speaks to each
// client until that goes.
func deafServer(addr string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/slow" {
			time.Sleep(10 * time.Second) // until after the window
		}
		fmt.Fprintf(w, "%s %s %s for %s from %s: %s\n", r.Method, r.Host, r.RequestURI, r.Header["X-Forwarded-For"], r.Header.Get("X-Forwarded-Proto"), body)
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(w, "id: %d\ndata: x\n\n", i); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		for { // a text frame for each byte of the client
			b, err := rw.ReadByte()
			if err != nil {
				return
			}
			_, _ = rw.Write([]byte{0x81, 1, b})
			_ = rw.Flush()
		}
	})
	fmt.Println("serving", http.ListenAndServe(addr, mux))
}

// proxied starts a program that knows nothing of SIGTERM behind the proxy, and returns the
// addresses of the proxy and of the health planes.
func proxied(t *testing.T, flags ...string) (c *command, addr, health string) {
	t.Helper()
	addr, own := freeAddr(t), freeAddr(t)
	c = start(t, nil, append([]string{"-lifecycle.health-addr=127.0.0.1:0", "-proxy=http://" + own, "-addr=" + addr}, flags...), "deaf", own)
	health = "http://" + c.address()
	eventually(t, "ready", func() bool { return status(health+"/readyz") == 200 })
	return c, addr, health
}

// What the client has sent is what the program gets, and the answer is the program's.
func TestTheProxyChangesNothing(t *testing.T) {
	c, addr, _ := proxied(t, "-lifecycle.drain-interval=off")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/a%2Fb?x=1;y&z=%zz", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "shop.example"
	req.Header.Set("X-Forwarded-For", "1.2.3.4")
	req.Header.Set("X-Forwarded-Proto", "https")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if want := "POST shop.example /a%2Fb?x=1;y&z=%zz for [1.2.3.4, 127.0.0.1] from https: hello\n"; string(body) != want {
		t.Errorf("the program says %q, want %q", body, want)
	}
	c.signal(syscall.SIGTERM)
	c.wantExit(128 + 15) // the program ended by the signal
}

// A program that dies at SIGTERM on the spot loses no request behind the proxy: not one that
// is in progress, not one on a kept connection, and not one on a new connection while the pod is
// still ready or its clients have not noticed.
func TestTheProxySaysGoodbye(t *testing.T) {
	c, addr, health := proxied(t, "-lifecycle.drain-interval=10s") // clients on a busy machine need seconds to go
	var ready atomic.Bool
	ready.Store(true)
	var clients sync.WaitGroup
	var sent, lost atomic.Int64
	client := func(method string, protocols func(*http.Protocols), isKept bool) {
		p := new(http.Protocols)
		protocols(p)
		tr := &http.Transport{Protocols: p, DisableKeepAlives: !isKept, MaxConnsPerHost: 1}
		defer tr.CloseIdleConnections()
		for ready.Load() {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/", io.NopCloser(strings.NewReader("x")))
			if err != nil {
				t.Error(err)
				return
			}
			sent.Add(1)
			resp, err := tr.RoundTrip(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if err == nil && resp.StatusCode != 200 {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
			if err != nil {
				lost.Add(1)
				t.Errorf("%s, kept %v: %v", method, isKept, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	for range 3 {
		clients.Go(func() { client(http.MethodPost, func(p *http.Protocols) { p.SetHTTP1(true) }, true) })
		clients.Go(func() { client(http.MethodPut, func(p *http.Protocols) { p.SetHTTP1(true) }, false) })
		clients.Go(func() { client(http.MethodPost, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, true) })
	}
	time.Sleep(500 * time.Millisecond)
	c.signal(syscall.SIGTERM)
	eventually(t, "not ready", func() bool { return status(health+"/readyz") != 200 })
	slow := make(chan int, 1)
	time.Sleep(time.Second) // clients that have not noticed yet
	go func() { slow <- status("http://" + addr + "/slow") }()
	time.Sleep(time.Second)
	ready.Store(false)
	clients.Wait()
	if got := <-slow; got != 200 {
		t.Errorf("the request in progress: %d, want 200", got)
	}
	c.wantExit(128 + 15)
	t.Logf("%d of %d lost", lost.Load(), sent.Load())
	if sent.Load() < 100 {
		t.Errorf("only %d requests were sent", sent.Load())
	}
}

// An event stream ends behind an event, and a websocket with the status 1001.
func TestStreamsBehindTheProxyEndWell(t *testing.T) {
	c, addr, _ := proxied(t, "-lifecycle.drain-interval=2s")
	resp, err := http.DefaultTransport.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/events", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer resp.Body.Close()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	upgraded, err := http.ReadResponse(in, nil)
	if err != nil || upgraded.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", upgraded, err)
	}
	_, _ = conn.Write([]byte("a"))
	frame := make([]byte, 3)
	if _, err := io.ReadFull(in, frame); err != nil || !bytes.Equal(frame, []byte{0x81, 1, 'a'}) {
		t.Fatalf("%v %v", frame, err)
	}
	c.signal(syscall.SIGTERM)
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(text), "\n\n") {
		t.Errorf("the stream ended with %v, and its last event is %q", err, string(text[max(0, len(text)-20):]))
	}
	rest, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(rest, goingAway) {
		t.Errorf("the websocket ended with %v, %v", rest, err)
	}
	c.wantExit(128 + 15)
}

// The proxy's address is in the configuration, and so is the program's.
func TestBadProxies(t *testing.T) {
	for flags, says := range map[string]string{
		"-proxy=8000":                   `proxy: "8000" is not http://127.0.0.1:PORT`,
		"-proxy=127.0.0.1:8000":         `proxy: "127.0.0.1:8000" is not http://127.0.0.1:PORT`,
		"-proxy=http://127.0.0.1:8080":  "is where the proxy itself listens",
		"-ready=127.0.0.1:8000":         `ready: "127.0.0.1:8000" is not a check: want http://`,
		"-proxy=http://127.0.0.1":       "is not http://127.0.0.1:PORT",
		"-proxy=http://127.0.0.1:80/a":  "is not http://127.0.0.1:PORT",
		"-proxy=https://127.0.0.1:8000": "is not http://127.0.0.1:PORT",
		"-addr=:8080":                   "no proxy is set",
	} {
		var out bytes.Buffer
		if code := Run(t.Context(), "lifecycle-run", []string{flags, "--", "true"}, nil, &out, &out); code != 78 || !strings.Contains(out.String(), says) {
			t.Errorf("%s: exit status %d, %s", flags, code, out.String())
		}
	}
}

// A request that is unsafe to send twice goes on a connection of its own: the program may close
// an idle one in the moment in which it is sent.
func TestUnsafeRequestsHaveTheirOwnConnections(t *testing.T) {
	var mu sync.Mutex
	conns := map[string][]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		conns[r.Method] = append(conns[r.Method], r.RemoteAddr)
	}))
	defer srv.Close()
	to, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := newProxy("", to, slog.New(slog.DiscardHandler), newCounted(prometheus.NewRegistry())).Handler
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for range 3 {
			proxy.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/", http.NoBody))
		}
	}
	if gets := slices.Compact(conns[http.MethodGet]); len(gets) != 1 {
		t.Errorf("GET has %v, want one connection", gets)
	}
	posts := slices.Compact(slices.Sorted(slices.Values(conns[http.MethodPost])))
	if len(posts) != 3 || slices.Contains(posts, conns[http.MethodGet][0]) {
		t.Errorf("POST has %v, want three connections of its own", posts)
	}
}

// A scrape sees how the requests of the proxy were answered, and which the program did not answer.
func TestRequestsOfTheProxyAreCounted(t *testing.T) {
	addr, gone := freeAddr(t), freeAddr(t)
	c := start(t, nil, []string{
		"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off", "-ready=exec:true", "-proxy=http://" + gone, "-addr=" + addr,
	}, "stubborn")
	health := "http://" + c.address()
	c.await("serving")
	eventually(t, "the proxy", func() bool { return status("http://"+addr) == 502 })
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	ln, err := net.Listen("tcp", gone)
	if err != nil {
		t.Fatal(err)
	}
	srv.Listener.Close()
	srv.Listener = ln
	srv.Start()
	defer srv.Close()
	for range 2 {
		if got := status("http://" + addr); got != http.StatusTeapot {
			t.Errorf("the proxy answers with %d", got)
		}
	}
	_, body := get(health + "/metrics")
	for _, want := range []string{
		`lifecycle_proxy_requests_total{code="502"} 1`, `lifecycle_proxy_requests_total{code="418"} 2`, "lifecycle_proxy_unanswered_total 1",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics has no %s:\n%s", want, body)
		}
	}
}

// gRPC calls need HTTP/2 and trailers up to the program.
func TestTheProxySpeaksHTTP2ToTheProgram(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		fmt.Fprint(w, r.Proto, r.Header.Get("Te"))
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	to, err := runconfig.ParseProxy("h2c" + strings.TrimPrefix(srv.URL, "http"))
	if err != nil {
		t.Fatal(err)
	}
	front := newProxy("127.0.0.1:0", to, slog.New(slog.DiscardHandler), newCounted(prometheus.NewRegistry()))
	ln, err := net.Listen("tcp", front.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = front.Serve(ln) })
	defer served.Wait()
	defer front.Close()
	tr := &http.Transport{Protocols: srv.Config.Protocols}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Te", "trailers")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || string(text) != "HTTP/2.0trailers" || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%q %v, trailers %v", text, err, resp.Trailer)
	}
}

// A stream may end only between its messages, however the reads cut them.
func TestWhereStreamsMayEnd(t *testing.T) {
	long := append([]byte{0x82, 126, 0x01, 0x00}, make([]byte, 256)...)
	huge := append([]byte{0x82, 127, 0, 0, 0, 0, 0, 0, 0, 3}, "abc"...)
	for name, tt := range map[string]struct {
		new   func() boundaries
		parts [][]byte // each a message
	}{
		"events":            {func() boundaries { return new(events) }, [][]byte{[]byte("data: a\n\n"), []byte(": b\n\n"), []byte("data: c\ndata: d\n\n")}},
		"events of Windows": {func() boundaries { return new(events) }, [][]byte{[]byte("data: a\r\n\r\n"), []byte("id: 1\r\ndata: c\r\n\r\n")}},
		"events of old":     {func() boundaries { return new(events) }, [][]byte{[]byte("data: a\r\r"), []byte("data: c\r\r")}},
		"frames":            {func() boundaries { return new(frames) }, [][]byte{{0x81, 0}, {0x81, 2, 'a', 'b'}, long, huge, {0x81, 0x81, 1, 2, 3, 4, 'x'}}},
	} {
		whole := bytes.Join(tt.parts, nil)
		for size := 1; size <= len(whole); size++ {
			draining := make(chan struct{})
			var got bytes.Buffer
			f := newFarewell(io.NopCloser(chunks(whole, size)), tt.new(), []byte("bye"), draining)
			p := make([]byte, 1<<10)
			n, err := f.Read(p)
			got.Write(p[:n])
			close(draining)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(&got, f); err != nil {
				t.Fatal(err)
			}
			f.Close()
			text, isGoodbye := strings.CutSuffix(got.String(), "bye")
			isWhole := text == ""
			for at := 0; len(tt.parts) > 0 && at <= len(whole) && !isWhole; {
				for _, part := range tt.parts {
					at += len(part)
					isWhole = isWhole || text == string(whole[:at])
				}
				break
			}
			if !isGoodbye || !isWhole {
				t.Errorf("%s in parts of %d: it ended as %q", name, size, got.String())
			}
		}
	}
}

// chunks reads a text in parts of that size, and then waits for nothing: it is at its end.
func chunks(text []byte, size int) io.Reader {
	return iotest.DataErrReader(&sized{text, size})
}

type sized struct {
	text []byte
	size int
}

func (s *sized) Read(p []byte) (int, error) {
	if len(s.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.text[:min(s.size, len(s.text))])
	s.text = s.text[n:]
	return n, nil
}

// A stream that is closed, or whose program ends, ends its goroutine.
func TestFarewellEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	f := newFarewell(r, new(events), nil, ctx.Done())
	go func() { _, _ = w.Write([]byte("data: a\n")) }()
	if n, err := f.Read(make([]byte, 100)); n != 8 || err != nil {
		t.Error(n, err)
	}
	w.CloseWithError(io.ErrUnexpectedEOF)
	if _, err := f.Read(make([]byte, 100)); err != io.ErrUnexpectedEOF { //nolint:errorlint // exactly this one
		t.Errorf("the program was cut off, and the stream says %v", err)
	}
	f.Close()
	f = newFarewell(io.NopCloser(neverEnding{}), new(events), nil, ctx.Done())
	f.Close()
	for range 2 {
		if _, err := f.Read(make([]byte, 100)); err != nil {
			break
		}
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }
