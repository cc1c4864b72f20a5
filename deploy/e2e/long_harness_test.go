package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// These tests check the clients of the long proof. They need no cluster.

func TestPostsByTLSAreCounted(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); r.ProtoMajor != 2 || string(body) != "nothing" || err != nil {
			t.Errorf("%s %q %v", r.Proto, body, err)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	srv.StartTLS()
	defer srv.Close()
	l := postOnce(true, "/", 201, soon).run(t, srv.Listener.Addr().String(), sentAtLeast(10))
	if lost, sent := l.lost(); lost != 0 || l.answered != sent || l.fresh != 1 {
		t.Errorf("%s\n%s", l, l.explain(nil, 3))
	}
}

// A stream that ends by itself needs to say why; one that is cut is lost.
func TestFiniteStreamsAreCounted(t *testing.T) {
	for last, want := range map[string]struct{ lost, goodbye bool }{"end": {false, false}, "goodbye": {false, true}, "hello": {true, false}} {
		addr := serverFor(t, func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("for") != "1ms" {
				t.Errorf("it asks for %s", r.URL)
			}
			fmt.Fprintf(w, "event: hello\ndata: .\n\nevent: %s\ndata: .\n\n", last)
		})
		l := finite(func() time.Duration { return time.Millisecond }).run(t, addr, sentAtLeast(3))
		if lost, _ := l.lost(); want.lost != (lost > 0) || want.goodbye != (l.seen() > 0) {
			t.Errorf("a stream that ends with %s: %s", last, l)
		}
	}
}

// chats are the two chats and how a test serves them: what is said after each message
// decides how the server goes on.
var chats = map[string]struct {
	open  client
	serve func(t *testing.T, answer func(n int) reply) (addr string)
}{
	"websocket": {chatting(openSocket, soon), serveSockets},
	"gRPC":      {chatting(openCall, soon), serveCalls},
}

// reply is what a server does with a message.
type reply int

const (
	echo     reply = iota // answers
	sendAway              // says goodbye, and answers
	cut                   // ends the stream
)

func serveSockets(t *testing.T, answer func(int) reply) string {
	return serverFor(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for n := 1; ; n++ {
			kind, text, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			switch answer(n) {
			case cut:
				return
			case sendAway:
				if conn.Write(r.Context(), kind, []byte("goodbye")) != nil {
					return
				}
			case echo:
			}
			if conn.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	})
}

func serveCalls(t *testing.T, answer func(int) reply) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: "e2e.Chat", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Chat", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			for n := 1; ; n++ {
				if err := stream.RecvMsg(new(healthpb.HealthCheckRequest)); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				switch answer(n) {
				case cut:
					return errors.New("cut")
				case sendAway:
					if err := stream.SendMsg(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVICE_UNKNOWN}); err != nil {
						return err
					}
				case echo:
				}
				if err := stream.SendMsg(&healthpb.HealthCheckResponse{}); err != nil {
					return err
				}
			}
		},
	}}}, nil)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	return ln.Addr().String()
}

func TestChatsAreCounted(t *testing.T) {
	for name, c := range chats {
		t.Run(name, func(t *testing.T) {
			var answered atomic.Int64
			addr := c.serve(t, func(int) reply { answered.Add(1); return echo })
			l := c.open.run(t, addr, sentAtLeast(10))
			if lost, sent := l.lost(); lost != 0 || int64(sent) != answered.Load()+1 { // the talk itself is one
				t.Errorf("%d answered: %s\n%s", answered.Load(), l, l.explain(nil, 3))
			}
		})
		t.Run(name+" that is sent away", func(t *testing.T) {
			addr := c.serve(t, func(n int) reply {
				if n == 3 {
					return sendAway
				}
				return echo
			})
			l := c.open.run(t, addr, func(l *ledger) bool { return l.seen() >= 2 })
			if lost, _ := l.lost(); lost != 0 {
				t.Errorf("%s\n%s", l, l.explain(nil, 3))
			}
		})
		t.Run(name+" that is cut", func(t *testing.T) {
			addr := c.serve(t, func(n int) reply {
				if n == 2 {
					return cut
				}
				return echo
			})
			l := c.open.run(t, addr, func(l *ledger) bool { lost, _ := l.lost(); return lost >= 2 })
			if lost, sent := l.lost(); l.answered != sent-lost || l.answered == 0 {
				t.Errorf("%s\n%s", l, l.explain(nil, 3))
			}
		})
	}
}

func TestLedgersAreSummedUp(t *testing.T) {
	s := make(sums)
	for range 2 {
		l := newLedger(longKinds[0])
		l.enter(answer{sent: time.Now(), status: 201, fresh: true, goodbye: true}, 201)
		l.enter(answer{sent: time.Now(), status: 502}, 201)
		s.add(l)
	}
	l := s[longKinds[0]]
	if lost, sent := l.lost(); lost != 2 || sent != 4 || l.answered != 2 || l.seen() != 2 || l.status[502] != 2 {
		t.Errorf("%s", l)
	}
	if s.enough(plan{}, nil) {
		t.Error("the other kinds have sent nothing")
	}
	for _, kind := range longKinds {
		s.add(newLedger(kind))
	}
	if !s.enough(plan{}, nil) || s.enough(plan{requests: 1}, nil) || s.enough(plan{pods: 1}, nil) {
		t.Error("enough is not what the plan says")
	}
}

// Each kind of the table has clients, and each client a kind.
func TestEveryProtocolIsInTheTable(t *testing.T) {
	has := make(map[string]bool)
	for _, crowds := range everyProtocol() {
		for _, c := range crowds {
			has[c.kind] = true
		}
	}
	for _, kind := range longKinds {
		if !has[kind] {
			t.Errorf("no client is of kind %q", kind)
		}
		delete(has, kind)
	}
	if len(has) > 0 {
		t.Errorf("not in the table: %v", has)
	}
}
