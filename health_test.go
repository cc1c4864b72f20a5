package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

var errDown = errors.New("connection refused")

// fake is a check whose answer the test sets.
type fake struct {
	err  atomic.Pointer[error]
	runs atomic.Int64
}

func (f *fake) set(err error) { f.err.Store(&err) }

func (f *fake) Check(context.Context) error {
	f.runs.Add(1)
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func passing(context.Context) error { return nil }

// hanging returns a check that ignores its context until release is called.
func hanging() (p ProbeFunc, release func()) {
	ch := make(chan struct{})
	return func(context.Context) error { <-ch; return nil }, sync.OnceFunc(func() { close(ch) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get probes a path and returns the status and the body.
func get(t testing.TB, r *Registry, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if n := w.Header().Get("Content-Length"); n != strconv.Itoa(w.Body.Len()) {
		t.Errorf("GET %s: Content-Length %q for a body of %d bytes", path, n, w.Body.Len())
	}
	return w.Code, strings.TrimSuffix(w.Body.String(), "\n")
}

// expect probes a path and compares. An empty body is not compared.
func expect(t testing.TB, r *Registry, path string, status int, body string) {
	t.Helper()
	gotStatus, gotBody := get(t, r, path)
	if gotStatus != status || body != "" && gotBody != body {
		t.Errorf("GET %s:\n got %d %s\nwant %d %s", path, gotStatus, gotBody, status, body)
	}
}

func TestPlanesTriState(t *testing.T) {
	unknown := fmt.Errorf("sensor: %w", ErrUnknown)
	for name, tc := range map[string]struct {
		err                error
		live, rest         int
		liveBody, restBody string
	}{
		"up":      {nil, 200, 200, `{"status":"ok","checks":{"c":"ok"}}`, `{"status":"ok","checks":{"c":"ok"}}`},
		"down":    {errDown, 503, 503, `{"status":"fail","checks":{"c":"connection refused"}}`, `{"status":"fail","checks":{"c":"connection refused"}}`},
		"unknown": {unknown, 200, 503, `{"status":"ok","checks":{"c":"sensor: state unknown"}}`, `{"status":"fail","checks":{"c":"sensor: state unknown"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := NewRegistry(), new(fake)
			f.set(tc.err)
			must(t, r.RegisterLiveness("c", f))
			must(t, r.RegisterReadiness("c", f))
			must(t, r.RegisterStartup("c", f))
			expect(t, r, "/livez", tc.live, tc.liveBody)
			expect(t, r, "/healthz", tc.live, tc.liveBody)
			expect(t, r, "/readyz", tc.rest, tc.restBody)
			expect(t, r, "/startupz", tc.rest, tc.restBody)
			expect(t, r, "/readyz/c", tc.rest, tc.restBody)
			expect(t, r, "/healthz/c", tc.live, tc.liveBody)
		})
	}
}

func TestEmptyRegistryPasses(t *testing.T) {
	r := NewRegistry()
	for _, path := range []string{"/livez", "/healthz", "/readyz", "/startupz"} {
		expect(t, r, path, 200, `{"status":"ok","checks":{}}`)
	}
}

func TestUncachedCheckRunsForEveryProbe(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	must(t, r.RegisterReadiness("c", f))
	for i, err := range []error{nil, errDown, nil, nil, errDown, errDown, nil} {
		f.set(err)
		want := 200
		if err != nil {
			want = 503
		}
		expect(t, r, "/readyz", want, "")
		if n := f.runs.Load(); n != int64(i+1) {
			t.Fatalf("%d runs after %d probes", n, i+1)
		}
	}
}

func TestAnswersAreSortedAndNotStored(t *testing.T) {
	r := NewRegistry()
	for _, name := range []string{"m", "z", "a", "lz", "la"} {
		must(t, r.RegisterReadiness(name, ProbeFunc(passing)))
	}
	r.setGate(StateUp, "")
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"a":"ok","la":"ok","lifecycle":"ok","lz":"ok","m":"ok","z":"ok"}}`)
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control %q, want no-store", got)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q, want application/json", got)
	}
}

func TestMethods(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("c", ProbeFunc(passing)))
	srv := httptest.NewServer(r.Handler())
	defer srv.Close()
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+"/readyz", nil)
		must(t, err)
		res, err := srv.Client().Do(req)
		must(t, err)
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		switch method {
		case "GET":
			if res.StatusCode != 200 || len(body) == 0 {
				t.Errorf("GET: %d %s", res.StatusCode, body)
			}
		case "HEAD":
			if res.StatusCode != 200 || len(body) != 0 || res.ContentLength != 35 {
				t.Errorf("HEAD: %d, %d bytes, Content-Length %d; want 200 and that of a GET", res.StatusCode, len(body), res.ContentLength)
			}
		default:
			if res.StatusCode != 405 || res.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s: %d, Allow %q; want 405 and GET, HEAD", method, res.StatusCode, res.Header.Get("Allow"))
			}
		}
	}
}

func TestVerboseAndExclude(t *testing.T) {
	r := NewRegistry()
	down := ProbeFunc(func(context.Context) error { return errors.New("no route\n[+]forged ok") })
	unknown := ProbeFunc(func(context.Context) error { return ErrUnknown })
	excluded := new(fake)
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	must(t, r.RegisterReadiness("cache", down, WithNonCritical()))
	must(t, r.RegisterReadiness("peer", down))
	must(t, r.RegisterReadiness("sensor", unknown))
	must(t, r.RegisterReadiness("slow", excluded))

	expect(t, r, "/readyz?verbose", 503, `[-]cache failed (not critical): no route [+]forged ok
[+]db ok
[-]peer failed: no route [+]forged ok
[?]sensor unknown: state unknown
[+]slow ok
readyz check failed`)
	runs := excluded.runs.Load()
	expect(t, r, "/readyz?verbose&exclude=peer&exclude=sensor&exclude=slow&exclude=nope&exclude=lifecycle&exclude=", 200, `[-]cache failed (not critical): no route [+]forged ok
[+]db ok
[+]peer excluded: ok
[+]sensor excluded: ok
[+]slow excluded: ok
warn: some health checks cannot be excluded: no matches for "lifecycle", "nope"
readyz check passed`)
	if excluded.runs.Load() != runs {
		t.Error("an excluded check was run")
	}
	expect(t, r, "/readyz?exclude=peer&exclude=sensor", 200, `{"status":"ok","checks":{"cache":"no route\n[+]forged ok","db":"ok","slow":"ok"}}`)
	expect(t, r, "/readyz?exclude=peer", 503, "")
	expect(t, r, "/readyz/db?verbose", 200, "[+]db ok\nreadyz check passed")
	expect(t, r, "/readyz/cache", 503, `{"status":"fail","checks":{"cache":"no route\n[+]forged ok"}}`)
	expect(t, r, "/readyz?x=1", 503, "") // a parameter of somebody else's
}

func TestExcludeDoesNotHideTheLifecycle(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	r.setDraining(true)
	expect(t, r, "/readyz?exclude=lifecycle&exclude=db", 503, `{"status":"fail","checks":{"lifecycle":"draining"}}`)
	expect(t, r, "/readyz/lifecycle", 503, `{"status":"fail","checks":{"lifecycle":"draining"}}`)
	expect(t, r, "/readyz?verbose", 503, "[+]db ok\n[-]lifecycle failed: draining\nreadyz check failed")
}

func TestWrongPathsAndQueries(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	for path, want := range map[string]int{
		"/":                    404,
		"/readyz/":             404,
		"/readyz/nope":         404,
		"/readyz/db/x":         404,
		"/readyz/DB":           404,
		"/Readyz":              404,
		"/livez/db":            404,
		"//readyz":             404,
		"/readyz?exclude=%zz":  400,
		"/readyz?a;b":          400,
		"/readyz/db?verbose=1": 200,
		"/readyz?" + strings.Repeat("exclude=x&", 1000): 400,
		"/readyz/" + strings.Repeat("x", 100000):        404,
	} {
		status, body := get(t, r, path)
		if status != want {
			t.Errorf("GET %.40s: %d, want %d", path, status, want)
		}
		if len(body) > 300 {
			t.Errorf("GET %.40s: answered with %d bytes", path, len(body))
		}
	}
	if _, body := get(t, r, "/readyz/nope"); body != `readyz has no check "nope"` {
		t.Errorf("unknown check: %s", body)
	}
}

func TestManyPathsTakeNoMemory(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	probeAll := func(n int) {
		for i := range n {
			for _, format := range []string{"/p%d", "/readyz/p%d", "/readyz?exclude=p%d"} {
				w := httptest.NewRecorder()
				r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf(format, i), nil))
			}
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	probeAll(100)
	before := heap()
	probeAll(20000) // 60 000 distinct paths of 16 bytes and more: kept, they would be megabytes
	if grown := heap() - before; grown > 512<<10 {
		t.Errorf("the heap grew by %d bytes over 60000 distinct paths", grown)
	}
}

func TestRegistrationIsRefused(t *testing.T) {
	r := NewRegistry(WithProbeTimeout(-1), WithProbeEvents(nil))
	ok := ProbeFunc(passing)
	must(t, r.RegisterReadiness("taken", ok))
	must(t, r.RegisterLiveness("taken", ok)) // another plane
	must(t, r.RegisterReadiness("A-z.0_9~:@", ok))
	bad := map[string]error{
		"empty name":      r.RegisterReadiness("", ok),
		"slash":           r.RegisterReadiness("a/b", ok),
		"space":           r.RegisterReadiness("a b", ok),
		"percent":         r.RegisterReadiness("a%41", ok),
		"ampersand":       r.RegisterReadiness("a&b", ok),
		"umlaut":          r.RegisterReadiness("ä", ok),
		"dots":            r.RegisterReadiness("..", ok),
		"long":            r.RegisterReadiness(strings.Repeat("x", 129), ok),
		"reserved":        r.RegisterStartup("lifecycle", ok),
		"used twice":      r.RegisterReadiness("taken", ok),
		"nil probe":       r.RegisterReadiness("x", nil),
		"nil func":        r.RegisterReadiness("x", ProbeFunc(nil)),
		"nil option":      r.RegisterReadiness("x", ok, nil),
		"timeout":         r.RegisterReadiness("x", ok, WithCheckTimeout(-1)),
		"zero timeout":    r.RegisterReadiness("x", ok, WithCheckTimeout(0)),
		"ttl":             r.RegisterReadiness("x", ok, WithCache(0)),
		"interval":        r.RegisterReadiness("x", ok, WithPeriodic(-time.Second)),
		"both":            r.RegisterReadiness("x", ok, WithPeriodic(time.Second), WithCache(time.Second)),
		"max age":         r.RegisterReadiness("x", ok, WithMaxAge(-1)),
		"low max age":     r.RegisterReadiness("x", ok, WithPeriodic(time.Minute), WithMaxAge(time.Second)),
		"fail threshold":  r.RegisterReadiness("x", ok, WithFailureThreshold(0)),
		"other threshold": r.RegisterReadiness("x", ok, WithSuccessThreshold(-1)),
	}
	all := r.errs()
	for name, err := range bad {
		if !errors.Is(err, ErrInvalidProbe) {
			t.Errorf("%s: %v, want ErrInvalidProbe", name, err)
			continue
		}
		if !strings.Contains(all.Error(), err.Error()) {
			t.Errorf("%s: errs does not have %v", name, err)
		}
	}
	if n := strings.Count(all.Error(), "\n") + 1; n != len(bad)+2 {
		t.Errorf("errs has %d lines, want %d and the two options", n, len(bad))
	}
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"A-z.0_9~:@":"ok","taken":"ok"}}`)
	if NewRegistry().errs() != nil {
		t.Error("a new registry has errors")
	}
}

func TestRegisterWhileProbing(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("c0", ProbeFunc(passing), WithCache(time.Hour)))
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"c0":"ok"}}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				get(t, r, "/readyz")
			}
		})
		wg.Go(func() { must(t, r.RegisterReadiness(fmt.Sprintf("d%d", i), ProbeFunc(passing))) })
	}
	wg.Wait()
	must(t, r.RegisterReadiness("e", ProbeFunc(func(context.Context) error { return errDown })))
	status, body := get(t, r, "/readyz")
	var got struct {
		Status string
		Checks map[string]string
	}
	must(t, json.Unmarshal([]byte(body), &got))
	if status != 503 || got.Status != "fail" || len(got.Checks) != 10 || got.Checks["e"] != errDown.Error() || got.Checks["d7"] != "ok" {
		t.Errorf("got %d %s, want 503 and ten checks", status, body)
	}
}

func TestPanicGoexitAndHostileErrorsAreFailures(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("panics", ProbeFunc(func(context.Context) error { panic("boom") })))
	must(t, r.RegisterReadiness("panics-unknown", ProbeFunc(func(context.Context) error { panic(ErrUnknown) })))
	must(t, r.RegisterReadiness("exits", ProbeFunc(func(context.Context) error { runtime.Goexit(); return nil })))
	must(t, r.RegisterReadiness("nil-error", ProbeFunc(func(context.Context) error { var e *hostileError; return e })))
	must(t, r.RegisterReadiness("long", ProbeFunc(func(context.Context) error { return errors.New(strings.Repeat("x", 1<<20)) })))
	must(t, r.RegisterReadiness("binary", ProbeFunc(func(context.Context) error { return errors.New("\xff\x00\"\\") })))
	for range 2 {
		status, body := get(t, r, "/readyz")
		var got struct{ Checks map[string]string }
		must(t, json.Unmarshal([]byte(body), &got))
		if status != 503 {
			t.Errorf("status %d, want 503", status)
		}
		for name, want := range map[string]string{
			"panics":         "panic: boom",
			"panics-unknown": "panic: state unknown",
			"exits":          "exits: called runtime.Goexit",
			"long":           strings.Repeat("x", 1021) + "…",
			"binary":         "\uFFFD\x00\"\\",
		} {
			if got.Checks[name] != want {
				t.Errorf("%s: %.60q, want %.60q", name, got.Checks[name], want)
			}
		}
		if !strings.Contains(got.Checks["nil-error"], "cannot be read: runtime error: invalid memory address") {
			t.Errorf("nil-error: %q, want the panic of its Error method", got.Checks["nil-error"])
		}
	}
	for _, st := range r.Snapshot() {
		if st.State != StateDown {
			t.Errorf("%s is %s, want down", st.Name, st.State)
		}
	}
}

// hostileError is the classic: a nil pointer in an error.
type hostileError struct{ text string }

func (e *hostileError) Error() string { return e.text }

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		began := time.Now()
		must(t, r.RegisterStartup("boot", f))
		must(t, r.RegisterReadiness("slow", ProbeFunc(func(context.Context) error { time.Sleep(100 * time.Millisecond); return errDown }), WithNonCritical()))
		must(t, r.RegisterLiveness("self", ProbeFunc(passing)))
		r.setGate(StateUnknown, "starting")
		time.Sleep(time.Second)
		expect(t, r, "/readyz", 503, "")
		got := r.Snapshot()
		want := []ProbeStatus{
			{Plane: "liveness", Name: "self", State: StateUnknown, Since: began, Critical: true, Error: "not checked yet"},
			{Plane: "readiness", Name: "lifecycle", State: StateUnknown, Since: began, Critical: true, Error: "starting"},
			{
				Plane: "readiness", Name: "slow", State: StateDown, Since: began.Add(1100 * time.Millisecond), Error: errDown.Error(),
				Checked: began.Add(1100 * time.Millisecond), Latency: 100 * time.Millisecond, Runs: 1,
			},
			{Plane: "startup", Name: "boot", State: StateUnknown, Since: began, Critical: true, Error: "not checked yet"},
		}
		if len(got) != len(want) {
			t.Fatalf("got %d entries, want %d", len(got), len(want))
		}
		for i := range want {
			g, w := got[i], want[i]
			if !g.Since.Equal(w.Since) || !g.Checked.Equal(w.Checked) {
				t.Errorf("%s: since %v checked %v, want %v and %v", w.Name, g.Since, g.Checked, w.Since, w.Checked)
			}
			g.Since, g.Checked, w.Since, w.Checked = time.Time{}, time.Time{}, time.Time{}, time.Time{}
			if g != w {
				t.Errorf("got  %+v\nwant %+v", g, w)
			}
		}
	})
}

func TestTransitionsComeOnceAndInOrder(t *testing.T) {
	d := new(fsm.Dispatcher)
	r, f := NewRegistry(WithProbeEvents(d)), new(fake)
	if r.Events() != d {
		t.Error("Events is not the dispatcher that was given")
	}
	sub := d.Subscribe(64)
	must(t, r.RegisterReadiness("db", f))
	for _, err := range []error{nil, nil, errDown, errDown, ErrUnknown, nil} {
		f.set(err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { get(t, r, "/readyz") })
		}
		wg.Wait()
	}
	r.setDraining(true)
	r.setDraining(true)
	want := []string{
		"probe readiness/db 1 unknown>up <nil>",
		"probe readiness/db 2 up>down connection refused",
		"probe readiness/db 3 down>unknown state unknown",
		"probe readiness/db 4 unknown>up <nil>",
		"probe readiness/lifecycle 1 up>down draining",
	}
	sub.Close()
	var got []string
	for e := range sub.All(t.Context()) {
		got = append(got, fmt.Sprintf("%s %s %d %s>%s %v", e.Kind, e.Name, e.Seq, e.From, e.To, e.Cause))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSlowListenerDoesNotBlockTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f))
		release := make(chan struct{})
		var seen []fsm.Event
		stop := r.Events().Listen(2, func(e fsm.Event) {
			seen = append(seen, e)
			<-release
		})
		began := time.Now()
		for i := range 10 {
			f.set(nil)
			if i%2 == 1 {
				f.set(errDown)
			}
			get(t, r, "/readyz")
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("ten probes took %v behind a listener that hangs", took)
		}
		close(release)
		stop()
		// The first is with the listener, of the nine after it two are kept.
		if len(seen) != 4 || !seen[1].IsGap() || seen[1].Seq != 7 || seen[2].Seq != 9 || seen[3].Seq != 10 {
			t.Errorf("the listener saw %v, want event 1, a gap of 7, events 9 and 10", seen)
		}
	})
}
