package metrics_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"github.com/pleme-io/lifecycle-go/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
)

// A life is told by its own process when its stop is over, and by the next one from its
// beginning.
func TestLastStopIsToldByItsProcessAndTheNext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stop.json")
	synctest.Test(t, func(t *testing.T) {
		first := prometheus.NewRegistry()
		var during map[string]float64
		app := lifecycletest.New(t, lifecycle.Config{LastStopFile: file, DrainInterval: 3 * time.Second, DrainWait: lifecycle.WaitAlways}, metrics.With(first))
		app.OnShutdown("stuck", func(context.Context) error { time.Sleep(time.Hour); return nil }).
			OnReport("scrape", func(context.Context, lifecycle.Report) error {
				time.Sleep(100 * time.Millisecond)
				during = values(t, first)
				return nil
			})
		app.Start()
		want(t, values(t, first), map[string]float64{
			`lifecycle_last_stop_ending{ending="clean"}`: -1, `lifecycle_last_stop_told_timestamp_seconds`: -1,
		})
		time.Sleep(time.Minute)
		app.Stop(nil)
		_ = app.Wait()
		r := app.Report()
		stop := map[string]float64{
			`lifecycle_last_stop_ending{ending="abandoned"}`: 1, `lifecycle_last_stop_ending{ending="clean"}`: 0,
			`lifecycle_last_stop_abandoned`: 1, `lifecycle_last_stop_requests_cut`: 0, `lifecycle_last_stop_exit_status`: 70,
			`lifecycle_last_stop_budget_seconds`: 25, `lifecycle_last_stop_duration_seconds`: r.Done.Sub(r.Requested).Seconds(),
			`lifecycle_last_stop_timestamp_seconds`: float64(r.Done.UnixNano()) / 1e9,
		}
		want(t, during, stop)
		want(t, during, map[string]float64{
			`lifecycle_last_stop_told_timestamp_seconds`:         float64(r.Done.UnixNano()) / 1e9,
			`lifecycle_phase_duration_seconds{phase="stopping"}`: r.Done.Sub(app.EnteredAt(lifecycle.PhaseStopping)).Seconds(),
		})

		time.Sleep(2 * time.Hour)
		began := time.Now()
		second := prometheus.NewRegistry()
		next := lifecycletest.New(t, lifecycle.Config{LastStopFile: file, DrainInterval: lifecycle.Off}, metrics.With(second))
		next.Start()
		want(t, values(t, second), stop)
		want(t, values(t, second), map[string]float64{`lifecycle_last_stop_told_timestamp_seconds`: float64(began.UnixNano()) / 1e9})
		next.Stop(nil)
		next.WantClean()
		want(t, values(t, second), map[string]float64{`lifecycle_last_stop_ending{ending="clean"}`: 1, `lifecycle_last_stop_exit_status`: 0, `lifecycle_last_stop_abandoned`: 0})
	})
}

// Each way in which a process ends has its name.
func TestEndings(t *testing.T) {
	const running, stopping = `"phases":[{"phase":"running","entered":"2026-01-01T00:00:00Z"}]`, `"requested":"2026-01-01T00:00:00Z"`
	const done = stopping + `,"done":"2026-01-01T00:00:09Z"`
	for ending, life := range map[string]string{
		"clean":       `"phase":"stopped",` + done,
		"failed":      `"phase":"failed","error":"boom","exitStatus":3,` + done,
		"cut":         `"phase":"failed","error":"boom","exitStatus":75,` + done,
		"abandoned":   `"phase":"failed","error":"boom","exitStatus":70,` + done,
		"killed":      `"phase":"killed","error":"late","exitStatus":70,` + done,
		"interrupted": `"phase":"stopping",` + stopping + "," + running,
		"crashed":     `"phase":"running",` + running,
	} {
		file := filepath.Join(t.TempDir(), "stop.json")
		if err := os.WriteFile(file, []byte(`{"version":1,"life":{`+life+`}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		reg := prometheus.NewPedanticRegistry()
		if _, err := lifecycle.New(lifecycle.Config{LastStopFile: file}, metrics.With(reg)); err != nil {
			t.Fatal(err)
		}
		got, sum := values(t, reg), 0.0
		for _, other := range []string{"clean", "failed", "cut", "abandoned", "killed", "interrupted", "crashed"} {
			sum += got[`lifecycle_last_stop_ending{ending="`+other+`"}`]
		}
		if got[`lifecycle_last_stop_ending{ending="`+ending+`"}`] != 1 || sum != 1 {
			t.Errorf("%s: the metrics say otherwise, %v of them at once", ending, sum)
		}
		absent := -1.0
		if strings.Contains(life, "done") {
			absent = 9
		}
		want(t, got, map[string]float64{`lifecycle_last_stop_duration_seconds`: absent})
	}
}

// The histograms count the one stop of a process and each of its phases once, however
// often they are scraped, for servers with and without native histograms.
func TestHistogramsOfStopAndPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		app := lifecycletest.New(t, lifecycle.Config{DrainInterval: 3 * time.Second, DrainWait: lifecycle.WaitAlways}, metrics.With(reg))
		app.Go("slow to start", func(ctx context.Context) error {
			time.Sleep(2 * time.Second)
			lifecycle.MarkStarted(ctx)
			<-ctx.Done()
			return nil
		}, lifecycle.WithStartCondition()).OnShutdown("db", func(context.Context) error { time.Sleep(4 * time.Second); return nil })
		sums := func() map[string][2]float64 {
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			all := map[string][2]float64{}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					h := m.GetHistogram()
					if h == nil {
						continue
					}
					key := f.GetName()
					if len(m.GetLabel()) > 0 {
						key += " " + m.GetLabel()[0].GetValue()
					}
					all[key] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
					if len(h.GetBucket()) < 10 || h.GetSampleCount() > 0 && len(h.GetPositiveSpan()) == 0 {
						t.Errorf("%s is not both a classic and a native histogram", key)
					}
				}
			}
			return all
		}
		app.Start()
		time.Sleep(time.Minute)
		for range 3 {
			if got := sums(); got["lifecycle_phase_completed_duration_seconds starting"] != [2]float64{1, 2} || len(got) != 2 || got["lifecycle_stop_duration_seconds"][0] != 0 {
				t.Errorf("while it runs the histograms are %v", got)
			}
		}
		app.Signal(syscall.SIGTERM)
		app.WantClean()
		for range 3 {
			for key, sum := range map[string]float64{"stop_duration_seconds": 7, "phase_completed_duration_seconds running": 60, "phase_completed_duration_seconds draining": 3, "phase_completed_duration_seconds stopping": 4} {
				if got := sums()["lifecycle_"+key]; got != [2]float64{1, sum} {
					t.Errorf("%s has %v, want one of %v s", key, got, sum)
				}
			}
		}
	})
}

func TestBuildInfo(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := lifecycle.New(lifecycle.Config{}, metrics.With(reg)); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for _, f := range families {
		if f.GetName() == "lifecycle_build_info" {
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
		}
	}
	if !strings.HasPrefix(labels["goversion"], "go1.") || labels["path"] != "github.com/pleme-io/lifecycle-go" || len(labels) != 5 {
		t.Errorf("lifecycle_build_info has %v", labels)
	}
}

// gateway answers as a push gateway does, and keeps what it gets.
func gateway(t *testing.T, status int) (url string, pushed chan string) {
	pushed = make(chan string, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		pushed <- r.Method + " " + r.URL.Path + "\n" + string(body)
		w.WriteHeader(status)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, pushed
}

func pusher(url string) *push.Pusher {
	return push.New(url, "orders").Grouping("instance", "a").Format("text/plain; version=0.0.4; charset=utf-8").
		Client(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}})
}

// A push gateway gets the stop when it is over, and nothing that would look alive.
func TestStopIsPushed(t *testing.T) {
	url, pushed := gateway(t, http.StatusOK)
	app := lifecycletest.New(t, lifecycle.Config{Name: "orders", DrainInterval: lifecycle.Off}, metrics.With(prometheus.NewRegistry()), metrics.Push(pusher(url)))
	app.OnShutdown("db", func(context.Context) error {
		if len(pushed) > 0 {
			t.Error("it is pushed before the stop is over")
		}
		return nil
	})
	app.Start()
	app.Stop(errBoom)
	_ = app.Wait()
	got := <-pushed
	for _, line := range []string{"PUT /metrics/job/orders/instance/a", `lifecycle_app_info{app="orders"} 1`, `lifecycle_last_stop_ending{ending="failed"} 1`, "lifecycle_last_stop_exit_status 1", "\nlifecycle_last_stop_duration_seconds "} {
		if !strings.Contains(got, line) {
			t.Errorf("the gateway did not get %q:\n%s", line, got)
		}
	}
	if strings.Contains(got, "lifecycle_phase") {
		t.Errorf("the gateway got what would look alive:\n%s", got)
	}
}

// A gateway that refuses, or is gone, is a line in the log: the stop is clean.
func TestPushThatFailsIsLogged(t *testing.T) {
	url, _ := gateway(t, http.StatusInternalServerError)
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off}, metrics.Push(pusher(url)))
	app.Start()
	app.Stop(nil)
	app.WantClean()
	if !strings.Contains(app.Log(), `msg="a function of OnReport failed" report="push gateway"`) {
		t.Errorf("the log is\n%s", app.Log())
	}
	if _, err := lifecycle.New(lifecycle.Config{}, metrics.Push(nil)); err == nil || !strings.Contains(err.Error(), "the pusher is nil") {
		t.Errorf("a nil pusher: %v", err)
	}
}

// A program that does not call Push has nothing of it, and one without this package
// nothing of client_golang.
func TestPushCostsNothingUnused(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program")
	}
	list, err := exec.Command("go", "list", "-deps", "..").Output()
	if err != nil || strings.Contains(string(list), "prometheus") {
		t.Errorf("the root package imports client_golang, or %v", err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./testdata/scraped").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	symbols, err := exec.Command("go", "tool", "nm", program).Output()
	if err != nil || !strings.Contains(string(symbols), "lifecycle-go/metrics.") {
		t.Fatalf("the program's symbols: %v", err)
	}
	if strings.Contains(string(symbols), "client_golang/prometheus/push.") {
		t.Error("the program links the push gateway's client and does not use it")
	}
}
