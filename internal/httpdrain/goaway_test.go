package httpdrain

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// h2client speaks HTTP/2 frame by frame.
type h2client struct {
	t testing.TB
	net.Conn
}

// h2frame is a frame that the server sent.
type h2frame struct {
	kind, flags byte
	stream      uint32
	payload     string
}

const lastOfAll = 1<<31 - 1

// begin sends the preface and empty SETTINGS.
func (c *h2client) begin() { c.send(clientPreface + settingsFrame) }

func (c *h2client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// get sends a request without a body.
func (c *h2client) get(stream uint32) {
	c.t.Helper()
	c.send(frame(frameHeaders, flagEndHeaders|flagEndStream, stream, getBlock))
}

// next reads the next frame that is not about SETTINGS or windows, and false at the
// end of the connection.
func (c *h2client) next() (f h2frame, ok bool) {
	c.t.Helper()
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(c, head[:]); errors.Is(err, io.EOF) {
			return f, false
		} else if err != nil {
			c.t.Fatalf("read a frame: %v", err)
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c, payload); err != nil {
			c.t.Fatalf("read a payload: %v", err)
		}
		f = h2frame{head[3], head[4], binary.BigEndian.Uint32(head[5:]), string(payload)}
		if f.kind != frameSettings && f.kind != 8 {
			return f, true
		}
	}
}

// expect reads frames until that of the kind, which must be for the stream.
func (c *h2client) expect(kind byte, stream uint32) h2frame {
	c.t.Helper()
	for {
		f, ok := c.next()
		if !ok {
			c.t.Fatalf("the connection ended before a frame of type %d", kind)
		}
		if f.kind == kind && f.stream == stream {
			return f
		}
		if f.kind != frameData && f.kind != frameHeaders {
			c.t.Fatalf("a frame of type %d for stream %d, want %d for %d", f.kind, f.stream, kind, stream)
		}
	}
}

// response reads until the stream ends.
func (c *h2client) response(stream uint32) {
	c.t.Helper()
	for f := c.expect(frameHeaders, stream); f.flags&flagEndStream == 0; {
		f = c.expect(frameData, stream)
	}
}

// goAway reads a GOAWAY and returns its last stream.
func (c *h2client) goAway() uint32 {
	c.t.Helper()
	f := c.expect(frameGoAway, 0)
	if code := binary.BigEndian.Uint32([]byte(f.payload[4:])); code != 0 {
		c.t.Fatalf("GOAWAY with error %d", code)
	}
	return binary.BigEndian.Uint32([]byte(f.payload))
}

// told reads the first GOAWAY.
func (c *h2client) told() {
	c.t.Helper()
	if last := c.goAway(); last != lastOfAll {
		c.t.Fatalf("the first GOAWAY names stream %d", last)
	}
}

// firstStep reads the first GOAWAY and its PING, which a client with open streams gets.
func (c *h2client) firstStep() {
	c.t.Helper()
	c.told()
	if f := c.expect(framePing, 0); f.flags != 0 || f.payload != goodbyePing {
		c.t.Fatalf("PING %+v", f)
	}
}

// gone reads the last GOAWAY, which names last, the responses of streams, and the end
// of the connection.
func (c *h2client) gone(last uint32, streams ...uint32) {
	c.t.Helper()
	told := false
	for {
		f, ok := c.next()
		switch {
		case !ok:
			if !told || len(streams) > 0 {
				c.t.Errorf("the connection ended (GOAWAY: %v) without the responses of %v", told, streams)
			}
			return
		case f.kind == frameGoAway && !told:
			told = true
			if got := binary.BigEndian.Uint32([]byte(f.payload)); got != last {
				c.t.Errorf("the last GOAWAY names stream %d, want %d", got, last)
			}
		case f.kind != frameData && f.kind != frameHeaders:
			c.t.Errorf("a frame of type %d for stream %d", f.kind, f.stream)
		case f.flags&flagEndStream != 0:
			streams = slices.DeleteFunc(streams, func(id uint32) bool { return id == f.stream })
		}
	}
}

// inTime runs a test in virtual time, over TLS and without it. prepare may change
// the server before it serves.
func inTime(t *testing.T, cfg Config, prepare func(*http.Server), test func(t *testing.T, s *Server, connect func() *h2client)) {
	certificate()
	for _, proto := range []string{"https", "http"} {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(0)
				srv := &http.Server{Handler: http.HandlerFunc(hello), Protocols: new(http.Protocols)}
				srv.Protocols.SetHTTP1(true)
				if proto == "https" {
					srv.TLSConfig = serverTLS()
					srv.Protocols.SetHTTP2(true)
				} else {
					srv.Protocols.SetUnencryptedHTTP2(true)
				}
				prepare(srv)
				s := start(t, srv, cfg, WithListener(w))
				connect := func() *h2client {
					nc, err := w.dial()
					if err != nil {
						t.Fatal(err)
					}
					if proto == "https" {
						nc = tls.Client(nc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
					}
					t.Cleanup(func() { nc.Close() })
					c := &h2client{t, nc}
					c.begin()
					return c
				}
				test(t, s, connect)
			})
		})
	}
}

func asIs(*http.Server) {}

// A client learns of the stop by a GOAWAY that drops nothing. The server still serves the
// requests that the client sends before it has read that, and the last GOAWAY names the
// last of them.
func TestGoAwayServesWhatIsOnItsWay(t *testing.T) {
	inTime(t, Config{}, asIs, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		c.response(1)
		s.sayGoodbyeHTTP2()
		c.told()
		told := time.Now()
		c.get(3)
		c.response(3)
		time.Sleep(goAwayWait / 2)
		c.get(5)
		c.gone(5, 5)
		if d := time.Since(told); d != goAwayWait {
			t.Errorf("gone %v after the first GOAWAY", d)
		}
	})
}

// A client with open streams acknowledges. The streams that it has opened until then are
// served, and a little later none is taken any more.
func TestGoAwayIsAcknowledged(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(goAwayWait / 2)
		hello(w, r)
	}
	inTime(t, Config{}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(slow) }, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		synctest.Wait()
		s.sayGoodbyeHTTP2()
		s.insistHTTP2()
		c.firstStep()
		c.get(3)
		c.send(pongFrame)
		acknowledged := time.Now()
		c.get(5) // its program has not heard of the goodbye yet
		c.gone(5, 1, 3, 5)
		if d := time.Since(acknowledged); d != goAwayWait/2+time.Second { // net/http waits a second after the last response
			t.Errorf("gone %v after the acknowledgement", d)
		}
	})
}

// lateConn is a connection whose write of the first GOAWAY returns later than the client has
// it, as on a machine that does much else.
type lateConn struct{ net.Conn }

func (c lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if strings.HasSuffix(string(p), askForAck) {
		time.Sleep(actTime / 2)
	}
	return n, err
}

type lateWire struct{ *wire }

func (w lateWire) Accept() (net.Conn, error) {
	nc, err := w.wire.Accept()
	return lateConn{nc}, err
}

// An acknowledgement counts that is read before the write of the first GOAWAY has returned.
func TestGoAwayIsAcknowledgedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(0)
		slow := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(2 * time.Second)
			hello(w, r)
		}
		srv := &http.Server{Handler: http.HandlerFunc(slow), Protocols: new(http.Protocols)}
		srv.Protocols.SetUnencryptedHTTP2(true)
		s := start(t, srv, Config{}, WithListener(lateWire{w}))
		nc, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		c := &h2client{t, nc}
		c.begin()
		c.get(1)
		synctest.Wait()
		began := time.Now()
		s.sayGoodbyeHTTP2()
		s.insistHTTP2()
		c.firstStep()
		c.send(pongFrame)
		c.gone(1, 1)
		if d := time.Since(began); d != 3*time.Second { // net/http waits a second after the last response
			t.Errorf("gone %v after the acknowledgement", d)
		}
	})
}

// A connection in use is told behind the response that leaves no stream open, without a
// PING, and as soon as it is unused.
func TestGoAwayGoesBehindAResponse(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(r.ContentLength) * time.Second)
		hello(w, r)
	}
	inTime(t, Config{}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(slow) }, func(t *testing.T, s *Server, connect func() *h2client) {
		busy := connect()
		busy.get(1)
		busy.response(1)
		began := time.Now()
		s.sayGoodbyeHTTP2()
		time.Sleep(goAwayWait / 2)
		busy.send(frame(frameHeaders, flagEndHeaders, 3, postBlock) + frame(frameData, flagEndStream, 3, "\x00\x00\x00"))
		busy.get(5)
		busy.response(5) // a GOAWAY would be an error here
		busy.response(3)
		busy.told()
		if d := time.Since(began); d != goAwayWait/2+3*time.Second {
			t.Errorf("told after %v", d)
		}
		busy.get(7) // on its way
		busy.response(7)
		busy.gone(7)
		if d := time.Since(began); d != goAwayWait/2+3*time.Second+goAwayWait {
			t.Errorf("gone after %v", d)
		}
	})
	inTime(t, Config{}, asIs, func(t *testing.T, s *Server, connect func() *h2client) {
		quiet := connect()
		quiet.get(1)
		quiet.response(1)
		began := time.Now()
		s.sayGoodbyeHTTP2()
		quiet.told()
		if d := time.Since(began); d != goAwayWait {
			t.Errorf("told after %v without a request", d)
		}
	})
}

// A client that always has streams open is told at the latest when half of Linger has
// passed.
func TestGoAwayInsistsInTheMiddleOfLinger(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	inTime(t, Config{Linger: 4 * time.Second, AcceptQuiet: time.Second}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(endless) }, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		c.expect(frameHeaders, 1)
		began := time.Now()
		s.BeginDrain(began, time.Second)
		time.Sleep(time.Second)
		s.EndWindow()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var retired sync.WaitGroup
		retired.Go(func() {
			if err := s.CloseWhenQuiet(ctx); err != nil {
				t.Error(err)
			}
			s.LingerOpen(ctx)
		})
		c.firstStep()
		if d := time.Since(began); d != 3*time.Second {
			t.Errorf("told after %v", d)
		}
		c.Close()
		retired.Wait()
	})
}

// A client that has streams open and does not acknowledge has ackWait.
func TestGoAwayWithoutAcknowledgement(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * ackWait)
		hello(w, r)
	}
	inTime(t, Config{}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(slow) }, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		synctest.Wait()
		began := time.Now()
		s.sayGoodbyeHTTP2()
		s.insistHTTP2()
		c.firstStep()
		c.send(frame(framePing, flagAck, 0, "stranger"))
		time.Sleep(ackWait / 2)
		c.get(3)
		if last := c.goAway(); last != 3 || time.Since(began) != ackWait {
			t.Errorf("the last GOAWAY names stream %d after %v", last, time.Since(began))
		}
		c.response(1)
		c.response(3)
		if _, ok := c.next(); ok {
			t.Error("the connection goes on")
		}
	})
}

// The implementation is told between two frames of the client, also when the
// client's time is over in the middle of one.
func TestGoAwayInTheMiddleOfAFrame(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(3 * ackWait)
		hello(w, r)
	}
	inTime(t, Config{}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(slow) }, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		synctest.Wait()
		s.sayGoodbyeHTTP2()
		s.insistHTTP2()
		c.firstStep()
		request := frame(frameHeaders, flagEndStream, 3, getBlock)
		c.send(request[:12])
		time.Sleep(2 * ackWait)
		c.send(request[12:])
		time.Sleep(time.Second)
		synctest.Wait()
		c.send(frame(frameContinuation, flagEndHeaders, 3, ""))
		c.gone(3, 1, 3)
	})
}

// A client that reads nothing holds up neither the goodbye of others nor the stop.
func TestGoAwayWithoutAReader(t *testing.T) {
	block := make(chan struct{})
	full := func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			hello(w, r)
			return
		}
		close(block)
		_, _ = w.Write(make([]byte, 1<<20))
	}
	srv := &http.Server{Handler: http.HandlerFunc(full), Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{}}
	srv.Protocols.SetUnencryptedHTTP2(true)
	s := start(t, srv, Config{})
	deaf := &h2client{t, dial(t, s).Conn}
	deaf.begin()
	// Windows as large as they may be, so that the server writes until TCP stops it.
	deaf.send(frame(frameSettings, 0, 0, "\x00\x04\x7f\xff\xff\xff"))
	deaf.send(frame(8, 0, 0, "\x7f\xfe\x00\x00"))
	deaf.send(frame(frameHeaders, flagEndHeaders, 1, getBlock))
	receive(t, "request", block)
	other := &h2client{t, dial(t, s).Conn}
	other.begin()
	other.get(1)
	other.response(1)
	s.BeginDrain(time.Now(), 0)
	s.EndWindow()
	other.told()
	other.gone(1)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A connection that comes during the window is served like any other until the window is
// over, and one that comes later until Shutdown: a balancer that still sends its client here
// would send it here again.
func TestGoAwayOfLateConnections(t *testing.T) {
	inTime(t, Config{}, asIs, func(t *testing.T, s *Server, connect func() *h2client) {
		s.BeginDrain(time.Now(), 0)
		synctest.Wait()
		late := connect()
		late.get(1)
		late.response(1)
		time.Sleep(time.Minute)
		late.get(3)
		late.response(3) // a GOAWAY would be an error here
		s.EndWindow()
		began := time.Now()
		late.told()
		if d := time.Since(began); d != goAwayWait {
			t.Errorf("told %v after the window", d)
		}
		late.gone(3)

		later := connect()
		for id := uint32(1); id < 20; id += 2 {
			time.Sleep(goAwayWait / 2)
			later.get(id)
			later.response(id) // a GOAWAY would be an error here
		}
		down := make(chan error, 1)
		go func() { _, err := s.Shutdown(context.Background()); down <- err }()
		later.told()
		later.gone(19)
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}

// Shutdown lets clients be told in two steps, because net/http then says goodbye in
// one with the next response.
func TestShutdownWaitsForTheGoodbye(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(goAwayWait / 2)
		hello(w, r)
	}
	inTime(t, Config{}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(slow) }, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		synctest.Wait()
		down := make(chan error, 1)
		go func() { _, err := s.Shutdown(context.Background()); down <- err }()
		c.firstStep()
		c.response(1)
		c.get(3) // on its way until now
		c.send(pongFrame)
		c.gone(3, 3)
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}

// Shutdown waits only briefly for a client that does not acknowledge.
func TestShutdownDoesNotWaitForSilentClients(t *testing.T) {
	inTime(t, Config{}, asIs, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		c.response(1)
		time.Sleep(goAwayWait)
		began := time.Now()
		down := make(chan error, 1)
		go func() { _, err := s.Shutdown(context.Background()); down <- err }()
		c.told()
		c.gone(1)
		if err := <-down; err != nil || time.Since(began) > 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// All calls of ConnState for one connection get the same value, the one that net/http
// uses.
func TestConnStateSeesOneConnection(t *testing.T) {
	var mu sync.Mutex
	states := map[net.Conn]string{}
	inTime(t, Config{}, func(srv *http.Server) {
		clear(states)
		srv.ConnState = func(nc net.Conn, state http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			states[nc] += fmt.Sprint(state, " ")
		}
	}, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		c.get(1)
		c.response(1)
		s.sayGoodbyeHTTP2()
		c.told()
		c.gone(1)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for nc, seen := range states {
			if _, ours := nc.(*tlsHTTP2); ours || seen != "new active idle active idle closed " || len(states) != 1 {
				t.Errorf("%d connections; a %T was %s", len(states), nc, seen)
			}
		}
	})
}
