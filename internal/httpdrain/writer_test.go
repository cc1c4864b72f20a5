package httpdrain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

var connectionLine = regexp.MustCompile(`(?im)^connection:.*\r$`)

// shape is a handler, a request to it, and what is on the wire.
type shape struct {
	name    string
	request string
	handler http.HandlerFunc
	status  string // of the final response
	keep    bool   // the final response says nothing about closing
	body    string // the text after the final header, when it matters
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

func shapes() []shape {
	post := func(length int, extra string) string {
		return fmt.Sprintf("POST / HTTP/1.1\r\nHost: test\r\n%sContent-Length: %d\r\n\r\n", extra, length)
	}
	return []shape{
		{name: "writes", handler: hello, body: "hello"},
		{name: "writes nothing", handler: func(http.ResponseWriter, *http.Request) {}},
		{name: "writes a status", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, status: "404"},
		{name: "writes a string", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.(io.StringWriter).WriteString("hello")
		}, body: "hello"},
		{name: "only flushes", handler: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }},
		{name: "flushes through a controller", handler: func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
		}},
		{name: "sets deadlines through a controller", handler: func(w http.ResponseWriter, _ *http.Request) {
			rc := http.NewResponseController(w)
			if err := errors.Join(rc.SetReadDeadline(time.Now().Add(patience)), rc.SetWriteDeadline(time.Now().Add(patience)), rc.EnableFullDuplex()); err != nil {
				panic(err)
			}
		}},
		{name: "reads from", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("hello"))
		}, body: "hello"},
		{name: "reads from much", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			_, _ = io.Copy(w, bytes.NewReader(make([]byte, 100000)))
		}, body: strings.Repeat("\x00", 100000)},
		{name: "sets close", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
			hello(w, r)
		}, body: "hello"},
		{name: "adds keep-alive", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Connection", "keep-alive")
			w.Header().Add("Connection", "X-Hop")
			hello(w, r)
		}, body: "hello"},
		{name: "adds close among others", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "X-Hop, close")
			hello(w, r)
		}, body: "hello"},
		{name: "deletes it before", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Del("Connection")
			hello(w, r)
		}, body: "hello"},
		{name: "deletes it after", handler: func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			w.WriteHeader(200)
			h.Del("Connection")
			h.Set("Connection", "keep-alive")
			hello(w, r)
		}, body: "hello"},
		{name: "clears all headers", handler: func(w http.ResponseWriter, r *http.Request) {
			clear(w.Header())
			hello(w, r)
		}, body: "hello"},
		{name: "copies an upstream's headers", handler: func(w http.ResponseWriter, r *http.Request) {
			for k, v := range (http.Header{"Connection": {"keep-alive", "close"}, "X-Up": {"1"}}) {
				w.Header()[k] = v
			}
			hello(w, r)
		}, body: "hello"},
		{name: "http.Error", handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 503) }, status: "503", body: "no\n"},
		{name: "http.Redirect", handler: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/else", 302) }, status: "302"},
		{name: "ServeContent", handler: func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Time{}, strings.NewReader("hello"))
		}, body: "hello"},
		{name: "ServeContent range", request: "GET / HTTP/1.1\r\nHost: test\r\nRange: bytes=1-2\r\n\r\n", handler: func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Time{}, strings.NewReader("hello"))
		}, status: "206", body: "el"},
		{name: "TimeoutHandler", handler: http.TimeoutHandler(http.HandlerFunc(hello), patience, "late").ServeHTTP, body: "hello"},
		{name: "104 then 103 then 200", handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(104)
			w.Header().Set("Link", "</a.css>")
			w.WriteHeader(103)
			hello(w, r)
		}, body: "hello"},
		{name: "an empty copy, then an error", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, strings.NewReader(""))
			http.Error(w, "no", http.StatusBadGateway)
		}, status: "502", body: "no\n"},
		{name: "superfluous status", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			w.WriteHeader(500)
		}},
		{name: "204", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, status: "204"},
		{name: "304", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, status: "304"},
		{name: "HEAD", request: "HEAD / HTTP/1.1\r\nHost: test\r\n\r\n", handler: hello},
		{name: "HTTP/1.0", request: "GET / HTTP/1.0\r\n\r\n", handler: hello, body: "hello"},
		{name: "HTTP/1.0 keep-alive", request: "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", handler: hello, body: "hello"},
		{name: "HTTP/1.0 keep-alive echoed", request: "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "keep-alive")
			w.Header().Set("Content-Length", "5")
			hello(w, r)
		}, body: "hello"},
		{name: "client closes", request: "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", handler: hello, body: "hello"},
		{name: "chunked with trailer", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			hello(w, r)
			w.(http.Flusher).Flush()
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"Connection", "keep-alive")
		}, body: "5\r\nhello\r\n0\r\nConnection: keep-alive\r\nX-Sum: 1\r\n\r\n"},
		{name: "identity", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Transfer-Encoding", "identity")
			hello(w, r)
		}, body: "hello"},
		{name: "100-continue read", request: post(4, "Expect: 100-continue\r\n") + "body", handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		}, body: "body"},
		{name: "100-continue refused", request: post(4, "Expect: 100-continue\r\n") + "body", handler: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no", 413)
		}, status: "413", body: "no\n"},
		{name: "unknown expectation", request: post(0, "Expect: a-miracle\r\n"), handler: hello, status: "417"},
		{name: "body not read", request: post(4, "") + "body", handler: hello, body: "hello"},
		{name: "large body not read", request: post(1<<20, "") + strings.Repeat("x", 1<<20), handler: hello, body: "hello"},
		{name: "body over its limit", request: post(1<<20, "") + strings.Repeat("x", 1<<20), handler: func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 10)); err != nil {
				http.Error(w, "too large", 413)
			}
		}, status: "413", body: "too large\n"},
		{name: "101 by status", request: "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "x")
			w.WriteHeader(101)
			nc, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer nc.Close()
			_, _ = rw.WriteString("x!")
			_ = rw.Flush()
		}, status: "101", keep: true, body: "x!"},
		{name: "101 by hand", request: "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", handler: func(w http.ResponseWriter, _ *http.Request) {
			nc, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer nc.Close()
			_, _ = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nx!")
		}, status: "101", keep: true, body: "x!"},
		{name: "hijack after a flush", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.(http.Flusher).Flush()
			nc, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer nc.Close()
			_, _ = io.WriteString(nc, "hello")
		}, body: "hello"},
	}
}

// Every response to a request that arrives after T0 closes its connection and
// says so in exactly one header, except informational responses and 101. Its
// status and its body come from the handler.
func TestResponsesSayClose(t *testing.T) {
	for _, tt := range shapes() {
		t.Run(tt.name, func(t *testing.T) {
			if tt.request == "" {
				tt.request = get
			}
			if tt.status == "" {
				tt.status = "200"
			}
			s := start(t, &http.Server{Handler: tt.handler}, Config{})
			s.BeginDrain(time.Now(), time.Hour)
			c := dial(t, s)
			c.send(tt.request)
			wire := c.rest()

			informational, final := "", wire
			for strings.HasPrefix(final, "HTTP/1.1 1") && !strings.HasPrefix(final, "HTTP/1.1 101") {
				i := strings.Index(final, "\r\n\r\n") + 4
				informational, final = informational+final[:i], final[i:]
			}
			if connectionLine.MatchString(informational) {
				t.Errorf("an informational response has a Connection header:\n%s", informational)
			}
			head, body, _ := strings.Cut(final, "\r\n\r\n")
			head += "\r\n"
			if status := strings.Fields(head)[1]; status != tt.status {
				t.Errorf("status %s, want %s", status, tt.status)
			}
			want := []string{"Connection: close\r"}
			if tt.keep {
				want = []string{"Connection: Upgrade\r"}
			}
			if got := connectionLine.FindAllString(head, -1); strings.Join(got, "|") != strings.Join(want, "|") {
				t.Errorf("connection headers %q, want %q in\n%s", got, want, head)
			}
			if tt.body != "" && body != tt.body {
				t.Errorf("body %.200q, want %.200q", body, tt.body)
			}
			eventually(t, "connection leaves", func() bool { st := s.Stats(); return st.Conns+st.Hijacked == 0 && st.InFlight == 0 })
		})
	}
}

// Before T0 a handler gets net/http's own writer and the wire is untouched.
func TestResponsesBeforeDrainAreUntouched(t *testing.T) {
	drop := regexp.MustCompile(`(?m)^Date:.*\r\n`)
	for _, tt := range shapes() {
		t.Run(tt.name, func(t *testing.T) {
			if tt.request == "" {
				tt.request = get
			}
			// The idle timeout ends the connection, so that the client can read
			// to the end without closing its side, which a handler would see.
			exchange := func(addr string) string {
				c := newRaw(t, dialAddr(t, addr))
				c.send(tt.request)
				return drop.ReplaceAllString(c.rest(), "")
			}
			s := start(t, &http.Server{Handler: tt.handler, IdleTimeout: 20 * time.Millisecond}, Config{})
			plain := httptest.NewUnstartedServer(tt.handler)
			plain.Config.IdleTimeout = 20 * time.Millisecond
			plain.Config.ErrorLog = s.srv.ErrorLog
			plain.Start()
			defer plain.Close()
			if got, want := exchange(s.Addr().String()), exchange(plain.Listener.Addr().String()); got != want {
				t.Errorf("got\n%.500s\nwant\n%.500s", got, want)
			}
		})
	}
}

// A second request in the same packet arrives after a response that closes:
// the first is answered in full, the other is not (RFC 9112, 9.6).
func TestPipelinedRequestsAfterDrain(t *testing.T) {
	var served int
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served++
		hello(w, r)
	})}, Config{})
	c := dial(t, s)
	s.BeginDrain(time.Now(), time.Hour)
	c.send(get + get + get)
	if wire := c.rest(); strings.Count(wire, "HTTP/1.1 200 OK") != 1 || !strings.HasSuffix(wire, "hello") {
		t.Errorf("got %q", wire)
	}
	if served != 1 {
		t.Errorf("%d requests served", served)
	}
}

// A pipelined request that was behind one from before T0 is answered, and its
// response says close.
func TestPipelinedRequestsAcrossDrain(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			close(entered)
			<-release
		}
		hello(w, r)
	})}, Config{})
	c := dial(t, s)
	c.send("GET /first HTTP/1.1\r\nHost: test\r\n\r\n" + get)
	receive(t, "first request", entered)
	s.BeginDrain(time.Now(), time.Hour)
	close(release)
	if res, _ := c.response("GET"); res.Close {
		t.Error("a request from before T0 says close")
	}
	if res, body := c.response("GET"); !res.Close || body != "hello" {
		t.Errorf("close %v, body %q", res.Close, body)
	}
}

// Panics abort the response and keep the counts right.
func TestPanicsKeepCounts(t *testing.T) {
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		for _, draining := range []bool{false, true} {
			s := start(t, &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(value) })}, Config{})
			if draining {
				s.BeginDrain(time.Now(), time.Hour)
			}
			c := dial(t, s)
			c.send(get)
			if wire := c.rest(); wire != "" {
				t.Errorf("panic(%v): got %q", value, wire)
			}
			eventually(t, "counts are back", func() bool { st := s.Stats(); return st.InFlight == 0 && st.Conns == 0 })
			if st := s.Stats(); st.Accepted != 1 || st.LastArrival.IsZero() {
				t.Errorf("stats %+v", st)
			}
		}
	}
}

// A writer that is not net/http's own has no connection to close: the handler gets
// it unchanged.
func TestForeignWriterIsPassedOn(t *testing.T) {
	srv := &http.Server{Handler: http.HandlerFunc(hello)}
	s := start(t, srv, Config{})
	s.BeginDrain(time.Now(), 0)
	for _, proto := range []int{1, 2} {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/", nil)
		r.ProtoMajor = proto
		srv.Handler.ServeHTTP(rec, r)
		if rec.Body.String() != "hello" || s.Stats().InFlight != 0 {
			t.Errorf("HTTP/%d: body %q, %d in flight", proto, rec.Body, s.Stats().InFlight)
		}
	}
}

// A handler that goes on with the values of its header after they are written changes no
// other response, and a name in another spelling makes no second line.
func TestHandlersHeaderIsItsOwn(t *testing.T) {
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["connection"] = []string{"keep-alive"}
		w.WriteHeader(http.StatusOK)
		for _, values := range w.Header() {
			for i := range values {
				values[i] = "keep-alive"
			}
		}
	})}, Config{})
	s.BeginDrain(time.Now(), time.Hour)
	for range 2 {
		c := dial(t, s)
		c.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		head := c.rest()
		if lines := connectionLine.FindAllString(head, -1); len(lines) != 1 || !strings.EqualFold(strings.TrimSpace(lines[0]), "Connection: close") {
			t.Errorf("the response says %q in\n%s", lines, head)
		}
	}
}
