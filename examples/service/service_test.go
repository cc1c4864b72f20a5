//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/pleme-io/lifecycle-go"
)

// quick is a budget that a test can wait for.
var quick = []string{"-lifecycle.drain-interval=2s", "-lifecycle.go-away-after=300ms", "-lifecycle.accept-quiet=200ms", "-lifecycle.linger=1s", "-lifecycle.shutdown-grace=20s"}

// client returns a client with connections of its own.
func client(t *testing.T, protocols func(*http.Protocols)) *http.Client {
	p := new(http.Protocols)
	protocols(p)
	transport := &http.Transport{Protocols: p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func http1(p *http.Protocols) { p.SetHTTP1(true) }
func http2(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }

// call makes one request and returns the status and the body.
func call(ctx context.Context, c *http.Client, method, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func mustCall(t *testing.T, c *http.Client, method, url string, want int) string {
	t.Helper()
	status, body, err := call(t.Context(), c, method, url)
	if err != nil {
		t.Fatal(err)
	}
	if status != want {
		t.Fatalf("%s %s is %d, want %d: %s", method, url, status, want, body)
	}
	return body
}

func TestPlanesAndMetricsAnswer(t *testing.T) {
	c := start(t, nil, quick...)
	url, health := c.addresses(t)
	h1 := client(t, http1)
	for _, plane := range []string{"/livez", "/healthz", "/readyz", "/startupz"} {
		if body := mustCall(t, h1, "GET", health+plane, 200); !strings.Contains(body, `"status":"ok"`) {
			t.Errorf("%s says %s", plane, body)
		}
	}
	if body := mustCall(t, h1, "GET", health+"/readyz", 200); !strings.Contains(body, `"db":"ok"`) {
		t.Errorf("/readyz does not name the database: %s", body)
	}
	mustCall(t, client(t, http2), "POST", url+"/work?note=over+http2", 201)
	mustCall(t, h1, "POST", url+"/work?sleep=later", 400)
	mustCall(t, h1, "POST", url+"/fail?how=error", 404) // faults are not allowed
	if body := mustCall(t, h1, "GET", health+"/metrics", 200); !strings.Contains(body, "\nservice_work_added_total 1\n") {
		t.Error("/metrics does not count the work")
	}
	c.signal(t, os.Interrupt)
	if code := c.exit(t); code != 0 {
		t.Errorf("exit status %d after SIGINT, want 0", code)
	}
}

// The whole story: streams are open and requests keep coming when SIGTERM
// arrives. No request fails, every stream gets a goodbye, and acknowledged work is in
// the database afterwards.
func TestSIGTERMFailsNoRequest(t *testing.T) {
	t.Parallel() // the window is long, for clients that are suspended during it
	file := filepath.Join(t.TempDir(), "with space & ?.db")
	c := start(t, []string{"SERVICE_DB=" + file}, append(quick, "-lifecycle.drain-interval=6s")...)
	url, health := c.addresses(t)

	events := openEvents(t, url)
	socket := openSocket(t, url)
	load := make(map[string]<-chan loadResult)
	for name, cl := range map[string]*http.Client{"HTTP/1.1": client(t, http1), "HTTP/2": client(t, http2)} {
		load[name] = keepPosting(t.Context(), cl, client(t, http1), url, health)
	}
	if first := events.next(t); first != "hello" {
		t.Fatalf("the first event is %q", first)
	}
	if work := events.next(t); work != "work" {
		t.Fatalf("the second event is %q", work)
	}

	c.signal(t, syscall.SIGTERM)
	c.await(t, "draining: still serving everything")
	h1 := client(t, http1)
	mustCall(t, h1, "GET", health+"/readyz", 503)
	mustCall(t, h1, "GET", health+"/livez", 200)

	for event := events.next(t); event != "goodbye"; event = events.next(t) {
		if event != "work" {
			t.Fatalf("the stream says %q, want work or goodbye", event)
		}
	}
	if status := socket.wait(t); status != websocket.StatusGoingAway {
		t.Errorf("the websocket was closed with %v, want %v", status, websocket.StatusGoingAway)
	}
	var acknowledged []int64
	for name, done := range load {
		r := <-done
		if r.err != nil {
			t.Errorf("%s: %v, after %d good requests", name, r.err, len(r.ids))
		}
		acknowledged = append(acknowledged, r.ids...)
	}
	if code := c.exit(t); code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
	for _, line := range []string{"drainer done", "server retired", "shutdown hook done", "the app stopped"} {
		c.await(t, line)
	}
	rows := rowsOf(t, file)
	for _, id := range acknowledged {
		if !slices.Contains(rows, id) {
			t.Errorf("work %d was acknowledged and is not in the database", id)
		}
	}
	t.Logf("%d requests acknowledged, %d rows", len(acknowledged), len(rows))
}

// A request that is in flight at the signal is finished.
func TestRequestInFlightIsFinished(t *testing.T) {
	t.Parallel()
	c := start(t, nil, append(quick, "-lifecycle.drain-interval=500ms", "-lifecycle.go-away-after=100ms", "-lifecycle.linger=8s")...)
	url, health := c.addresses(t)
	answered := make(chan error, 1)
	go func() {
		// Longer than the window: it ends in the grace.
		status, body, err := call(context.WithoutCancel(t.Context()), client(t, http1), "POST", url+"/work?sleep=5s")
		if err == nil && status != 201 {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		answered <- err
	}()
	h1 := client(t, http1)
	for !strings.Contains(mustCall(t, h1, "GET", health+"/metrics", 200), "\nservice_requests_in_flight 1\n") {
		select {
		case err := <-answered:
			t.Fatal("it was answered before it was seen: ", err)
		case <-time.After(10 * time.Millisecond): // another process: there is no event to wait for
		}
	}
	c.signal(t, syscall.SIGTERM)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if code := c.exit(t); code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
}

func TestFaultsHaveTheirOutcome(t *testing.T) {
	tests := []struct {
		how      string
		signal   bool // the fault alone does not stop it
		code     int
		says     string // in the output
		keepHook bool   // the database hook has run all the same
	}{
		{how: failError, code: 1, says: "was told to fail", keepHook: true},
		{how: failPanic, code: 1, says: "was told to panic", keepHook: true},
		{how: failStuckUnit, signal: true, code: lifecycle.ExitStuck, says: "faulty", keepHook: true},
		{how: failStuckHook, signal: true, code: lifecycle.ExitStuck, says: "faulty", keepHook: true},
	}
	for _, tt := range tests {
		t.Run(tt.how, func(t *testing.T) {
			c := start(t, nil, "-allow-faults", "-lifecycle.drain-interval=200ms", "-lifecycle.go-away-after=0", "-lifecycle.accept-quiet=0", "-lifecycle.linger=0",
				"-lifecycle.shutdown-grace=4s", "-lifecycle.unit-slice=1s", "-lifecycle.hook-slice=1s")
			url, _ := c.addresses(t)
			mustCall(t, client(t, http1), "POST", url+"/fail?how="+tt.how, 202)
			if tt.signal {
				c.signal(t, syscall.SIGTERM)
			}
			if code := c.exit(t); code != tt.code {
				t.Errorf("exit status %d, want %d", code, tt.code)
			}
			if !strings.Contains(c.log(), tt.says) {
				t.Errorf("the output does not say %q", tt.says)
			}
			if tt.keepHook && !strings.Contains(c.log(), `"hook":"db"`) {
				t.Error("the database was not closed")
			}
		})
	}
}

func TestUnreadyIsNotDead(t *testing.T) {
	c := start(t, nil, append(quick, "-allow-faults")...)
	url, health := c.addresses(t)
	h1 := client(t, http1)
	mustCall(t, h1, "POST", url+"/fail?how=unready", 202)
	if body := mustCall(t, h1, "GET", health+"/readyz", 503); !strings.Contains(body, "was told to be unready") {
		t.Errorf("/readyz does not say why: %s", body)
	}
	mustCall(t, h1, "GET", health+"/livez", 200)
	mustCall(t, h1, "POST", url+"/fail?how=unready", 202)
	mustCall(t, h1, "GET", health+"/readyz", 200)
	if body := mustCall(t, h1, "POST", url+"/fail?how=badly", 400); !strings.Contains(body, "want one of error, lose, panic, restart, stuck-hook, stuck-unit, unready") {
		t.Errorf("a failure that it does not know: %s", body)
	}
}

func TestBadStartsSayWhy(t *testing.T) {
	busy := start(t, nil, quick...)
	url, _ := busy.addresses(t)
	for name, tt := range map[string]struct {
		args []string
		env  string
		exit int
		want string
	}{
		"flag": {
			exit: 78,
			args: []string{"-drain=5s"},
			want: "flag -drain: there is no such flag",
		},
		"environment": {
			exit: 78,
			env:  "SERVICE_LIFECYCLE_DRAIN_INTERVAL=5",
			want: `environment SERVICE_LIFECYCLE_DRAIN_INTERVAL: lifecycle.drain_interval is "5": want a duration with its unit`,
		},
		"budget": {
			exit: 78,
			args: []string{"-lifecycle.termination-grace=10s"},
			want: "the kubelet would kill the process 17s before it is done",
		},
		"address": {
			exit: 1,
			args: []string{"-addr=" + strings.TrimPrefix(url, "http://")},
			want: "address already in use",
		},
		"database": {
			exit: 1,
			args: []string{"-db=" + filepath.Join(t.TempDir(), "no", "such", "folder.db")},
			want: "open database",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, []string{tt.env}, tt.args...)
			if code := c.exit(t); code != tt.exit {
				t.Errorf("exit status %d, want %d", code, tt.exit)
			}
			if log := strings.ReplaceAll(c.log(), `\"`, `"`); !strings.Contains(log, tt.want) { // the log quotes
				t.Errorf("the output does not say %q", tt.want)
			}
		})
	}
}

// eventStream is one open SSE stream: the names of its events.
type eventStream struct {
	names  chan string // closed at its end
	cancel context.CancelFunc
}

func openEvents(t *testing.T, url string) *eventStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client(t, http1).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	s := &eventStream{names: make(chan string), cancel: cancel}
	go func() {
		defer close(s.names)
		defer res.Body.Close()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				select {
				case s.names <- name:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range s.names {
		}
	})
	return s
}

// next returns the name of the next event.
func (s *eventStream) next(t *testing.T) string {
	t.Helper()
	select {
	case name, ok := <-s.names:
		if !ok {
			t.Fatal("the stream ended without a goodbye")
		}
		return name
	case <-time.After(patience):
		t.Fatal("the stream is silent")
	}
	return ""
}

// socketStream is one open websocket.
type socketStream struct{ closed chan websocket.StatusCode }

func openSocket(t *testing.T, url string) *socketStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(url, "http")+"/socket", &websocket.DialOptions{HTTPClient: client(t, http1)})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	s := &socketStream{closed: make(chan websocket.StatusCode, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				s.closed <- websocket.CloseStatus(err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.CloseNow() // the other side closed it
	})
	return s
}

// wait returns the status of the close frame, -1 when there was none.
func (s *socketStream) wait(t *testing.T) websocket.StatusCode {
	t.Helper()
	select {
	case status := <-s.closed:
		return status
	case <-time.After(patience):
		t.Fatal("the websocket is not closed")
	}
	return -1
}

type loadResult struct {
	ids []int64
	err error
}

// keepPosting posts work, one request after the other. It goes on for a while after it
// has seen readiness go down, as clients do until a cluster's endpoints have changed. It
// stops at the first request that fails.
func keepPosting(ctx context.Context, c, prober *http.Client, url, health string) <-chan loadResult {
	done := make(chan loadResult, 1)
	go func() {
		var r loadResult
		defer func() { done <- r }()
		for left := -1; left != 0; left-- {
			status, body, err := call(ctx, c, "POST", url+"/work?note=load&sleep=5ms")
			if err == nil && status != http.StatusCreated {
				err = fmt.Errorf("status %d: %s", status, body)
			}
			var made struct{ ID int64 }
			if err == nil {
				err = json.Unmarshal([]byte(body), &made)
			}
			if err != nil {
				r.err = err
				return
			}
			r.ids = append(r.ids, made.ID)
			if left < 0 {
				left = -1
				if status, _, err := call(ctx, prober, "GET", health+"/readyz"); err != nil {
					r.err = fmt.Errorf("ask for readiness: %w", err)
					return
				} else if status == http.StatusServiceUnavailable {
					left = 50
				}
			}
		}
	}()
	return done
}

func rowsOf(t *testing.T, file string) (ids []int64) {
	t.Helper()
	db, err := openStore(file)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := db.db.QueryContext(t.Context(), `SELECT id FROM work`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := errors.Join(rows.Err(), db.Close()); err != nil {
		t.Fatal(err)
	}
	return ids
}

// A new service.yaml reaches the running process, and its metrics show it.
func TestChangedFileIsTakenOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "service.yaml")
	write := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("lifecycle:\n  drain_interval: 1s\n")
	c := start(t, []string{"SERVICE_CONFIG=" + file})
	_, health := c.addresses(t)
	h := client(t, http1)
	page := mustCall(t, h, "GET", health+"/metrics", 200)
	for _, want := range []string{"\nlifecycle_phase{phase=\"running\"} 1\n", "\nlifecycle_drain_interval_seconds 1\n", "\nlifecycle_unit_status{status=\"Running\",unit=\"poller\"} 1\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	write("lifecycle:\n  drain_interval: 1s\n  drain_min: 9s\n")
	if failed := c.await(t, "reload failed, the old state stays"); !strings.Contains(fmt.Sprint(failed["error"]), "lifecycle.drain_min (9s) is longer than the window, lifecycle.drain_interval (1s)") {
		t.Errorf("the log says %v", failed)
	}
	write("lifecycle:\n  drain_interval: 1500ms\n")
	c.await(t, "config: changed")
	if page := mustCall(t, h, "GET", health+"/metrics", 200); !strings.Contains(page, "\nlifecycle_drain_interval_seconds 1.5\n") {
		t.Error("/metrics shows the old drain interval")
	}
	c.signal(t, syscall.SIGTERM)
	if code := c.exit(t); code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
}
