package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"github.com/pleme-io/lifecycle-go/metrics"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("METRICS_TEST_WORKER") != "" {
		poolWorker()
	}
	goleak.VerifyTestMain(m)
}

var errBoom = errors.New("boom")

// values gathers every metric as "name{label=\"value\",…}" with its value.
func values(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := f.GetName()
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// want fails the test for each metric that has another value. -1 means absent.
func want(t *testing.T, got map[string]float64, wanted map[string]float64) {
	t.Helper()
	for key, w := range wanted {
		if v, ok := got[key]; ok != (w >= 0) || ok && v != w {
			t.Errorf("%s is %v (there: %v), want %v", key, v, ok, w)
		}
	}
}

// busyApp returns an App with one part of every kind.
func busyApp(t *testing.T, opts ...lifecycle.Option) (*lifecycletest.App, *lifecycletest.Listener, *lifecycletest.Held) {
	ln, slow := lifecycletest.NewListener(), lifecycletest.Hold(nil)
	app := lifecycletest.New(t, lifecycle.Config{TerminationGrace: time.Minute, PreStop: 3 * time.Second, HookSlice: 2 * time.Second}, opts...)
	fails := 3
	app.Serve("http", &http.Server{Handler: slow}, lifecycle.WithListener(ln)).
		Supervise("poller", func(ctx context.Context) error {
			if fails--; fails >= 0 {
				return errBoom
			}
			<-ctx.Done()
			return nil
		}, lifecycle.Backoff{}).
		Go("quick", func(context.Context) error { return nil }).
		Probe("db", lifecycle.ProbeFunc(func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil })).
		Probe("broken", lifecycle.ProbeFunc(func(context.Context) error { return errBoom }), health.WithNonCritical()).
		OnReload("config", func(context.Context) error { return errBoom }).
		OnDrain("streams", lifecycle.DrainFunc(func(context.Context) error { time.Sleep(time.Second); return nil })).
		OnShutdown("db", func(context.Context) error { return nil }).
		OnShutdown("stuck", func(context.Context) error { time.Sleep(time.Hour); return nil })
	return app, ln, slow
}

func TestMetricsFollowALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		app, ln, slow := busyApp(t, metrics.With(reg))
		want(t, values(t, reg), map[string]float64{
			`lifecycle_phase{phase="created"}`: 1, `lifecycle_phase{phase="running"}`: 0,
			`lifecycle_drain_interval_seconds`: 5, `lifecycle_shutdown_grace_seconds`: 20, `lifecycle_report_slice_seconds`: 0, `lifecycle_stop_budget_seconds`: 30, `lifecycle_termination_grace_seconds`: 60,
			`lifecycle_unit_status{status="Created",unit="poller"}`:               1,
			`lifecycle_probe_last_duration_seconds{plane="readiness",probe="db"}`: -1, `lifecycle_phase_duration_seconds{phase="draining"}`: -1,
		})
		app.Start()
		time.Sleep(time.Minute) // the poller has failed three times by now
		answer := lifecycletest.Get(t, ln.Client(), "http://app/work")
		<-slow.Arrived()
		_ = app.Reload(t.Context())
		_ = app.Reload(t.Context())
		app.Ask("/readyz")
		want(t, values(t, reg), map[string]float64{
			`lifecycle_phase{phase="running"}`: 1, `lifecycle_phase{phase="created"}`: 0,
			`lifecycle_phase_entered_timestamp_seconds{phase="running"}`: float64(app.EnteredAt(lifecycle.PhaseRunning).UnixNano()) / 1e9,
			`lifecycle_phase_duration_seconds{phase="running"}`:          time.Since(app.EnteredAt(lifecycle.PhaseRunning)).Seconds(),
			`lifecycle_unit_status{status="Running",unit="poller"}`:      1, `lifecycle_unit_status{status="Created",unit="poller"}`: 0,
			`lifecycle_unit_status{status="Finished",unit="quick"}`: 1,
			`lifecycle_unit_restarts_total{unit="poller"}`:          3, `lifecycle_unit_restarts_total{unit="quick"}`: 0,
			`lifecycle_probe_state{plane="readiness",probe="db",state="up"}`:        1,
			`lifecycle_probe_state{plane="readiness",probe="broken",state="down"}`:  1,
			`lifecycle_probe_state{plane="readiness",probe="broken",state="up"}`:    0,
			`lifecycle_probe_state{plane="readiness",probe="lifecycle",state="up"}`: 1,
			`lifecycle_probe_last_duration_seconds{plane="readiness",probe="db"}`:   0.1,
			`lifecycle_requests_in_flight{server="http"}`:                           1,
			`lifecycle_connections_open{kind="http",server="http"}`:                 1,
			`lifecycle_connections_accepted_total{server="http"}`:                   1,
			`lifecycle_reloads_total{reload="config",result="failed"}`:              2,
			`lifecycle_transitions_total{kind="reload",state="failed"}`:             2,
			`lifecycle_transitions_total{kind="app",state="running"}`:               1,
			`lifecycle_hook_result{hook="db",result="ok"}`:                          -1,
			`lifecycle_abandoned_goroutines`:                                        0,
			`lifecycle_unit_children{status="Running",unit="http"}`:                 -1,
		})
		if n := values(t, reg)[`lifecycle_probe_runs_total{plane="readiness",probe="db"}`]; n < 1 {
			t.Errorf("the probe ran %v times", n)
		}
		app.Stop(nil)
		app.Await(lifecycle.PhaseDraining)
		time.Sleep(3 * time.Second)
		want(t, values(t, reg), map[string]float64{
			`lifecycle_phase_duration_seconds{phase="draining"}`:                      3,
			`lifecycle_probe_state{plane="readiness",probe="lifecycle",state="down"}`: 1,
			`lifecycle_drainer_result{drainer="streams",result="ok"}`:                 1,
			`lifecycle_drainer_duration_seconds{drainer="streams"}`:                   1,
		})
		slow.Release()
		answer.WantStatus(http.StatusOK)
		_ = app.Wait()
		got := values(t, reg)
		want(t, got, map[string]float64{
			`lifecycle_phase{phase="failed"}`:                            1,
			`lifecycle_hook_result{hook="stuck",result="abandoned"}`:     1,
			`lifecycle_hook_result{hook="db",result="ok"}`:               1,
			`lifecycle_hook_duration_seconds{hook="db"}`:                 0,
			`lifecycle_abandoned_goroutines`:                             1,
			`lifecycle_requests_cut_total`:                               0,
			`lifecycle_requests_in_flight{server="http"}`:                0,
			`lifecycle_transitions_total{kind="hook",state="abandoned"}`: 1,
			`lifecycle_events_lost_total`:                                0,
			`lifecycle_unit_status{status="Stopped",unit="poller"}`:      1,
			`lifecycle_phase_duration_seconds{phase="stopping"}`:         app.EnteredAt(lifecycle.PhaseFailed).Sub(app.EnteredAt(lifecycle.PhaseStopping)).Seconds(),
		})
		time.Sleep(2 * time.Hour) // the abandoned functions return
	})
}

func TestEveryMetricIsOnTheReferenceAndLintIsClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry() // checks Collect against Describe
		app, _, _ := busyApp(t, metrics.With(reg))
		pool, err := procpool.New(procpool.Config{Name: "pool", Command: func() *exec.Cmd { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		reg.MustRegister(metrics.Pool(pool))
		tree := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{{Name: "leaf", New: func(string) (worker.Worker, error) {
			return worker.NewFunc("leaf", func(ctx context.Context) error { <-ctx.Done(); return nil }), nil
		}}}})
		app.Add(tree)
		app.Start()
		_ = app.Reload(t.Context())
		if v := values(t, reg)[`lifecycle_unit_children{status="Running",unit="tree"}`]; v != 1 {
			t.Errorf("%v children run, want 1", v)
		}
		app.Stop(nil)
		_ = app.Wait()
		problems, err := testutil.GatherAndLint(reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("promlint: %v, %v", problems, err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got, listed []string
		for _, f := range families {
			got = append(got, f.GetName()+" "+strings.ToLower(f.GetType().String()))
			for _, m := range f.GetMetric() {
				if m.GetCounter().GetExemplar() != nil {
					t.Errorf("%s has an exemplar", f.GetName())
				}
			}
		}
		for _, m := range metrics.Reference() {
			listed = append(listed, m.Name+" "+m.Type)
		}
		slices.Sort(got)
		slices.Sort(listed)
		if !slices.Equal(got, listed) {
			t.Errorf("gathered\n%s\nlisted\n%s", strings.Join(got, "\n"), strings.Join(listed, "\n"))
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestMetricsAreServedOnTheHealthAddress(t *testing.T) {
	reg := prometheus.NewRegistry()
	app, err := lifecycle.New(lifecycle.Config{Name: "svc"}, metrics.With(reg))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(app.Handler())
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 || !strings.Contains(string(body), "\nlifecycle_app_info{app=\"svc\"} 1\n") {
		t.Errorf("%d:\n%s", resp.StatusCode, body)
	}
}

func TestRegistries(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := lifecycle.New(lifecycle.Config{}, metrics.With(reg)); err != nil {
		t.Fatal(err)
	}
	_, err := lifecycle.New(lifecycle.Config{}, metrics.With(reg))
	if err == nil || !strings.Contains(err.Error(), "has the metrics of an App already: give each App a registry of its own") {
		t.Errorf("the same registry twice: %v", err)
	}
	for name, with := range map[string]lifecycle.Option{"nil": metrics.With(nil), "a nil registry": metrics.With((*prometheus.Registry)(nil))} {
		if _, err := lifecycle.New(lifecycle.Config{}, with); err == nil || !strings.Contains(err.Error(), "the registerer is nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
	shared := prometheus.NewRegistry()
	for _, name := range []string{"a", "b"} {
		if _, err := lifecycle.New(lifecycle.Config{Name: name}, metrics.With(prometheus.WrapRegistererWith(prometheus.Labels{"service": name}, shared))); err != nil {
			t.Fatal(err)
		}
	}
	got := values(t, shared)
	want(t, got, map[string]float64{`lifecycle_app_info{app="a",service="a"}`: 1, `lifecycle_app_info{app="b",service="b"}`: 1})

	// When New fails, no metric stays registered.
	third := prometheus.NewRegistry()
	if _, err := lifecycle.New(lifecycle.Config{ShutdownGrace: -5}, metrics.With(third)); err == nil {
		t.Fatal("an impossible configuration is accepted")
	}
	if _, err := lifecycle.New(lifecycle.Config{}, metrics.With(third)); err != nil {
		t.Errorf("after a New that failed: %v", err)
	}
}

// The App keeps the outcomes of the last reloads, and counts all.
func TestReloadsAreCountedForALongLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off}, metrics.With(reg))
		n := 0
		app.OnReload("config", func(context.Context) error {
			if n++; n%2 == 0 {
				return errBoom
			}
			return nil
		})
		app.Start()
		for range 10_000 {
			_ = app.Reload(t.Context())
		}
		want(t, values(t, reg), map[string]float64{
			`lifecycle_reloads_total{reload="config",result="ok"}`:     5000,
			`lifecycle_reloads_total{reload="config",result="failed"}`: 5000,
		})
		app.Stop(nil)
		app.WantClean()
	})
}

// A counter does not fall when a counted child is removed.
func TestRestartsAreKeptWhenAChildIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		app := lifecycletest.New(t, lifecycle.Config{HealthAddr: lifecycle.HealthOff}, metrics.With(reg))
		tree := worker.NewSupervisor("tree", worker.SupervisorConfig{})
		fails := 2
		err := tree.Add(worker.Spec{Name: "child", New: func(name string) (worker.Worker, error) {
			return worker.NewFunc(name, func(ctx context.Context) error {
				if fails--; fails >= 0 {
					return errBoom
				}
				<-ctx.Done()
				return nil
			}), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		app.Add(tree)
		app.Start()
		time.Sleep(time.Minute)
		const key = `lifecycle_unit_restarts_total{unit="tree"}`
		want(t, values(t, reg), map[string]float64{key: 2})
		if err := tree.Remove(t.Context(), "child"); err != nil {
			t.Fatal(err)
		}
		want(t, values(t, reg), map[string]float64{key: 2})
		app.Stop(nil)
		app.WantClean()
	})
}

// The number of series does not grow while the App runs.
func TestLabelValuesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		app := lifecycletest.New(t, lifecycle.Config{Name: "bad \xff name"}, metrics.With(reg))
		app.Go("unit \xff", func(ctx context.Context) error { <-ctx.Done(); return nil })
		app.Start()
		table := fsm.Table[string]{"": {"x"}, "x": {}}
		for i := range 1000 {
			_ = fsm.MustNew(fmt.Sprintf("kind%d", i), "n", table, "", app.Events()).To("x", nil)
		}
		got := values(t, reg)
		if n := len(got); n > 400 {
			t.Errorf("%d series", n)
		}
		if got[`lifecycle_transitions_total{kind="other",state="other"}`] < 700 {
			t.Error("kinds beyond the limit are not counted as other")
		}
		if got["lifecycle_app_info{app=\"bad \uFFFD name\"}"] != 1 {
			t.Error("a name that is not UTF-8 is not shown")
		}
		for range 10_000 { // more than maxUnread
			_ = fsm.MustNew("kind0", "n", table, "", app.Events()).To("x", nil)
		}
		got = values(t, reg)
		if sum := got["lifecycle_events_lost_total"] + got[`lifecycle_transitions_total{kind="kind0",state="x"}`]; sum != 10_001 {
			t.Errorf("%v events are counted or lost, want 10001", sum)
		}
		app.Stop(nil)
		app.WantClean()
	})
}

func ExampleWith() {
	reg := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	app, err := lifecycle.New(lifecycle.Config{Name: "orders"}, metrics.With(reg), lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	answer := httptest.NewRecorder()
	app.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil)) // what a scrape of the health address gets
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "lifecycle_app_info") || strings.HasPrefix(line, "lifecycle_stop_budget") {
			fmt.Print(line)
		}
	}
	// Output:
	// lifecycle_app_info{app="orders"} 1
	// lifecycle_stop_budget_seconds 27
}

func BenchmarkScrape(b *testing.B) {
	reg := prometheus.NewRegistry()
	app, err := lifecycle.New(lifecycle.Config{}, metrics.With(reg))
	if err != nil {
		b.Fatal(err)
	}
	for i := range 20 {
		app.Go(fmt.Sprint("unit", i), func(context.Context) error { return nil })
		app.Probe(fmt.Sprint("probe", i), lifecycle.ProbeFunc(func(context.Context) error { return nil }))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := reg.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

func ExamplePool() {
	pool, err := procpool.New(procpool.Config{Name: "thumbnails", Command: func() *exec.Cmd { return exec.Command("python3", "thumbnails.py") }})
	if err != nil {
		fmt.Println(err)
		return
	}
	reg := prometheus.NewRegistry() // the registry given to metrics.With
	reg.MustRegister(metrics.Pool(pool))
	answer := httptest.NewRecorder()
	metrics.Handler(reg).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "lifecycle_pool_workers{") || strings.HasPrefix(line, "lifecycle_pool_queries{") {
			fmt.Print(line)
		}
	}
	// Output:
	// lifecycle_pool_queries{pool="thumbnails",state="in_flight"} 0
	// lifecycle_pool_queries{pool="thumbnails",state="waiting"} 0
	// lifecycle_pool_workers{pool="thumbnails",state="busy"} 0
	// lifecycle_pool_workers{pool="thumbnails",state="ready"} 0
	// lifecycle_pool_workers{pool="thumbnails",state="shutting_down"} 0
	// lifecycle_pool_workers{pool="thumbnails",state="starting"} 0
}
