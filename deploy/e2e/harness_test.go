package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// These tests check the clients: that they count every outcome, and notice
// every goodbye. They need no cluster.

// serverFor serves h over HTTP/1.1 and HTTP/2 without TLS.
func serverFor(t *testing.T, h http.HandlerFunc) (addr string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// run lets one client send until done returns true.
func (c client) run(t *testing.T, addr string, done func(*ledger) bool) *ledger {
	t.Helper()
	l := newLedger("test")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c(ctx, addr, l)
	}()
	eventually(t, "the client to have seen enough", func() bool { return done(l) })
	cancel()
	<-ended
	return l
}

func sentAtLeast(n int) func(*ledger) bool {
	return func(l *ledger) bool {
		_, sent := l.lost()
		return sent >= n
	}
}

var soon = between(0, time.Millisecond)

func clients() map[string]client {
	return map[string]client{
		"keep-alive":  http1("/", 201, soon),
		"fresh":       fresh("/", 201, soon),
		"trickling":   hesitant{silent: time.Millisecond, trickle: time.Millisecond}.client("/", 201, soon),
		"HTTP/2":      http2("/", 201, soon),
		"HTTP/2 once": postOnce(false, "/", 201, soon),
	}
}

func TestClientsCountAnswers(t *testing.T) {
	for name, c := range clients() {
		t.Run(name, func(t *testing.T) {
			var served atomic.Int64
			addr := serverFor(t, func(w http.ResponseWriter, _ *http.Request) {
				served.Add(1)
				w.WriteHeader(http.StatusCreated)
			})
			l := c.run(t, addr, sentAtLeast(10))
			if lost, sent := l.lost(); lost != 0 || int64(sent) != served.Load() || l.answered != sent {
				t.Errorf("%d served, and the account is %s\n%s", served.Load(), l, l.explain(nil, 5))
			}
			if many := name == "fresh" || name == "trickling"; many != (l.fresh == l.sent) || !many && l.fresh != 1 {
				t.Errorf("%d of %d were on a new connection", l.fresh, l.sent)
			}
		})
	}
}

func TestClientsSeeBadAnswers(t *testing.T) {
	for name, c := range clients() {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			addr := serverFor(t, func(w http.ResponseWriter, _ *http.Request) {
				if n.Add(1)%2 == 0 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			l := c.run(t, addr, sentAtLeast(10))
			if lost, sent := l.lost(); lost != sent/2 || l.status[503] != lost || !strings.Contains(l.explain(nil, 1), "status 503") {
				t.Errorf("want every second one lost: %s", l)
			}
		})
	}
}

// A server that hangs up, before the answer or in the middle of it, loses the
// request, and no client may hide that by sending it again.
func TestClientsSeeLostRequests(t *testing.T) {
	for name, c := range clients() {
		for how, say := range map[string]string{"at once": "", "in the middle": "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nshort"} {
			if strings.HasPrefix(name, "HTTP/2") && say != "" {
				continue // it is not HTTP/1.1
			}
			t.Run(name+" "+how, func(t *testing.T) {
				var served atomic.Int64
				addr := serverFor(t, func(w http.ResponseWriter, r *http.Request) {
					served.Add(1)
					if r.ProtoMajor == 2 {
						panic(http.ErrAbortHandler) // RST_STREAM, which does not allow a retry
					}
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					fmt.Fprint(conn, say)
					conn.Close()
				})
				l := c.run(t, addr, sentAtLeast(5))
				if lost, sent := l.lost(); lost != sent || int64(sent) != served.Load() {
					t.Errorf("%d served, %s", served.Load(), l)
				}
			})
		}
	}
}

func TestClientsSeeAClosedPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	for name, c := range clients() {
		t.Run(name, func(t *testing.T) {
			l := c.run(t, ln.Addr().String(), sentAtLeast(3))
			if lost, sent := l.lost(); lost != sent {
				t.Errorf("the server does not listen, and %d of %d were answered", sent-lost, sent)
			}
		})
	}
}

// The keep-alive client is the most careless one: it notices that the
// server has closed an idle connection by losing a request.
func TestKeepAliveClientLosesWhatAnIdleCloseLoses(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	srv.Config.IdleTimeout = 20 * time.Millisecond
	srv.Start()
	defer srv.Close()
	idle := func() time.Duration { return 200 * time.Millisecond }
	l := http1("/", 201, idle).run(t, srv.Listener.Addr().String(), func(l *ledger) bool { lost, _ := l.lost(); return lost > 0 })
	if why := l.explain(nil, 1); !regexp.MustCompile(`used \d+ times and idle for`).MatchString(why) {
		t.Errorf("it was lost for another reason: %s", why)
	}
}

func TestClientsFollowAGoodbye(t *testing.T) {
	for name, c := range clients() {
		t.Run(name, func(t *testing.T) {
			addr := serverFor(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Connection", "close") // on HTTP/2 net/http makes GOAWAY of it
				w.WriteHeader(http.StatusCreated)
			})
			l := c.run(t, addr, func(l *ledger) bool { return l.seen() >= 3 })
			if lost, sent := l.lost(); lost > 0 || !strings.HasPrefix(name, "HTTP/2") && l.fresh != sent {
				t.Errorf("%s\n%s", l, l.explain(nil, 3))
			}
		})
	}
}

func TestStreamsTellAGoodbyeFromACut(t *testing.T) {
	var goodbye atomic.Bool
	addr := serverFor(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/socket" {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if goodbye.Load() {
				_ = conn.Close(websocket.StatusGoingAway, "")
			} else {
				_ = conn.CloseNow()
			}
			return
		}
		fmt.Fprint(w, "event: hello\ndata: .\n\n")
		if goodbye.Load() {
			fmt.Fprint(w, "event: goodbye\ndata: .\n\n")
		}
	})
	for name, c := range map[string]client{"events": events("/events"), "socket": socket("/socket")} {
		for _, polite := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, goodbye %v", name, polite), func(t *testing.T) {
				goodbye.Store(polite)
				l := c.run(t, addr, sentAtLeast(1))
				if lost, _ := l.lost(); polite && (lost > 0 || l.seen() == 0) || !polite && (lost == 0 || l.seen() > 0) { // the load may end one more stream
					t.Errorf("%s\n%s", l, l.explain(nil, 1))
				}
			})
		}
	}
}

func TestLossesAreExplained(t *testing.T) {
	l := newLedger("test")
	now := time.Now()
	l.enter(answer{sent: now.Add(-2 * time.Second), conn: "no connection", err: net.ErrClosed}, 201)
	l.enter(answer{sent: now, conn: "a new connection", status: 502}, 201)
	got := l.explain([]stop{{"pod-a", now.Add(-5 * time.Second)}, {"pod-b", now.Add(time.Hour)}}, 1)
	for _, want := range []string{"lost after 2", "on no connection: use of closed", "pod-a T0+5", "and 1 more"} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "pod-b") {
		t.Errorf("it names a pod that stopped later:\n%s", got)
	}
}
