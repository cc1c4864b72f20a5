package kube

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

const slicesPath = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices/"

// ep returns an endpoint: the pod's name, then words for its conditions.
func ep(pod string, words ...string) map[string]any {
	has := func(word string) bool { return slices.Contains(words, word) }
	return map[string]any{
		"conditions": map[string]any{"ready": has("ready"), "serving": has("ready") || has("serving"), "terminating": has("terminating")},
		"targetRef":  map[string]any{"kind": "Pod", "name": pod, "namespace": "demo"},
	}
}

// endpoints stores an EndpointSlice of a Service.
func (f *fakeAPI) endpoints(service, name string, eps ...map[string]any) {
	all := []any{}
	for _, e := range eps {
		all = append(all, e)
	}
	f.set(slicesPath+name, map[string]any{"metadata": map[string]any{"labels": map[string]any{serviceLabel: service}}, "endpoints": all})
}

// A windowTest changes endpoints after T0, and says how the window ends.
type windowTest struct {
	before func(f *fakeAPI)
	steps  map[time.Duration]func(f *fakeAPI) // after T0
	want   time.Duration                      // the window, at the least
	how    string
	says   string        // in the log
	slack  time.Duration // for pauses with a jitter; defaults to 100 ms
}

const s = time.Second

// stopWithWindow runs an App with Window through a stop. DrainMin is 1 s, the margin
// 2 s, the window 5 s and DrainMax 9 s.
func stopWithWindow(t *testing.T, tt windowTest) (f *fakeAPI, log string) {
	t.Helper()
	f = newFake()
	tt.before(f)
	c, lines := f.client(t)
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: 5 * s, DrainMax: 9 * s}, c.Window(WindowConfig{}))
	ln := lifecycletest.NewListener()
	app.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(ln))
	app.Start()
	time.Sleep(time.Minute)
	t0 := time.Now()
	for after, step := range tt.steps {
		time.AfterFunc(after, func() { step(f) })
	}
	app.Stop(nil)
	app.Await(lifecycle.PhaseStopping)
	// The listener closes after AcceptQuiet, 1 s.
	took := time.Since(t0) - s
	app.WantClean()
	if took < tt.want || took > tt.want+max(tt.slack, 100*time.Millisecond) || app.Report().Window != tt.how {
		t.Errorf("the window took %v and ended %q, want %v, %q\n%s", took, app.Report().Window, tt.want, tt.how, lines)
	}
	if !strings.Contains(lines.String(), tt.says) {
		t.Errorf("the log does not say %q:\n%s", tt.says, lines)
	}
	return f, lines.String()
}

func TestWindow(t *testing.T) {
	two := func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1", "ready"), ep("web-2", "ready")) }
	gone := func(f *fakeAPI) {
		f.endpoints("web", "web-a", ep("web-1", "serving", "terminating"), ep("web-2", "ready"))
	}
	const early, held = "ended early", "held longer"
	type steps = map[time.Duration]func(*fakeAPI)
	for name, tt := range map[string]windowTest{
		"noticed at once":     {two, steps{100 * time.Millisecond: gone}, 2100 * time.Millisecond, early, "is out of service: the window ends after the margin", 0},
		"noticed before T0":   {gone, nil, 2 * s, early, "out of service", 0},
		"noticed late":        {two, steps{4 * s: gone}, 6 * s, held, "out of service", 0},
		"noticed very late":   {two, steps{8 * s: gone}, 9 * s, held, "out of service", 0},
		"never noticed":       {two, nil, 9 * s, held, "is in service: the window lasts", 0},
		"not ready":           {two, steps{s: func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1"), ep("web-2", "ready")) }}, 3 * s, early, "out of service", 0},
		"gone from its slice": {two, steps{s: func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-2", "ready")) }}, 3 * s, early, "out of service", 0},
		"its slice is deleted": {
			func(f *fakeAPI) {
				f.endpoints("web", "web-a", ep("web-1", "ready"))
				f.endpoints("web", "web-b", ep("web-2", "ready"))
			},
			steps{s: func(f *fakeAPI) { f.remove(slicesPath + "web-a") }}, 3 * s, early, "out of service", 0,
		},
		"no other endpoint":           {func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1", "terminating")) }, nil, 5 * s, "full", "no other endpoint is ready", 0},
		"the other is not ready":      {func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1"), ep("web-2")) }, nil, 5 * s, "full", "no other endpoint is ready", 0},
		"the other terminates":        {func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1"), ep("web-2", "ready", "terminating")) }, nil, 5 * s, "full", "no other endpoint is ready", 0},
		"the other becomes ready":     {func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1"), ep("web-2")) }, steps{s: gone}, 3 * s, early, "out of service", 0},
		"the other fails afterwards":  {gone, steps{s: func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-1"), ep("web-2")) }}, 5 * s, "full", "no other endpoint is ready", 0},
		"in no Service":               {func(f *fakeAPI) { f.endpoints("web", "web-a", ep("web-2", "ready")) }, nil, 5 * s, "full", "no Service has the pod", 0},
		"a Service without endpoints": {func(f *fakeAPI) { f.endpoints("web", "web-a") }, nil, 5 * s, "full", "no Service has the pod", 0},
		"two Services, one is slow": {
			func(f *fakeAPI) { gone(f); f.endpoints("api", "api-a", ep("web-1", "ready"), ep("web-3", "ready")) },
			steps{4 * s: func(f *fakeAPI) { f.endpoints("api", "api-a", ep("web-3", "ready")) }}, 6 * s, held, "out of service", 0,
		},
		"two Services, one has no other endpoint": {
			func(f *fakeAPI) { gone(f); f.endpoints("api", "api-a", ep("web-1")) }, nil, 5 * s, "full", "no other endpoint is ready", 0,
		},
		// As for a Service through which metrics are scraped: its endpoints are always "ready".
		"publishNotReadyAddresses": {
			func(f *fakeAPI) {
				gone(f)
				f.endpoints("health", "health-a", ep("web-1", "ready", "terminating"), ep("web-2", "ready"))
			},
			nil, 2 * s, early, "out of service", 0,
		},
		"many others": {func(f *fakeAPI) {
			for i := range 300 {
				f.endpoints("other", fmt.Sprintf("a-%d", i), ep("other", "ready"))
			}
			gone(f)
		}, nil, 2 * s, early, "out of service", 0},
		"a compaction between list and watch": {two, steps{s: func(f *fakeAPI) { f.forget(); gone(f) }}, 3 * s, early, "out of service", 200 * time.Millisecond},
		"no permission": {
			func(f *fakeAPI) { gone(f); f.failWith(forbid("")) }, nil, 5 * s, "full",
			`lacks the rule {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], verbs: [\"list\"]} in the namespace demo`, 0,
		},
		"no permission to watch": {func(f *fakeAPI) {
			two(f)
			f.failWith(func(w http.ResponseWriter, r *http.Request) bool {
				return r.URL.Query().Get("watch") != "" && forbid("")(w, r)
			})
		}, nil, 5 * s, "full", `verbs: [\"watch\"]`, 0},
		"it hangs": {func(f *fakeAPI) { gone(f); f.failWith(hang) }, nil, 5 * s, "full", "no answer in 5s", 0},
		// It answers the request at the start; the next one is at T0.
		"it hangs from T0 on": {func(f *fakeAPI) { two(f); time.AfterFunc(30*s, func() { f.failWith(hang) }) }, nil, 5 * s, "full", "no answer", 0},
		"it fails for a moment": {func(f *fakeAPI) {
			two(f)
			f.failWith(func(w http.ResponseWriter, _ *http.Request) bool { refuse(w, 500, "", "etcd is gone"); return true })
		}, steps{1500 * time.Millisecond: func(f *fakeAPI) { f.failWith(nil); gone(f) }}, 3500 * time.Millisecond, early, "etcd is gone", s},
		"it sends no EndpointSlices": {func(f *fakeAPI) {
			f.failWith(func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte(`{"items": 7}`)); return true })
		}, nil, 5 * s, "full", "the answer is not what the API describes", 0},
		"its watch sends no events": {func(f *fakeAPI) {
			two(f)
			f.failWith(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("watch") == "" {
					return false
				}
				_, _ = w.Write([]byte("<html>\n"))
				return true
			})
		}, nil, 5 * s, "full", "watch endpointslices.discovery.k8s.io demo", 0},
		"its watch fails without a code": {func(f *fakeAPI) {
			two(f)
			f.failWith(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("watch") == "" {
					return false
				}
				_, _ = w.Write([]byte(`{"type": "ERROR", "object": 7}`))
				return true
			})
		}, nil, 5 * s, "full", "watch endpointslices.discovery.k8s.io demo: the API server reports an error without a code", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopWithWindow(t, tt)
			})
		})
	}
}

// When the window cannot follow the endpoints, one log line says why. The App asks only at
// the start and at T0.
func TestWindowIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, log := stopWithWindow(t, windowTest{before: func(f *fakeAPI) { f.failWith(forbid("")) }, want: 5 * s, how: "full"})
		if n := strings.Count(log, "does not follow the endpoints"); n != 1 {
			t.Errorf("%d lines:\n%s", n, log)
		}
		if n := len(f.asked()); n != 2 {
			t.Errorf("asked %v, want once at the start and once at T0", f.asked())
		}
	})
}

// A request that outlives the window leaves a line too.
func TestWindowIsShorterThanTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, lines := f.client(t, func(cfg *Config) { cfg.Timeout = time.Minute })
		app := lifecycletest.New(t, lifecycle.Config{}, c.Window(WindowConfig{}))
		app.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(lifecycletest.NewListener()))
		app.Start()
		time.Sleep(time.Minute)
		f.failWith(hang)
		app.Stop(nil)
		app.WantClean()
		if got := app.Report().Window; got != "full" || !strings.Contains(lines.String(), "no answer before the end of the window") {
			t.Errorf("the window ended %q:\n%s", got, lines)
		}
	})
}

// Outside a cluster the App behaves as without the option.
func TestWindowOutsideACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	synctest.Test(t, func(t *testing.T) {
		var lines logLines
		c, err := New(Config{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		if err != nil {
			t.Fatal(err)
		}
		app := lifecycletest.New(t, lifecycle.Config{}, c.Window(WindowConfig{}), c.Self(SelfConfig{Strict: true}))
		app.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(lifecycletest.NewListener()))
		app.Start()
		time.Sleep(time.Hour)
		t0 := time.Now()
		app.Stop(nil)
		app.WantClean()
		if took := time.Since(t0); took != 6*s {
			t.Errorf("the stop took %v, want 5s and AcceptQuiet", took)
		}
		if n := strings.Count(lines.String(), "not in a cluster"); n != 2 || strings.Count(lines.String(), "\n") != 2 {
			t.Errorf("want one line for each option:\n%s", &lines)
		}
	})
}

func TestWindowConfigIsChecked(t *testing.T) {
	c, _ := newFake().client(t)
	if _, err := lifecycle.New(lifecycle.Config{}, c.Window(WindowConfig{Margin: -1})); err == nil || !strings.Contains(err.Error(), "Margin") {
		t.Errorf("%v", err)
	}
}
