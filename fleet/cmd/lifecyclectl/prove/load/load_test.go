package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal keeps what a load writes, and ends it once done is true.
type journal struct {
	done   func([]Record) bool
	cancel context.CancelFunc

	mu      sync.Mutex // guards the field below
	records []Record
}

func (j *journal) Write(line []byte) (int, error) {
	var r Record
	if err := json.Unmarshal(line, &r); err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
	if j.done(j.records) {
		j.cancel()
	}
	return len(line), nil
}

// runLoad runs a load until done.
func runLoad(t *testing.T, p Plan, done func([]Record) bool) []Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := &journal{done: done, cancel: cancel}
	if err := Run(ctx, p, j); err != nil {
		t.Fatal(err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("it did not get done: %+v", j.records)
	}
	for i, r := range j.records {
		if r.Seq != i+1 {
			t.Errorf("record %d has number %d", i+1, r.Seq)
		}
	}
	return j.records
}

// answeredEach returns a condition that holds when a request of each kind was answered.
func answeredEach(kinds ...string) func([]Record) bool {
	return func(records []Record) bool {
		tick := records[len(records)-1].Tick
		for _, k := range kinds {
			if tick == nil || tick.Counts[k].Answered == 0 {
				return false
			}
		}
		return true
	}
}

func serve(t *testing.T, tls bool, handler http.HandlerFunc) (addr string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(handler)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	srv.Config.Protocols = protocols
	srv.EnableHTTP2 = true
	if tls {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// events answers with one event.
func events(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: .\n\n")
	_ = http.NewResponseController(w).Flush()
}

func TestEveryKindIsAnswered(t *testing.T) {
	for name, tls := range map[string]bool{"cleartext": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			var post atomic.Value
			addr := serve(t, tls, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				switch r.Method + " " + r.URL.Path {
				case "POST /post":
					post.Store(fmt.Sprintf("%s %s", r.Proto, body))
				case "GET /events":
					events(w)
				case "GET /get":
					if r.ProtoMajor != 1 {
						t.Errorf("GET by %s", r.Proto)
					}
				default:
					t.Errorf("%s %s", r.Method, r.URL)
				}
			})
			records := runLoad(t, Plan{Addr: addr, TLS: tls, Get: "/get", Post: "/post", Stream: "/events", Clients: 1}, answeredEach(Kinds...))
			last := records[len(records)-1].Tick
			for _, k := range Kinds {
				if c := last.Counts[k]; c.Lost != 0 || c.Sent != c.Answered {
					t.Errorf("%s: %+v", k, c)
				}
			}
			if got := post.Load(); got != "HTTP/2.0 prove" {
				t.Errorf("the POST was %v", got)
			}
		})
	}
}

// A server that does not speak HTTP/2 is not blamed for it; one that does not answer
// at all gets no load.
func TestHello(t *testing.T) {
	addr := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	for name, tt := range map[string]struct {
		plan  Plan
		error string
		skips map[string]string
	}{
		"no HTTP/2":   {Plan{Addr: addr, Get: "/", Post: "/"}, "", map[string]string{HTTP2: "does not speak it", Stream: "not asked for"}},
		"only GET":    {Plan{Addr: addr, Get: "/"}, "", map[string]string{HTTP2: "not asked for", Stream: "not asked for"}},
		"no stream":   {Plan{Addr: addr, Get: "/", Stream: "/"}, "GET / as a stream: status 200", nil},
		"status 500":  {Plan{Addr: addr, Get: "/broken"}, "GET /broken: status 500", nil},
		"closed port": {Plan{Addr: ln.Addr().String(), Get: "/"}, "connection refused", nil},
	} {
		t.Run(name, func(t *testing.T) {
			tt.plan.Clients = 1
			hello := runLoad(t, tt.plan, func(r []Record) bool { return r[0].Hello != nil })[0].Hello
			if tt.error == "" && hello.Error != "" || !strings.Contains(hello.Error, tt.error) {
				t.Errorf("error %q, want %q", hello.Error, tt.error)
			}
			for kind, why := range tt.skips {
				if !strings.Contains(hello.Skipped[kind], why) {
					t.Errorf("%s is left out because %q, want %q", kind, hello.Skipped[kind], why)
				}
			}
		})
	}
}

// Each way to lose a request is seen, reported once, and not repeated.
func TestLossesAreSeen(t *testing.T) {
	hijack := func(w http.ResponseWriter, say string) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		fmt.Fprint(conn, say)
		conn.Close()
	}
	for name, tt := range map[string]struct {
		kind string
		lose http.HandlerFunc // after the first request
		how  How
	}{
		"closed": {Fresh, func(w http.ResponseWriter, _ *http.Request) { hijack(w, "") }, Closed},
		"cut": {Fresh, func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")
		}, Cut},
		"status":        {Kept, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, Status},
		"a reset":       {HTTP2, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Closed},
		"a cut stream":  {Stream, func(w http.ResponseWriter, r *http.Request) { events(w); panic(http.ErrAbortHandler) }, Cut},
		"stream status": {Stream, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, Status},
	} {
		t.Run(name, func(t *testing.T) {
			var greeted, served atomic.Int64
			path := "/" + strings.ReplaceAll(name, " ", "-")
			addr := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != path || greeted.Add(1) == 1 {
					events(w)
					return
				}
				served.Add(1)
				tt.lose(w, r)
			})
			p := Plan{Addr: addr, Get: "/", Clients: 1}
			switch tt.kind {
			case HTTP2:
				p.Post = path
			case Stream:
				p.Stream = path
			default:
				p.Get = path
			}
			records := runLoad(t, p, func(r []Record) bool {
				last := r[len(r)-1].Loss
				return last != nil && last.Kind == tt.kind
			})
			lost := 0
			for _, r := range records {
				if l := r.Loss; l != nil {
					lost++
					if l.Kind == tt.kind && (l.How != tt.how || l.Why == "" || l.Lost.Before(l.Sent)) {
						t.Errorf("%+v, want %s", l, tt.how)
					}
				}
			}
			// One more may have been on its way when the load ended.
			if more := served.Load() - int64(lost); more < 0 || more > 1 {
				t.Errorf("%d requests reached the server, %d losses are reported", served.Load(), lost)
			}
			last := records[len(records)-1].Tick
			if last == nil || last.Counts[tt.kind].Lost == 0 {
				t.Errorf("the totals have none: %+v", last)
			}
		})
	}
}

// The client that keeps its connection does not look whether it was closed.
func TestAnIdleCloseLosesARequest(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.IdleTimeout = 10 * time.Millisecond
	srv.Start()
	defer srv.Close()
	records := runLoad(t, Plan{Addr: srv.Listener.Addr().String(), Get: "/", Clients: 1}, func(r []Record) bool { return r[len(r)-1].Loss != nil })
	for _, r := range records {
		if l := r.Loss; l != nil && (l.Kind != Kept || !l.Kept || l.How != Closed || l.Idle <= 0) {
			t.Errorf("%+v", l)
		}
	}
}

func TestHowAConnectFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if _, err := (&target{Plan{Addr: ln.Addr().String()}}).dial(tryIn); howOf(err) != Refused {
		t.Errorf("%v is %s", err, howOf(err))
	}
	timeout := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	for err, want := range map[error]How{timeout: Unreachable, context.DeadlineExceeded: Late, io.EOF: Closed, errors.New("http2: Transport received Server's graceful shutdown GOAWAY"): GoAway} {
		if how := howOf(err); how != want {
			t.Errorf("%v is %s, want %s", err, how, want)
		}
	}
}

func TestCommandWantsAPlan(t *testing.T) {
	if err := Command(t.Context(), "{", new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "read the plan") {
		t.Errorf("%v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestAWriteThatFailsIsToldAtTheEnd(t *testing.T) {
	addr := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Run(ctx, Plan{Addr: addr, Get: "/", Clients: 1}, full{}); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("%v", err)
	}
}
