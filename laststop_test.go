package lifecycle_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// afterwards returns the report that the next start reads from the file.
func afterwards(t *testing.T, file string) *lifecycle.Report {
	t.Helper()
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, TerminationLog: "off", LastStopFile: file})
	if err != nil {
		t.Fatal(err)
	}
	return app.Report().Previous
}

// The next start knows how the stop went: when it was, how long it took, which parts went
// wrong, and the exit status. What went well is not in the file, and no stack.
func TestNextStartKnowsTheLastStop(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stop.json")
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{LastStopFile: file, DrainInterval: 3 * time.Second, DrainWait: lifecycle.WaitAlways, ShutdownGrace: 20 * time.Second})
		if r.Report().Previous != nil {
			t.Error("there is a previous life before the first")
		}
		r.Go("good", untilCancelled).
			OnShutdown("last", func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }).
			OnShutdown("stuck", func(ctx context.Context) error { <-t.Context().Done(); return nil })
		r.signalAfter(time.Hour, syscall.SIGTERM)
		err := r.Run(t.Context())
		if code := lifecycle.ExitCode(err); code != lifecycle.ExitStuck {
			t.Errorf("exit status %d, want %d", code, lifecycle.ExitStuck)
		}
		own, last := r.Report(), afterwards(t, file)
		if last == nil {
			t.Fatal("no life before this one is known")
		}
		if last.Name != "rig" || last.Phase != lifecycle.PhaseFailed || last.Reason != "received signal: terminated" || last.ExitStatus != lifecycle.ExitStuck || last.Window != "full" {
			t.Errorf("the next start reads %+v", last)
		}
		if !last.Requested.Equal(r.began.Add(time.Hour)) || !last.Done.Equal(own.Done) || last.Done.Sub(last.Requested) < 4*time.Second || last.Budget != 25*time.Second {
			t.Errorf("the stop was from %v to %v of %v", last.Requested, last.Done, last.Budget)
		}
		if len(last.Hooks) != 1 || last.Hooks[0].Name != "stuck" || last.Hooks[0].Result != lifecycle.ResultAbandoned || last.Hooks[0].Stack != "" || len(last.Units) != 0 {
			t.Errorf("hooks %+v, units %+v; want the hook that was stuck", last.Hooks, last.Units)
		}
		if last.Error == "" || !strings.Contains(last.Error, "stuck") {
			t.Errorf("the error is %q", last.Error)
		}
	})
}

// A file that cannot be read or written is a line in the log, and the App runs.
func TestFileOfTheLastStopThatIsBroken(t *testing.T) {
	folder := t.TempDir()
	garbled := filepath.Join(folder, "garbled")
	if err := os.WriteFile(garbled, []byte(`{"version":7,"life":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		garbled:                                 "it has the version 7, want 1",
		folder:                                  "it is not a regular file",
		filepath.Join(folder, "none", "a.json"): "the next start will not know of this life",
	} {
		r := newRig(t, lifecycle.Config{LastStopFile: file, DrainInterval: lifecycle.Off})
		r.Go("work", func(context.Context) error { r.Stop(nil); return nil })
		if err := r.Run(t.Context()); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("%s: the log does not say %q:\n%s", file, want, r.log)
		}
	}
}

// The functions of OnReport run when the last hook has returned, all at once, with the
// report of the stop. One that fails or hangs is in the log and not in Run's error.
func TestReportsAreToldWhenTheStopIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: lifecycle.Off, ShutdownGrace: 20 * time.Second, ReportSlice: 4 * time.Second})
		r.OnReport("told", func(_ context.Context, report lifecycle.Report) error {
			r.mark("told: exit status %d, took %v", report.ExitStatus, report.Done.Sub(report.Requested))
			return nil
		}).
			OnReport("fails", func(context.Context, lifecycle.Report) error {
				r.mark("fails")
				time.Sleep(time.Second)
				return errBoom
			}).
			OnReport("hangs", func(ctx context.Context, _ lifecycle.Report) error { <-t.Context().Done(); return nil }).
			OnReport("late", func(ctx context.Context, _ lifecycle.Report) error {
				<-ctx.Done()
				r.mark("the reports' time is over")
				return nil
			}).
			Go("work", func(context.Context) error { time.Sleep(time.Second); return errBoom }).
			OnShutdown("db", func(context.Context) error {
				time.Sleep(2 * time.Second)
				r.mark("hook")
				return nil
			})
		wantErr(t, r.Run(t.Context()), errBoom, "unit work")
		if len(r.trail) == 4 && strings.HasSuffix(r.trail[1], "fails") { // told and fails run at once
			r.trail[1], r.trail[2] = r.trail[2], r.trail[1]
		}
		r.wantTrail("3s hook", "3s told: exit status 1, took 2s", "3s fails", "20s the reports' time is over")
		for _, want := range []string{`msg="a function of OnReport failed" report=fails took=1s error=boom`, `msg="a function of OnReport failed" report=hangs`} {
			if !strings.Contains(r.log.String(), want) {
				t.Errorf("the log has no %s", want)
			}
		}
	})
}

// With ReportSlice the health server answers until one scrape that began after the stop
// has its answer, and the App then ends at once.
func TestLastScrapeIsAwaited(t *testing.T) {
	var app *lifecycle.App
	scraped := make(chan lifecycle.Report, 16)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		scraped <- app.Report()
		_, _ = io.WriteString(w, "ok")
	})
	r := newRig(t, lifecycle.Config{HealthAddr: "127.0.0.1:0", DrainInterval: lifecycle.Off, ShutdownGrace: 10 * time.Minute, ReportSlice: 5 * time.Minute}, lifecycle.WithMetrics(handler))
	app = r.App
	hooked := make(chan string, 1)
	r.OnShutdown("db", func(context.Context) error {
		hooked <- "http://" + r.HealthAddr().String() + "/metrics"
		fetch(t, <-hooked) // a scrape before the stop is over
		hooked <- "http://" + r.HealthAddr().String() + "/metrics"
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(t.Context()) }()
	<-r.Reached(lifecycle.PhaseRunning)
	r.Stop(nil)
	if early := <-scraped; !early.Done.IsZero() {
		t.Error("the stop is over before its hook has returned")
	}
	url := <-hooked
	for waiting := time.Now(); r.Report().Done.IsZero(); time.Sleep(time.Millisecond) {
		if time.Since(waiting) > time.Minute {
			t.Fatal("the stop does not end")
		}
	}
	var late lifecycle.Report
	for late.Done.IsZero() { // until the App awaits it
		if got := fetch(t, url); got != "200 ok" {
			t.Fatalf("the scrape got %q", got)
		}
		late = <-scraped
	}
	if late.ExitStatus != 0 || late.Error != "" || late.Requested.IsZero() {
		t.Errorf("the last scrape saw %+v", late)
	}
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(r.log.String(), `msg="the last scrape was awaited" came=true`) {
				t.Errorf("the log is\n%s", r.log)
			}
			return
		case <-time.After(10 * time.Millisecond): // the first one may have begun too early to count
			if resp, err := http.Get(url); err == nil {
				resp.Body.Close()
			}
			select {
			case <-scraped:
			default:
			}
		}
	}
}

// Without a scrape the App waits no longer than its slice; without ReportSlice, without
// /metrics and without a health server it does not wait.
func TestLastScrapeIsAwaitedNoLonger(t *testing.T) {
	metrics := lifecycle.WithMetrics(http.NotFoundHandler())
	for name, tt := range map[string]struct {
		slice time.Duration
		addr  string
		opts  []lifecycle.Option
		waits bool
	}{
		"all":        {400 * time.Millisecond, "127.0.0.1:0", []lifecycle.Option{metrics}, true},
		"no slice":   {0, "127.0.0.1:0", []lifecycle.Option{metrics}, false},
		"no metrics": {400 * time.Millisecond, "127.0.0.1:0", nil, false},
		"no server":  {400 * time.Millisecond, lifecycle.HealthOff, []lifecycle.Option{metrics}, false},
	} {
		r := newRig(t, lifecycle.Config{HealthAddr: tt.addr, DrainInterval: lifecycle.Off, ShutdownGrace: time.Hour, ReportSlice: tt.slice}, tt.opts...)
		r.Go("work", func(context.Context) error { r.Stop(nil); return nil })
		if err := r.Run(t.Context()); err != nil || len(r.Report().Left) > 0 {
			t.Errorf("%s: %v, left %q", name, err, r.Report().Left)
		}
		if got := strings.Contains(r.log.String(), `msg="the last scrape was awaited" came=false`); got != tt.waits {
			t.Errorf("%s: it waited: %v", name, got)
		}
	}
}

// ReportSlice is part of ShutdownGrace: New refuses one that does not fit.
func TestReportSliceHasToFit(t *testing.T) {
	_, err := lifecycle.New(lifecycle.Config{ShutdownGrace: 20 * time.Second, ReportSlice: 6 * time.Second})
	wantErr(t, err, nil, "Linger + UnitSlice + HookSlice + ReportSlice is 5s + 5s + 5s + 6s = 21s, and has to fit into ShutdownGrace, which is 20s")
	var fault *lifecycle.ConfigError
	if !errors.As(err, &fault) || strings.Join(fault.Fields, " ") != "Linger UnitSlice HookSlice ReportSlice ShutdownGrace" {
		t.Errorf("the fields are %+v", fault)
	}
}
