package httpdrain

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A server with a handler that hijacks the preface, as h2c.NewHandler does, sees its
// requests in flight, and ends the connection like any other.
func TestHijackedHTTP2(t *testing.T) {
	for _, upgrade := range []bool{false, true} {
		name := "preface"
		if upgrade {
			name = "upgrade"
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(0)
				s := start(t, &http.Server{Handler: http.HandlerFunc(hijackHTTP2)}, Config{}, WithListener(w))
				nc, err := w.dial()
				if err != nil {
					t.Fatal(err)
				}
				c := &h2client{t, nc}
				defer c.Close()
				time.Sleep(time.Second) // so that no time is the first one
				if upgrade {
					c.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
					_, _ = io.ReadFull(c, make([]byte, len(switching)))
				}
				c.begin()
				if !upgrade {
					c.get(1)
				}
				time.Sleep(time.Second)
				if st := s.Stats(); st.InFlight != 1 || st.Conns != 1 || st.Hijacked != 0 || time.Since(st.LastArrival) != time.Second {
					t.Errorf("stats %+v", st)
				}
				s.BeginDrain(time.Now(), 0)
				s.EndWindow()
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				var down sync.WaitGroup
				down.Go(func() {
					cut, err := s.Shutdown(ctx)
					if cut != 2 || err == nil {
						t.Errorf("cut %d, %v: two requests have no response", cut, err)
					}
				})
				c.firstStep()
				c.get(3)
				c.send(pongFrame)
				down.Wait()
			})
		})
	}
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"

// hijackHTTP2 is an HTTP/2 server that never answers.
func hijackHTTP2(w http.ResponseWriter, r *http.Request) {
	nc, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer nc.Close()
	if r.Method != "PRI" {
		_, _ = io.WriteString(nc, switching)
	}
	_, _ = io.WriteString(nc, settingsFrame)
	_, _ = io.Copy(io.Discard, nc)
}

// A hijacked connection whose peer asked for HTTP/2 and got something else is closed
// at the end of the window, like a websocket.
func TestHijackedForSomethingElse(t *testing.T) {
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		nc, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\n\r\nno frames here")
	})}, Config{})
	c := dial(t, s)
	c.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
	c.response("GET")
	eventually(t, "it is known", func() bool { return s.Stats().Hijacked == 1 })
	s.EndWindow()
	if got := c.rest(); got != "no frames here" {
		t.Error(got)
	}
}

// A client that offers settings of HTTP/2 and asks for a websocket has a websocket, also
// while that is silent: the stop tells it, closes it and waits for no request.
func TestWebsocketWithHTTP2Settings(t *testing.T) {
	for _, upgrade := range []string{"websocket", "websocket, h2c", "h2c\r\nUpgrade: websocket"} {
		s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			nc, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		})}, Config{})
		c := dial(t, s)
		c.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + "\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
		c.response("GET")
		if st := s.Stats(); st.Hijacked != 1 || st.InFlight != 0 {
			t.Errorf("%q: %+v", upgrade, st)
		}
		s.EndWindow()
		eventually(t, "it has gone after the window", func() bool { st := s.Stats(); return st.Hijacked+st.Conns == 0 })
	}
}
