package operator_test

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// 1000 watchers of 10 000 entities get all of them and then a change. The server
// does not keep a copy for each.
func TestAThousandWatchersOfTenThousandEntities(t *testing.T) {
	if testing.Short() {
		t.Skip("short: ten million messages")
	}
	const entities, watchers = 10_000, 1000
	m := newMemory(entities)
	base, _ := serve(t, operator.Config{Workflows: m, Rate: 1e6})
	client := h2c(t)
	var synced, told sync.WaitGroup
	synced.Add(watchers)
	told.Add(watchers)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var failed atomic.Int64
	for range watchers {
		all.Go(func() {
			c := operatorv1connect.NewWorkflowServiceClient(client, base, connect.WithGRPC())
			// One entity each, so that the test measures the server and not itself.
			watch, err := c.Watch(ctx, &operatorv1.WatchRequest{Type: "drone-survey", Id: "m-00007"})
			onSync, onMove := sync.OnceFunc(synced.Done), sync.OnceFunc(told.Done)
			defer onSync()
			defer onMove()
			if err != nil {
				failed.Add(1)
				return
			}
			defer watch.Close()
			for watch.Receive() {
				switch {
				case watch.Msg().GetKind() == operatorv1.WatchResponse_KIND_SYNCED:
					onSync()
				case watch.Msg().GetEntity().GetPhase() == "flying":
					onMove()
					for watch.Receive() {
					}
					return
				}
			}
			failed.Add(1)
		})
	}
	synced.Wait()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, _, err := m.Transition(ctx, &operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00007", Phase: "flying"}, "", 0); err != nil {
		t.Fatal(err)
	}
	told.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d watchers failed", failed.Load())
	}
	// All watchers share one watch. The index of the type has another, which may not have begun.
	if m.watches > 2 {
		t.Errorf("the area was watched %d times", m.watches)
	}
	// Client and server share this process: sockets, buffers and goroutines of
	// both, for each watcher.
	if each := before.HeapInuse / watchers; each > 256<<10 {
		t.Errorf("%d KiB for each watcher", each>>10)
	}
	t.Logf("%d MiB heap in use with %d watchers of %d entities, client and server together", before.HeapInuse>>20, watchers, entities)
}

// A watch whose client stops reading delays no other and uses no memory.
func TestWatcherThatStopsReading(t *testing.T) {
	if testing.Short() {
		t.Skip("long: 50 000 changes of 1 kB")
	}
	m := newMemory(0)
	base, _ := serve(t, operator.Config{Workflows: m})
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /watch/workflows/drone-survey HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := conn.Read(first); err != nil {
		t.Fatal(err)
	}
	c := operatorv1connect.NewWorkflowServiceClient(http.DefaultClient, base)
	watch, err := c.Watch(t.Context(), &operatorv1.WatchRequest{Type: "drone-survey", Id: "last"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	text := strings.Repeat("x", 1000)
	for i := range 50_000 { // more than all buffers in between hold
		m.add("m-"+string(rune('a'+i%20)), mission{Note: text})
		if i%1000 == 0 {
			m.mu.Lock()
			clear(m.history)
			m.mu.Unlock()
		}
	}
	m.add("last", mission{})
	stop := time.AfterFunc(time.Minute, func() { watch.Close() })
	defer stop.Stop()
	for watch.Receive() && watch.Msg().GetEntity().GetId() != "last" {
	}
	if watch.Msg().GetEntity().GetId() != "last" {
		t.Errorf("another watch was delayed: %v", watch.Err())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grew := int64(after.HeapAlloc) - int64(before.HeapAlloc); grew > 32<<20 {
		t.Errorf("50 000 unread changes hold %d MiB", grew>>20)
	}
}

func FuzzAPI(f *testing.F) {
	s, err := operator.New(operator.Config{Workflows: newMemory(3), Rate: 1e9, Logger: quiet})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(context.Background()) })
	for _, seed := range [][3]string{
		{"GET", "/workflows/drone-survey?match=org%3Dacme&page_size=2", ""},
		{"GET", "/workflows/drone-survey?page_token=eyJhIjoieCJ9", ""},
		{"POST", "/workflows/drone-survey/m-00000/transition", `{"phase":"flying","ifMatch":"\"1\""}`},
		{"PATCH", "/workflows/drone-survey/m-00000", `{"fields":{"priority":1e999,"due":"x","armed":[{}]}}`},
		{"POST", "/workers", `{"mimeType":"a","topics":[""],"code":{"content":"AA=="}}`},
		{"POST", "/workers/x/deadletters:redrive", `{"ids":["1"]}`},
		{"GET", "/ui/workflows/drone-survey?phase=x&match=a,b=c&size=-1&page=zz", ""},
		{"POST", "/ui/act/patch", `type=drone-survey&id=m-00000&field=priority&value=x`},
		{"GET", "/ui/act/transition?type=drone-survey&id=m-00000&phase=%3Cb%3E", ""},
		{"POST", "/lifecycle.operator.v1.WorkflowService/ListEntities", `{"type":"drone-survey","match":["priority=9999999999999999999"]}`},
		{"GET", "/workflows/%2e%2e/%zz", ""}, {"BREW", "//", "\x00"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, method, target, body string) {
		if strings.HasPrefix(target, "/watch/") || !strings.HasPrefix(target, "/") || strings.Contains(target, "Watch") {
			return // a watch does not end
		}
		r, err := http.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
		if err != nil {
			return
		}
		r.RemoteAddr, r.RequestURI = "127.0.0.1:1", target
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})))
		r.Header.Set("Content-Type", "application/json")
		if strings.HasPrefix(target, "/ui/") {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := &sink{header: http.Header{}}
		s.Handler().ServeHTTP(w, r)
		if w.code == http.StatusInternalServerError {
			t.Errorf("%s %s %s: %s", method, target, body, w.text)
		}
		if strings.HasPrefix(w.header.Get("Content-Type"), "text/html") && strings.Contains(w.text, "<script>") {
			t.Errorf("%s: a script in %s", target, w.text)
		}
	})
}

// sink is a ResponseWriter that keeps what is written.
type sink struct {
	header http.Header
	code   int
	text   string
}

func (s *sink) Header() http.Header { return s.header }
func (s *sink) Flush()              {}
func (s *sink) WriteHeader(c int) {
	if s.code == 0 {
		s.code = c
	}
}
func (s *sink) Write(b []byte) (int, error) {
	s.WriteHeader(200)
	s.text += string(b)
	return len(b), nil
}

func BenchmarkListEntities(b *testing.B) {
	base, _ := serve(b, operator.Config{Workflows: newMemory(1000), Rate: 1e9})
	c := operatorv1connect.NewWorkflowServiceClient(h2c(b), base, connect.WithGRPC())
	for b.Loop() {
		if _, err := c.ListEntities(b.Context(), &operatorv1.ListEntitiesRequest{Type: "drone-survey"}); err != nil {
			b.Fatal(err)
		}
	}
}
