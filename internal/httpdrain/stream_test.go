package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener hands out the server's ends of pipes, for tests in which time
// is synctest's.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// connect is for clients of net/http.
func (l *pipeListener) connect() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// dial returns nil when the listener is closed.
func (l *pipeListener) dial(t testing.TB) *raw {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
	case <-l.closed:
		return nil
	}
	t.Cleanup(func() { client.Close() })
	r := newRaw(t, client)
	_ = client.SetDeadline(time.Time{})
	return r
}

const upgrade = "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
const events = "GET / HTTP/1.1\r\nHost: test\r\nAccept: text/event-stream\r\n\r\n"

// One timeline: T0 at 0, GoAwayAfter 2 s, the window 10 s. Ordinary handlers
// that watch Draining are told at 2 s; hijacked connections one by one over
// the six seconds after that; streams are cancelled at 10 s and hijacked connections
// cut at 11 s, an ordinary request not.
func TestTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hijackers = 4
		var mu sync.Mutex
		var told []time.Duration
		ends := map[string]string{}
		var t0 time.Time
		note := func(name string, ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			ends[name] = fmt.Sprintf("%v %v", time.Since(t0), context.Cause(ctx))
		}
		finish := make(chan struct{})
		ln := newPipeListener()
		s := New("pipes", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/ordinary":
				<-finish
				note("ordinary", r.Context())
			case "/poll": // told, and does not listen
				goodbye, _ := Stream(r.Context())
				<-goodbye
				mu.Lock()
				told = append(told, time.Since(t0))
				mu.Unlock()
				if err := r.Context().Err(); err != nil {
					t.Errorf("the poll is told with %v", err)
				}
				<-r.Context().Done()
				note("poll", r.Context())
			case "/events":
				w.Header().Set("Content-Type", "text/event-stream")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				note("events", r.Context())
			case "/socket":
				goodbye, _ := Draining(r.Context())
				nc, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				if again, _ := Draining(r.Context()); again != goodbye {
					t.Error("another channel after the hijack")
				}
				<-goodbye
				mu.Lock()
				told = append(told, time.Since(t0))
				mu.Unlock()
				_, err = nc.Read(make([]byte, 1))
				note("socket", r.Context())
				if err == nil {
					t.Error("hijacked connection not cut")
				}
			}
		})}, Config{GoAwayAfter: 2 * time.Second, Linger: 5 * time.Second, AcceptQuiet: time.Second}, WithListener(ln))
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		serve(t, s)

		ask := func(path, request string) *raw {
			c := ln.dial(t)
			c.send(strings.Replace(request, "GET /", "GET "+path, 1))
			if path != "/ordinary" { // a pipe has no buffer: the test must read
				go func() { _, _ = io.Copy(io.Discard, c.r) }()
			}
			return c
		}
		ordinary := ask("/ordinary", get)
		ask("/poll", get)
		ask("/events", events)
		for range hijackers {
			ask("/socket", upgrade)
		}
		synctest.Wait()
		if st := s.Stats(); st.InFlight != 3 || st.Hijacked != hijackers || st.Conns != 3 {
			t.Errorf("before: %+v", st)
		}

		t0 = time.Now()
		s.BeginDrain(t0, 10*time.Second)
		s.BeginDrain(t0, time.Second) // does nothing
		time.Sleep(10 * time.Second)
		s.EndWindow()
		s.EndWindow()
		time.Sleep(timeToClose)
		synctest.Wait()

		mu.Lock()
		want := []time.Duration{2 * time.Second, 3200 * time.Millisecond, 4400 * time.Millisecond, 5600 * time.Millisecond, 6800 * time.Millisecond}
		if !slices.Equal(told, want) {
			t.Errorf("the poll and the hijacked connections were told at %v, want %v", told, want)
		}
		for name, want := range map[string]string{
			"poll":   "10s drain window over",
			"events": "10s drain window over",
			"socket": "11s drain window over",
		} {
			if ends[name] != want {
				t.Errorf("%s: %s, want %s", name, ends[name], want)
			}
		}
		mu.Unlock()
		if st := s.Stats(); st.InFlight != 1 || st.Hijacked != 0 {
			t.Errorf("after the window: %+v", st)
		}

		close(finish)
		if res, _ := ordinary.response("GET"); res.StatusCode != 200 {
			t.Error(res.Status)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if cut, err := s.Shutdown(ctx); cut != 0 || err != nil {
			t.Errorf("cut %d, %v", cut, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if ends["ordinary"] != "11s <nil>" {
			t.Errorf("ordinary: %s", ends["ordinary"])
		}
	})
}

// A request that arrives after GoAwayAfter is told at the end of the window, and after the window
// when the listener closes. GoAwayAfter is at most half of the window.
func TestDrainingForLateArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		var waits time.Duration
		s := New("pipes", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ch, ok := Draining(r.Context())
			if waits > 0 {
				time.Sleep(waits)
				synctest.Wait()
			}
			_, _ = fmt.Fprint(w, ok, isClosed(ch))
		})}, Config{GoAwayAfter: time.Hour}, WithListener(ln))
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		serve(t, s)
		ask := func(after time.Duration) string {
			waits = after
			c := ln.dial(t)
			c.send(get)
			_, body := c.response("GET")
			c.Close()
			return body
		}
		want := func(when string, after time.Duration, answer string) {
			t.Helper()
			if got := ask(after); got != answer {
				t.Errorf("%s: %s, want %s", when, got, answer)
			}
		}
		want("before the drain", 0, "true false")
		t0 := time.Now()
		s.BeginDrain(t0, 10*time.Second)
		time.Sleep(5*time.Second - 1)
		want("just before GoAwayAfter", 0, "true false")
		want("across GoAwayAfter", 2, "true true") // it waited for it, and is told among the first
		time.Sleep(time.Until(t0.Add(6 * time.Second)))
		want("4 s before the end", 0, "true false")
		time.AfterFunc(4*time.Second, s.EndWindow)
		want("4 s before the end, as long later", 4*time.Second, "true true")
		want("after the window", time.Hour, "true false")
		time.AfterFunc(time.Minute, func() { _ = s.CloseWhenQuiet(context.Background()) })
		want("when the listener closes", time.Minute, "true true")
	})
}

// A websocket that comes after the window is served until the listener closes, is told then,
// and is closed a second later. LingerOpen waits for it, although Linger may be longer.
func TestWebsocketAfterTheWindow(t *testing.T) {
	for _, listens := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ln := newPipeListener()
			var came, told, ended time.Duration
			var t0 time.Time
			s := New("sockets", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				goodbye, _ := Draining(r.Context())
				nc, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				came = time.Since(t0)
				if listens {
					<-goodbye
					told = time.Since(t0)
					_ = nc.Close()
					return
				}
				_, _ = io.Copy(io.Discard, nc) // it does not listen to Draining
				ended = time.Since(t0)
			})}, Config{AcceptQuiet: 3 * time.Second, AcceptMax: time.Minute, Linger: 10 * time.Second}, WithListener(ln))
			if err := s.Bind(t.Context()); err != nil {
				t.Fatal(err)
			}
			serve(t, s)
			s.BeginDrain(time.Now(), 0)
			s.EndWindow()
			t0 = time.Now()
			c := ln.dial(t)
			c.send(upgrade)
			synctest.Wait()
			if err := s.CloseWhenQuiet(t.Context()); err != nil {
				t.Error(err)
			}
			s.LingerOpen(t.Context())
			waited := time.Since(t0).Truncate(2 * clientLook)
			synctest.Wait()
			switch {
			case listens && (told-came != 3*time.Second || waited != 3*time.Second):
				t.Errorf("it came after %v, was told after %v, and both steps took %v", came, told, waited)
			case !listens && (ended-came != 4*time.Second || waited != 4*time.Second):
				t.Errorf("it came after %v, ended after %v, and both steps took %v", came, ended, waited)
			}
			c.Close()
		})
	}
}

// A websocket has a second to close from the end of the window on, and what its client sends in it
// is answered.
func TestWebsocketThatIsToldAtTheEndOfTheWindow(t *testing.T) {
	for _, listens := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ln := newPipeListener()
			var told, ended time.Duration
			var t0 time.Time
			s := New("sockets", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if listens {
					goodbye, _ := Draining(r.Context())
					go func() {
						<-goodbye
						told = time.Since(t0)
					}()
				}
				nc, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(nc, nc)
				ended = time.Since(t0)
			})}, Config{GoAwayAfter: time.Second, AcceptQuiet: time.Millisecond, Linger: 10 * time.Second}, WithListener(ln))
			if err := s.Bind(t.Context()); err != nil {
				t.Fatal(err)
			}
			serve(t, s)
			t0 = time.Now()
			const window = 4 * time.Second
			s.BeginDrain(t0, window)
			time.Sleep(window - 300*time.Millisecond)
			c := ln.dial(t)
			c.send(upgrade)
			synctest.Wait()
			time.Sleep(time.Until(t0.Add(window)))
			s.EndWindow()
			synctest.Wait()
			if listens && told != window || ended != 0 {
				t.Errorf("told after %v, ended after %v", told, ended)
			}
			time.Sleep(900 * time.Millisecond)
			c.send("late")
			echo := make([]byte, 4)
			if _, err := io.ReadFull(c, echo); string(echo) != "late" {
				t.Errorf("a message of the last second: %q, %v", echo, err)
			}
			s.LingerOpen(t.Context())
			synctest.Wait()
			want := window + timeToClose
			if ended != want || time.Since(t0) > want+clientLook {
				t.Errorf("it ended after %v, LingerOpen after %v, want %v", ended, time.Since(t0), want)
			}
			c.Close()
		})
	}
}

// A handler that has just hijacked its connection when the window ends may not have asked for the
// notice yet. It still gets it, and time to say goodbye.
func TestWebsocketThatAsksJustAfterTheWindow(t *testing.T) {
	hijacked, ended := make(chan struct{}), make(chan struct{})
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nc, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		_, _ = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		close(hijacked)
		<-ended
		goodbye, _ := Draining(r.Context())
		<-goodbye
		_, _ = io.WriteString(nc, "goodbye")
	})}, Config{})
	c := dial(t, s)
	c.send(upgrade)
	<-hijacked
	s.EndWindow()
	close(ended)
	c.response("GET")
	if got := c.rest(); got != "goodbye" {
		t.Errorf("the client got %q", got)
	}
}

// A stop without CloseWhenQuiet, such as one that a second signal makes short, has no other step
// that tells a websocket which came after the window, or while Shutdown waits. It does not wait
// for one that does not listen.
func TestShutdownEndsAWebsocketThatCameAfterTheWindow(t *testing.T) {
	for _, after := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ln := newPipeListener()
			told := false
			s := New("sockets", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(after)
				goodbye, _ := Draining(r.Context())
				nc, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, nc)
				told = isClosed(goodbye)
			})}, Config{}, WithListener(ln))
			if err := s.Bind(t.Context()); err != nil {
				t.Fatal(err)
			}
			serve(t, s)
			s.EndWindow()
			c := ln.dial(t)
			c.send(upgrade)
			synctest.Wait()
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if cut, err := s.Shutdown(ctx); cut > 0 || err != nil {
				t.Errorf("%d cut, %v", cut, err)
			}
			if took := time.Since(began); took > after+2*timeToClose {
				t.Errorf("it took %v with a websocket that came after %v", took, after)
			}
			synctest.Wait()
			if !told {
				t.Error("the handler was not told")
			}
			c.Close()
		})
	}
}

// A connection that was open before the window's end may bring a websocket or a poll after it,
// when the listener still accepts. Its client is told when the listener closes, and not when it
// comes: it would come back to this process.
func TestTheNextRequestOfAConnectionIsToldLater(t *testing.T) {
	for _, request := range []string{upgrade, get} {
		for _, watches := range []bool{true, false} { // whether the request before watches Draining
			synctest.Test(t, func(t *testing.T) {
				ln := newPipeListener()
				watched := watches
				var asked, told time.Time
				s := New("sockets", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/first" {
						if watched {
							_, _ = Draining(r.Context())
						}
						return
					}
					goodbye, _ := Draining(r.Context())
					if r.Header.Get("Upgrade") != "" {
						nc, _, err := http.NewResponseController(w).Hijack()
						if err != nil {
							t.Error(err)
							return
						}
						defer nc.Close()
					}
					asked = time.Now()
					<-goodbye
					told = time.Now()
				})}, Config{AcceptQuiet: 3 * time.Second, AcceptMax: time.Minute, Linger: 10 * time.Second}, WithListener(ln))
				if err := s.Bind(t.Context()); err != nil {
					t.Fatal(err)
				}
				serve(t, s)
				c := ln.dial(t)
				c.send(strings.Replace(get, "GET /", "GET /first", 1))
				_, _ = c.response("GET")
				s.BeginDrain(time.Now(), 10*time.Second)
				time.Sleep(10 * time.Second)
				s.EndWindow()
				c.send(request)
				synctest.Wait()
				if err := s.CloseWhenQuiet(t.Context()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if told.IsZero() || told.Sub(asked) != 3*time.Second {
					t.Errorf("%.20q: it was told %v after it came, want when the listener closes", request, told.Sub(asked))
				}
				c.Close()
			})
		}
	}
}

func TestDrainingOutsideOfAServer(t *testing.T) {
	if ch, ok := Draining(t.Context()); ok || ch != nil {
		t.Error(ch, ok)
	}
}

// An early end (a second signal) tells at once, and cuts a second later.
func TestEndWindowEarly(t *testing.T) {
	for _, begin := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ln := newPipeListener()
			var told, cut atomic.Bool
			s := New("pipes", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				nc, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				goodbye, _ := Draining(r.Context())
				<-goodbye
				told.Store(true)
				_, err = nc.Read(make([]byte, 1))
				cut.Store(err != nil)
			})}, Config{GoAwayAfter: time.Minute}, WithListener(ln))
			if err := s.Bind(t.Context()); err != nil {
				t.Fatal(err)
			}
			serve(t, s)
			ln.dial(t).send(get)
			synctest.Wait()
			if begin {
				s.BeginDrain(time.Now(), time.Hour)
				time.Sleep(time.Second)
			}
			s.EndWindow()
			synctest.Wait()
			if !told.Load() || cut.Load() {
				t.Errorf("begin %v: told %v, cut %v", begin, told.Load(), cut.Load())
			}
			time.Sleep(timeToClose)
			synctest.Wait()
			if !cut.Load() {
				t.Errorf("begin %v: it is not cut", begin)
			}
		})
	}
}

// A connection whose stream from before T0 was cancelled may bring another
// request: that has a context which lives, and ends with the base.
func TestRequestAfterACutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		var causes []error
		s := New("pipes", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/events" {
				<-r.Context().Done()
			} else if _, ok := Draining(r.Context()); !ok || r.Context().Value(http.ServerContextKey) == nil {
				t.Error("values are lost")
			}
			causes = append(causes, context.Cause(r.Context()))
		})}, Config{}, WithListener(ln))
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		serve(t, s)
		c := ln.dial(t)
		c.send(strings.Replace(events, "/", "/events", 1))
		synctest.Wait()
		s.EndWindow()
		if res, _ := c.response("GET"); res.Close {
			t.Error("a request from before T0 says close")
		}
		c.send(get)
		if res, _ := c.response("GET"); !res.Close {
			t.Error("does not say close")
		}
		if len(causes) != 2 || !errors.Is(causes[0], ErrWindowOver) || causes[1] != nil {
			t.Errorf("causes %v", causes)
		}
	})
}

// A request that becomes a stream after the window is cancelled at once, since nothing
// else would end it before the cut. A request that accepts other types too is not a
// stream. A connection whose stream was cancelled serves the next one in the same way.
func TestStreamsAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		s := New("pipes", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/says":
				Stream(r.Context())
			case "/answers":
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(http.StatusOK)
			case "/early":
				<-r.Context().Done()
			}
			ch, _ := Draining(r.Context())
			_, _ = fmt.Fprint(w, isClosed(ch), context.Cause(r.Context()))
		})}, Config{}, WithListener(ln))
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		serve(t, s)
		path := func(path string) string { return strings.Replace(get, "GET /", "GET "+path, 1) }
		ask := func(c *raw, request, want string) {
			t.Helper()
			c.send(request)
			if _, body := c.response("GET"); body != want {
				t.Errorf("%q: %s, want %s", request, body, want)
			}
		}
		var early []*raw
		for range 3 {
			c := ln.dial(t)
			c.send(strings.Replace(events, "GET /", "GET /early", 1))
			early = append(early, c)
		}
		synctest.Wait()
		s.EndWindow()
		for i, next := range []string{"/says", "/answers", "/"} {
			if _, body := early[i].response("GET"); body != "true drain window over" {
				t.Error(body)
			}
			ask(early[i], path(next), map[bool]string{true: "false <nil>", false: "true drain window over"}[next == "/"])
		}
		for request, want := range map[string]string{
			events:           "true drain window over",
			path("/says"):    "true drain window over",
			path("/answers"): "true drain window over",
			get:              "false <nil>",
			strings.Replace(events, "Accept: ", "Accept: application/json, ", 1): "false <nil>",
		} {
			ask(ln.dial(t), request, want)
		}
	})
}

// Handlers of event streams and long polls are told one after the other, on HTTP/1 and
// on HTTP/2: forty of them that are told at once have clients that come back at once.
func TestStreamsAreToldOneAfterTheOther(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", h2), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var told []time.Duration
				var t0 time.Time
				protocols := new(http.Protocols)
				protocols.SetHTTP1(!h2)
				protocols.SetUnencryptedHTTP2(h2)
				ln := newPipeListener()
				s := New("streams", &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					goodbye, _ := Draining(r.Context())
					if again, _ := Draining(r.Context()); again != goodbye {
						t.Error("another channel for the same request")
					}
					<-goodbye
					mu.Lock()
					defer mu.Unlock()
					told = append(told, time.Since(t0))
				})}, Config{GoAwayAfter: time.Second}, WithListener(ln))
				if err := s.Bind(t.Context()); err != nil {
					t.Fatal(err)
				}
				serve(t, s)
				client := &http.Client{Transport: &http.Transport{
					Protocols:   protocols,
					DialContext: func(context.Context, string, string) (net.Conn, error) { return ln.connect() },
				}}
				var polls sync.WaitGroup
				for range 40 {
					polls.Go(func() {
						if res, err := client.Get("http://app/"); err == nil {
							res.Body.Close()
						} else {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				t0 = time.Now()
				s.BeginDrain(t0, 9*time.Second)
				polls.Wait()
				if len(told) != 40 || told[0] != time.Second || told[39] < 6*time.Second || told[20]-told[19] != 150*time.Millisecond {
					t.Errorf("%d were told at %v", len(told), told)
				}
				s.EndWindow()
				client.CloseIdleConnections()
			})
		})
	}
}

// A POST that accepts events alone asks for one piece of work, and no client can ask for the
// rest of its answer: it is whole, as every other answer.
func TestPOSTIsNoStreamByWhatItAccepts(t *testing.T) {
	for method, want := range map[string]bool{http.MethodGet: true, http.MethodPost: false} {
		r := httptest.NewRequest(method, "/", nil)
		r.Header.Set("Accept", "text/event-stream")
		if got := requestBits(r)&requestStream != 0; got != want {
			t.Errorf("%s is a stream from its arrival: %v, want %v", method, got, want)
		}
	}
}
