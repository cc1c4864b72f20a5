package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

const podPath = "/api/v1/namespaces/demo/pods/web-1"

// manifest returns a pod that fits the defaults. change may set fields of its spec and of
// its container.
func manifest(change func(spec, container map[string]any)) map[string]any {
	c := map[string]any{"name": "web", "livenessProbe": map[string]any{}}
	spec := map[string]any{"terminationGracePeriodSeconds": 30}
	if change != nil {
		change(spec, c)
	}
	spec["containers"] = []any{c, map[string]any{"name": "proxy"}}
	return map[string]any{"spec": spec}
}

type fields = map[string]any

// A manifest that does not fit is an error that names each number.
func TestSelfChecksTheManifest(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg    lifecycle.Config
		self   SelfConfig
		change func(spec, c fields)
		says   []string // none when it fits
	}{
		"fits":           {},
		"default grace":  {change: func(spec, _ fields) { delete(spec, "terminationGracePeriodSeconds") }},
		"short grace":    {change: func(spec, _ fields) { spec["terminationGracePeriodSeconds"] = 26 }, says: []string{"terminationGracePeriodSeconds is 26s, and a stop may take preStop 0s + window 5s + ShutdownGrace 20s + margin 2s = 27s", "set it to 27 or more"}},
		"DrainMax":       {cfg: lifecycle.Config{DrainMax: 9 * s}, says: []string{"window 9s", "= 31s", "set it to 31"}},
		"declared more":  {cfg: lifecycle.Config{TerminationGrace: 40 * s}, says: []string{"TerminationGrace is 40s, and the pod's terminationGracePeriodSeconds is 30s"}},
		"sleep":          {change: func(_, c fields) { c["lifecycle"] = fields{"preStop": fields{"sleep": fields{"seconds": 10}}} }, says: []string{"sleeps 10s and PreStop is 0s", "preStop 10s + window 5s + ShutdownGrace 20s + margin 2s = 37s"}},
		"declared sleep": {cfg: lifecycle.Config{PreStop: 3 * s}, change: func(_, c fields) { c["lifecycle"] = fields{"preStop": fields{"sleep": fields{"seconds": 3}}} }},
		"own hook": {change: func(_, c fields) {
			c["lifecycle"] = fields{"preStop": fields{"httpGet": fields{"path": "/admin/prestop"}}}
		}},
		"unknown hook":      {cfg: lifecycle.Config{PreStop: 4 * s}, change: func(_, c fields) { c["lifecycle"] = fields{"preStop": fields{"exec": fields{}}} }, says: []string{"preStop 4s + window 5s", "= 31s"}},
		"liveness grace":    {change: func(_, c fields) { c["livenessProbe"] = fields{"terminationGracePeriodSeconds": 10} }, says: []string{"livenessProbe.terminationGracePeriodSeconds is 10s"}},
		"startup grace":     {change: func(_, c fields) { c["startupProbe"] = fields{"terminationGracePeriodSeconds": 5} }, says: []string{"startupProbe.terminationGracePeriodSeconds is 5s"}},
		"no such container": {self: SelfConfig{Container: "db"}, says: []string{`no container "db"`}},
		"two mistakes": {change: func(spec, c fields) {
			spec["terminationGracePeriodSeconds"] = 5
			c["livenessProbe"] = fields{"terminationGracePeriodSeconds": 10}
		}, says: []string{"set it to 27 or more; livenessProbe"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set(podPath, manifest(tt.change))
				c, log := f.client(t)
				app := lifecycletest.New(t, tt.cfg, c.Self(tt.self))
				app.Start()
				synctest.Wait()
				if code, _ := app.Ask("/readyz"); code != 200 {
					t.Errorf("/readyz answers %d: the probe must not be critical", code)
				}
				state, text := probeState(app)
				if want := map[bool]string{true: "up", false: "down"}[len(tt.says) == 0]; state != want {
					t.Errorf("the probe is %s (%s), want %s", state, text, want)
				}
				if n := strings.Count(log.String(), "does not fit the configuration\""); (n == 1) != (len(tt.says) > 0) {
					t.Errorf("%d log lines:\n%s", n, log)
				}
				for _, says := range tt.says {
					if !strings.Contains(text, says) || !strings.Contains(log.String(), strings.ReplaceAll(says, `"`, `\"`)) {
						t.Errorf("%q does not say %q, or not the log:\n%s", text, says, log)
					}
				}
				app.Stop(nil)
				app.WantClean()

				tt.self.Strict = true
				tt.cfg.HealthAddr, tt.cfg.TerminationLog = lifecycle.HealthOff, "off"
				strict, err := lifecycle.New(tt.cfg, lifecycle.WithSignals(nil), lifecycle.WithLogger(slog.New(slog.DiscardHandler)), c.Self(tt.self))
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Minute, func() { strict.Stop(nil) })
				if err := strict.Run(t.Context()); errors.Is(err, ErrManifest) != (len(tt.says) > 0) || (err == nil) != (len(tt.says) == 0) {
					t.Errorf("strict: %v", err)
				}
			})
		})
	}
}

func probeState(app *lifecycletest.App) (state, text string) {
	for _, p := range app.Status().Probes {
		if p.Name == selfName {
			return string(p.State), p.Error
		}
	}
	return "missing", ""
}

// A pod that cannot be read costs one log line, in the strict form too.
func TestSelfCannotRead(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		says  string
	}{
		"no permission": {forbid(""), `lacks the rule {apiGroups: [\"\"], resources: [\"pods\"], verbs: [\"get\"]} in the namespace demo`},
		"no such pod":   {nil, "get pods demo/web-1: 404"},
		"it hangs":      {hang, "no answer in 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.failWith(tt.fault)
				c, log := f.client(t)
				app := lifecycletest.New(t, lifecycle.Config{}, c.Self(SelfConfig{Strict: true}))
				app.Start()
				time.Sleep(time.Minute)
				if code, _ := app.Ask("/readyz"); code != 200 {
					t.Errorf("/readyz answers %d", code)
				}
				if state, _ := probeState(app); state != "unknown" {
					t.Errorf("the probe is %s", state)
				}
				app.Stop(nil)
				app.WantClean()
				if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), tt.says) {
					t.Errorf("the log has %d lines, want one that says %q:\n%s", n, tt.says, log)
				}
			})
		})
	}
}

// deleted marks the pod as being deleted with this grace.
func (f *fakeAPI) deleted(grace int) {
	o := f.get(podPath)
	o["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	o["metadata"].(map[string]any)["deletionGracePeriodSeconds"] = grace
	f.set(podPath, o)
}

// The grace of the deletion bounds the stop, and is noticed when it changes.
func TestSelfFitsTheStop(t *testing.T) {
	sleeps := func(_, c fields) { c["lifecycle"] = fields{"preStop": fields{"sleep": fields{"seconds": 3}}} }
	for name, tt := range map[string]struct {
		change func(spec, c fields)
		cfg    lifecycle.Config
		grace  int                   // of the deletion before T0; -1 without one
		later  map[time.Duration]int // after T0
		fault  func(f *fakeAPI)      // at T0
		window time.Duration
		within time.Duration // the stop, of which every part hangs
	}{
		"the manifest's":     {nil, lifecycle.Config{}, 30, nil, nil, 5 * s, 25 * s},
		"not deleted":        {nil, lifecycle.Config{}, -1, nil, nil, 5 * s, 25 * s},
		"less":               {nil, lifecycle.Config{}, 9, nil, nil, 5 * s / 3, 25 * s / 3},
		"one second":         {nil, lifecycle.Config{}, 1, nil, nil, 370 * time.Millisecond, 1852 * time.Millisecond},
		"less, after a hook": {sleeps, lifecycle.Config{PreStop: 3 * s}, 12, nil, nil, 5 * s / 3, 25 * s / 3},
		"less after T0":      {nil, lifecycle.Config{}, 30, map[time.Duration]int{s: 8}, nil, 5 * s / 3, 25 * s / 3},
		"deleted after T0":   {nil, lifecycle.Config{}, -1, map[time.Duration]int{s: 8}, nil, 5 * s / 3, 25 * s / 3},
		// The version of a pod that has not changed for a while is too old for a watch.
		"deleted after T0, an old pod": {nil, lifecycle.Config{}, -1, map[time.Duration]int{s: 8}, (*fakeAPI).forget, 5 * s / 3, 25 * s / 3},
		"less, and a server in trouble": {nil, lifecycle.Config{}, 9, nil, func(f *fakeAPI) {
			f.failWith(func(w http.ResponseWriter, _ *http.Request) bool {
				refuse(w, 500, "InternalError", "etcd is gone")
				return true
			})
			time.AfterFunc(500*time.Millisecond, func() { f.failWith(nil) })
		}, 5 * s / 3, 25 * s / 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set(podPath, manifest(tt.change))
				c, _ := f.client(t)
				app := lifecycletest.New(t, tt.cfg, c.Self(SelfConfig{}))
				ln := lifecycletest.NewListener()
				app.Serve("http", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}, lifecycle.WithListener(ln))
				app.OnShutdown("hook", func(ctx context.Context) error { <-ctx.Done(); return nil })
				app.Start()
				answer := lifecycletest.Get(t, ln.Client(), "http://app/")
				time.Sleep(time.Minute)
				if tt.grace >= 0 {
					f.deleted(tt.grace)
				}
				if tt.fault != nil {
					tt.fault(f)
				}
				t0 := time.Now()
				for after, grace := range tt.later {
					time.AfterFunc(after, func() { f.deleted(grace) })
				}
				app.Stop(nil)
				if err := app.Wait(); err == nil {
					t.Error("the request was not cut")
				}
				took := time.Since(t0)
				_, _, _ = answer.Wait()
				if window := windowTook(t, app, t0); window < tt.window-20*time.Millisecond || window > tt.window+20*time.Millisecond {
					t.Errorf("the window took %v, want %v", window, tt.window)
				}
				if took < tt.within-50*time.Millisecond || took > tt.within+50*time.Millisecond {
					t.Errorf("the stop took %v, want %v", took, tt.within)
				}
			})
		})
	}
}

// windowTook reads the length of the window in the log.
func windowTook(t *testing.T, app *lifecycletest.App, t0 time.Time) time.Duration {
	t.Helper()
	for line := range strings.Lines(app.Log()) {
		if stamp, _, ok := strings.Cut(strings.TrimPrefix(line, "time="), " "); ok && strings.Contains(line, "the drain window is over") {
			at, err := time.Parse(time.RFC3339, stamp)
			if err != nil {
				t.Fatal(err)
			}
			return at.Sub(t0)
		}
	}
	t.Fatal("the log has no end of the window")
	return 0
}
