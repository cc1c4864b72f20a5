package httpdrain

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// both runs a test on HTTP/2 over TLS and on unencrypted HTTP/2.
func both(t *testing.T, cfg Config, h http.HandlerFunc, test func(t *testing.T, s *Server, url string, client *http.Client)) {
	for _, proto := range []string{"https", "http"} {
		t.Run(proto, func(t *testing.T) {
			srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
			srv.Protocols.SetHTTP1(true)
			transport := &http.Transport{Protocols: new(http.Protocols)}
			if proto == "https" {
				srv.TLSConfig = serverTLS()
				srv.Protocols.SetHTTP2(true)
				transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
				transport.Protocols.SetHTTP2(true)
			} else {
				srv.Protocols.SetUnencryptedHTTP2(true)
				transport.Protocols.SetUnencryptedHTTP2(true)
			}
			s := start(t, srv, cfg)
			defer transport.CloseIdleConnections()
			test(t, s, proto+"://"+s.Addr().String(), &http.Client{Transport: transport, Timeout: patience})
		})
	}
}

func fetch(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if h.Get("Connection") != "" {
				t.Errorf("%d with %v", code, h)
			}
			return nil
		},
	})
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.ProtoMajor != 2 || res.Header.Get("Connection") != "" {
		t.Errorf("%s with %v", res.Proto, res.Header)
	}
	return string(body)
}

// An idle connection gets GOAWAY at GoAwayAfter, not at T0, while the server goes on
// serving. A connection that comes later gets it with its response. A connection that
// never carries a request gets it when the window ends, because its client would take
// an earlier one for a refusal.
func TestHTTP2GoAway(t *testing.T) {
	var mu sync.Mutex
	used := map[string]bool{} // the connections that carried a request
	serve := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		used[r.RemoteAddr] = true
		mu.Unlock()
		hello(w, r)
	}
	usedAndOpen := func(s *Server) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range s.tracker.open() {
			if used[c.RemoteAddr().String()] {
				n++
			}
		}
		return n
	}
	both(t, Config{GoAwayAfter: time.Hour, Linger: time.Hour}, serve, func(t *testing.T, s *Server, url string, client *http.Client) {
		fetch(t, client, url)
		s.BeginDrain(time.Now(), 2*time.Hour)
		for range 3 {
			fetch(t, client, url)
		}
		if n := usedAndOpen(s); n != 1 {
			t.Fatalf("%d connections in use before the goodbye, want 1", n)
		}
		s.sayGoodbyeHTTP2()
		// Without streams it closes a second after GOAWAY.
		eventually(t, "the idle connection is gone", func() bool { return usedAndOpen(s) == 0 })
		for range 3 {
			if got := fetch(t, client, url); got != "hello" {
				t.Error(got)
			}
		}
		if n := usedAndOpen(s); n != 1 {
			t.Errorf("%d connections in use that came during the window, want 1", n)
		}
		// A pool may have made a connection that it did not need.
		s.EndWindow()
		s.LingerOpen(soon(t))
		eventually(t, "no connection is open after the window", func() bool { return s.Stats().Conns == 0 })
		if cut, err := s.Shutdown(soon(t)); cut != 0 || err != nil {
			t.Errorf("cut %d, %v", cut, err)
		}
	})
}

// Clients that can replay a request lose none through a whole drain.
func TestHTTP2ReplayableClientsLoseNothing(t *testing.T) {
	cfg := Config{AcceptQuiet: 100 * time.Millisecond, Linger: 3 * time.Second, GoAwayAfter: 100 * time.Millisecond}
	echo := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Millisecond) // work
		_, _ = io.Copy(w, r.Body)
	}
	both(t, cfg, echo, func(t *testing.T, s *Server, url string, client *http.Client) {
		stop := make(chan struct{})
		var sent atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for !isClosed(stop) {
					sent.Add(1)
					res, err := client.Post(url, "text/plain", strings.NewReader("body"))
					if err != nil {
						t.Errorf("lost: %v", err)
						continue
					}
					if body, err := io.ReadAll(res.Body); err != nil || string(body) != "body" {
						t.Errorf("lost: %q %v", body, err)
					}
					res.Body.Close()
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		s.BeginDrain(time.Now(), 400*time.Millisecond)
		time.Sleep(400 * time.Millisecond)
		close(stop) // endpoints have moved: these clients know no other address
		wg.Wait()
		s.EndWindow()
		if err := s.CloseWhenQuiet(t.Context()); err != nil {
			t.Error(err)
		}
		s.LingerOpen(t.Context())
		if cut, err := s.Shutdown(soon(t)); cut != 0 || err != nil {
			t.Errorf("cut %d, %v", cut, err)
		}
		t.Logf("%d requests on %d connections", sent.Load(), s.Stats().Accepted)
	})
}

// At the window's end one stream of a connection is cancelled and its
// neighbour, an ordinary request, is not.
func TestHTTP2StreamsAreCancelledAlone(t *testing.T) {
	type handler struct {
		release, entered chan struct{}
		causes           sync.Map
	}
	var h *handler
	serve := func(w http.ResponseWriter, r *http.Request) {
		defer func() { h.causes.Store(r.URL.Path, fmt.Sprint(context.Cause(r.Context()))) }()
		switch r.URL.Path {
		case "/first":
		case "/poll":
			ch, ok := Stream(r.Context())
			if again, _ := Draining(r.Context()); !ok || again != ch {
				t.Error("Draining changed")
			}
			h.entered <- struct{}{}
			<-ch
			<-r.Context().Done()
		case "/events":
			h.entered <- struct{}{}
			<-r.Context().Done()
		case "/answers":
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			h.entered <- struct{}{}
			<-r.Context().Done()
		case "/asks": // never for Done
			Stream(r.Context())
			h.entered <- struct{}{}
			for r.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
		case "/child":
			Stream(r.Context())
			ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), t, t), patience)
			defer cancel()
			h.entered <- struct{}{}
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.Is(err, ErrWindowOver) {
				t.Errorf("the child ends by %v", err)
			}
		default:
			Draining(r.Context()) // which changes nothing
			h.entered <- struct{}{}
			<-h.release
		}
		hello(w, r)
	}
	both(t, Config{}, serve, func(t *testing.T, s *Server, url string, client *http.Client) {
		h = &handler{release: make(chan struct{}), entered: make(chan struct{})}
		fetch(t, client, url+"/first") // from here on the client's pool has a connection for all
		var wg sync.WaitGroup
		for _, path := range []string{"/poll", "/events", "/answers", "/asks", "/child", "/slow"} {
			wg.Go(func() {
				r, _ := http.NewRequest("GET", url+path, nil)
				if path == "/events" {
					r.Header.Set("Accept", "text/event-stream")
				}
				res, err := client.Do(r)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			})
			receive(t, path, h.entered)
		}
		if st := s.Stats(); st.InFlight != 6 || st.Conns != 1 {
			t.Errorf("stats %+v", st)
		}
		s.BeginDrain(time.Now(), 0)
		s.EndWindow()
		eventually(t, "streams end", func() bool { return s.Stats().InFlight == 1 })
		close(h.release)
		wg.Wait()
		eventually(t, "streams are forgotten", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.streams) == 0 })
		for _, path := range []string{"/poll", "/events", "/answers", "/asks", "/child", "/slow"} {
			want := ErrWindowOver.Error()
			if path == "/slow" {
				want = "<nil>"
			}
			if got, _ := h.causes.Load(path); got != want {
				t.Errorf("%s: %v, want %s", path, got, want)
			}
		}
	})
}

// The context of an HTTP/2 request ends with its handler and with its client, as net/http's
// does, whether Done was asked for before or is only asked for afterwards.
func TestHTTP2ContextsEnd(t *testing.T) {
	contexts := make(chan context.Context, 1)
	serve := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/early") {
			r.Context().Done()
		}
		contexts <- r.Context()
		if strings.HasPrefix(r.URL.Path, "/left") {
			<-r.Context().Done()
		}
	}
	both(t, Config{}, serve, func(t *testing.T, s *Server, url string, client *http.Client) {
		for _, path := range []string{"/ends", "/ends/early", "/left", "/left/early"} {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r, err := http.NewRequestWithContext(ctx, "GET", url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				if res, err := client.Do(r); err == nil {
					res.Body.Close()
				}
			}()
			served := receive(t, path, contexts)
			if strings.HasPrefix(path, "/left") {
				leave()
			}
			receive(t, path+" is answered", answered)
			receive(t, path+" ends", served.Done())
			if !errors.Is(served.Err(), context.Canceled) || !errors.Is(context.Cause(served), context.Canceled) {
				t.Errorf("%s: %v, %v", path, served.Err(), context.Cause(served))
			}
		}
	})
}

// A connection that comes after the window and sends no request gets GOAWAY too, and
// delays neither LingerOpen nor Shutdown.
func TestHTTP2LateIdleConnection(t *testing.T) {
	const prefaceAndSettings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, linger := range []time.Duration{0, time.Hour} {
		srv := &http.Server{Handler: http.HandlerFunc(hello), Protocols: new(http.Protocols)}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		s := start(t, srv, Config{Linger: linger})
		s.BeginDrain(time.Now(), 0)
		s.EndWindow()
		c := dial(t, s)
		c.send(prefaceAndSettings[:10]) // not HTTP/2 yet when the first GOAWAY goes out
		eventually(t, "has sent something", func() bool {
			open := s.tracker.open()
			return len(open) == 1 && open[0].used.Load()
		})
		down := make(chan error, 1)
		go func() {
			s.LingerOpen(context.Background())
			_, err := s.Shutdown(context.Background())
			down <- err
		}()
		if linger == 0 {
			eventually(t, "Shutdown has begun", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.closing })
		}
		c.send(prefaceAndSettings[10:])
		client := &h2client{t, c.Conn}
		client.told()
		client.gone(0)
		if err := receive(t, "Shutdown", down); err != nil {
			t.Error(err)
		}
	}
}

// After T0 an HTTP/2 handler can use its writer as before. An informational header does
// not say goodbye.
func TestHTTP2WriterAfterDrain(t *testing.T) {
	handle := func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Pusher); !ok {
			t.Error("no Pusher")
		}
		rc := http.NewResponseController(w)
		if err := rc.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
		w.WriteHeader(103)
		switch r.URL.Path {
		case "/flush":
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
		case "/flusher":
			w.(http.Flusher).Flush()
		case "/string":
			_, _ = io.WriteString(w, "hello")
		case "/status":
			w.WriteHeader(404)
		case "/nothing":
		default:
			hello(w, r)
		}
	}
	both(t, Config{}, handle, func(t *testing.T, s *Server, url string, client *http.Client) {
		s.EndWindow()
		for _, path := range []string{"/flush", "/flusher", "/string", "/status", "/nothing", "/write"} {
			fetch(t, client, url+path)
		}
		eventually(t, "every connection is told", func() bool { return s.Stats().Conns == 0 })
	})
}

// The temporary files of a form are removed although the handler's request is
// a copy.
func TestHTTP2FormFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	handle := func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, _ := os.ReadDir(dir); len(files) == 0 {
			t.Error("no temporary file: this test shows nothing")
		}
	}
	both(t, Config{}, handle, func(t *testing.T, s *Server, url string, client *http.Client) {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		file, _ := form.CreateFormFile("f", "f")
		_, _ = file.Write(make([]byte, 20<<20))
		form.Close()
		res, err := client.Post(url, form.FormDataContentType(), &body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		eventually(t, "files are removed", func() bool { files, _ := os.ReadDir(dir); return len(files) == 0 })
	})
}

// A TLSNextProto that the user has set is left alone, even one that switches HTTP/2 off.
func TestUsersNextProtoIsKept(t *testing.T) {
	srv := &http.Server{Handler: http.HandlerFunc(hello), TLSConfig: serverTLS(), TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	s := start(t, srv, Config{})
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get("https://" + s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.ProtoMajor != 1 || len(srv.TLSNextProto) != 0 {
		t.Errorf("%s, %d protocols", res.Proto, len(srv.TLSNextProto))
	}
	s.EndWindow()
}

// A ConnContext that loses our context does not lose the two steps.
func TestGoAwayWithoutOurContext(t *testing.T) {
	inTime(t, Config{}, func(srv *http.Server) {
		srv.ConnContext = func(context.Context, net.Conn) context.Context { return context.Background() }
	}, func(_ *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		c.response(1)
		s.sayGoodbyeHTTP2()
		c.get(3)
		c.response(3)
		c.told()
		c.get(5)
		c.response(5)
		c.gone(5)
	})
}

// When the user has an HTTP/2 implementation of another package in TLSNextProto, the
// server says goodbye with a response, in one step.
func TestUsersOwnHTTP2SaysGoodbyeWithAResponse(t *testing.T) {
	inTime(t, Config{}, func(srv *http.Server) {
		if srv.TLSConfig == nil {
			return
		}
		copied := unservedCopy(srv)
		_ = copied.Serve(closedListener{})
		inner := copied.TLSNextProto[nextHTTP2]
		srv.TLSNextProto = map[string]nextProto{nextHTTP2: func(srv *http.Server, c *tls.Conn, h http.Handler) { inner(srv, c, h) }}
		srv.TLSConfig.NextProtos = []string{nextHTTP2}
	}, func(t *testing.T, s *Server, connect func() *h2client) {
		if s.srv.TLSConfig == nil {
			t.Skip("without TLS it passes through an http2Conn")
		}
		// A server of its own: s.srv serves by now, and a copy shares its maps.
		if r := (&registration{copied: unservedCopy(&http.Server{})}); r.accepted() {
			t.Skip("net/http of this release has no such function to wrap")
		}
		s.BeginDrain(time.Now(), 0)
		synctest.Wait()
		c := connect()
		c.get(1)
		c.response(1) // a GOAWAY would be an error here
		s.EndWindow()
		c.get(3)
		c.gone(3, 3)
	})
}
