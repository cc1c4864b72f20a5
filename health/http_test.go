package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

func TestAnswersAreSortedAndNotStored(t *testing.T) {
	r := NewRegistry()
	for _, name := range []string{"m", "z", "a", "lz", "la"} {
		must(t, r.RegisterReadiness(name, ProbeFunc(passing)))
	}
	ownerOf(r).SetGate(Up, "")
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
	expect(t, r, "/readyz?x=1", 503, "") // an unknown parameter
}

func TestExcludeDoesNotHideTheLifecycle(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	ownerOf(r).SetDraining(true)
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
	probeAll(20000) // 60 000 distinct paths of at least 16 bytes: keeping them would take megabytes
	if grown := heap() - before; grown > 512<<10 {
		t.Errorf("the heap grew by %d bytes over 60000 distinct paths", grown)
	}
}
