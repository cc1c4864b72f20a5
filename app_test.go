package lifecycle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestRegistrationFaultsAreCollectedAndNothingStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{HookSlice: 2 * time.Second, MinSlice: 900 * time.Millisecond})
		no := func(context.Context) error { t.Error("something was started"); return nil }
		closed := func(context.Context) error { r.mark("hook"); return nil }
		var nilProbe lifecycle.ProbeFunc
		var nilDrain lifecycle.DrainFunc
		r.Go("twice", no).Go("twice", no).
			Go("", no).
			Go("nilfn", nil).
			Actor("half", func() error { return nil }, nil).
			Supervise("twice", no, lifecycle.DefaultBackoff()).
			Supervise("impossible", no, lifecycle.Backoff{Min: time.Minute, Max: time.Second}).
			Add(nil).
			Serve("web", nil).
			GRPC("rpc", nil, nil, nil).
			OnDrain("d", nil).OnDrain("df", nilDrain).
			OnShutdown("h", nil).OnShutdown("h1", closed).OnShutdown("h1", no).OnShutdown("h2", closed).OnShutdown("h3", closed).
			OnReload("r", nil).
			Probe("p", nil).Probe("pf", nilProbe).Probe("", lifecycle.ProbeFunc(no))
		err := r.Run(t.Context())
		wantErr(t, err, nil,
			`unit "twice" is registered twice`, `a unit has no name`, `unit "nilfn"`, `unit "half"`, `unit "impossible"`, "backoff Max is 1s",
			`unit "web"`, `unit "rpc"`, `drainer "d"`, `drainer "df"`, `shutdown hook "h"`, `shutdown hook "h1" is registered twice`, `reload "r"`,
			`"p"`, `"pf"`, "MinSlice is 900ms, which 3 shutdown hooks do not get out of HookSlice, which is 2s")
		if got := strings.Count(err.Error(), `"twice" is registered twice`); got != 2 {
			t.Errorf("%d complaints about twice, want one for each", got)
		}
		if r.Phase() != lifecycle.PhaseFailed {
			t.Errorf("it is %s", r.Phase())
		}
		r.wantTrail("0s hook", "0s hook", "0s hook") // what they close was opened before
		r.Stop(nil)                                  // does nothing, and arms nothing
	})
}

type uncomparableListener struct {
	net.Listener
	_ []int
}

// One server, or one listener, has one owner: two would close it under each
// other.
func TestServerOrListenerGivenTwiceIsRefused(t *testing.T) {
	ln := newPipeListener()
	odd := uncomparableListener{Listener: ln}
	web, rpc := &http.Server{}, &fakeGRPC{}
	for name, test := range map[string]struct {
		shape func(r *rig)
		says  []string
	}{
		"an HTTP server": {func(r *rig) { r.Serve("a", web).Serve("b", web).Serve("c", web) },
			[]string{`unit "b": its server, a *http.Server, is already used by unit "a"; give each its own`, `unit "c": its server, a *http.Server, is already used by unit "a"`}},
		"a gRPC server": {func(r *rig) { r.GRPC("a", rpc, newPipeListener(), nil).GRPC("b", rpc, newPipeListener(), nil) },
			[]string{`unit "b": its server, a *lifecycle_test.fakeGRPC, is already used by unit "a"`}},
		"a listener": {func(r *rig) {
			r.Serve("a", &http.Server{}, lifecycle.WithListener(ln)).Serve("b", &http.Server{}, lifecycle.WithListener(ln)).GRPC("c", rpc, ln, nil)
		}, []string{`unit "b": its listener, a *lifecycle_test.pipeListener, is already used by unit "a"`, `unit "c": its listener`}},
		"what cannot be compared": {func(r *rig) {
			r.Serve("a", &http.Server{}, lifecycle.WithListener(odd)).Serve("b", nil, lifecycle.WithListener(odd))
		}, []string{`unit "b": Serve: the server is nil`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			test.shape(r)
			r.Go("unit", func(context.Context) error { t.Error("something was started"); r.Stop(nil); return nil })
			err := r.Run(t.Context())
			wantErr(t, err, nil, test.says...)
			if strings.Contains(err.Error(), `unit "a": `) {
				t.Errorf("the first one is refused too: %v", err)
			}
		})
	}
}

// R10: nil for an argument is refused with the verb and the name of each such argument.
func TestNilArgumentsAreNamed(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	r.Go("g", nil).Job("j", nil).Supervise("s", nil, lifecycle.Backoff{}).Actor("a", nil, nil).Lead("l", nil, nil).
		Serve("w", nil).GRPC("c", nil, nil, nil).Add(nil).
		OnDrain("d", nil).OnShutdown("h", nil).OnReload("r", nil).OnReport("p", nil)
	wantErr(t, r.Run(t.Context()), nil,
		`unit "g": Go: the function is nil`, `unit "j": Job: the function is nil`, `unit "s": Supervise: the function is nil`,
		`unit "a": Actor: the function execute is nil, the function interrupt is nil`,
		`unit "l": Lead: the elector is nil, the function is nil`, `unit "w": Serve: the server is nil`,
		`unit "c": GRPC: the server is nil, the listener is nil`, `unit "": Add: the worker is nil`,
		`drainer "d": OnDrain: the drainer is nil`, `shutdown hook "h": OnShutdown: the function is nil`,
		`reload "r": OnReload: the function is nil`, `report "p": OnReport: the function is nil`)
}

func TestRegistrationInAndAfterRunIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		no := func(context.Context) error { t.Error("it ran"); return nil }
		late := func() {
			r.Go("g", no).Actor("a", func() error { return no(nil) }, func(error) {}).Supervise("s", no, lifecycle.Backoff{Min: -1}).
				OnDrain("d", lifecycle.DrainFunc(no)).OnShutdown("h", no).OnReload("r", no).Probe("p", lifecycle.ProbeFunc(no)).
				Serve("w", &http.Server{}).Add(worker.NewFunc("f", no))
		}
		r.Go("u", func(ctx context.Context) error { late(); return untilCancelled(ctx) })
		r.signalAfter(time.Second, syscall.SIGTERM)
		err := r.Run(t.Context())
		late()
		for _, name := range []string{`"g"`, `"a"`, `"s"`, `"d"`, `"h"`, `"r"`, `"p"`, `"w"`, `"f"`} {
			if err == nil || strings.Count(err.Error(), name) != 1 {
				t.Errorf("%s is not in Run's error once: %v", name, err)
			}
		}
		refused := strings.Join(r.Report().Refused, "\n")
		for _, name := range []string{`"g"`, `"a"`, `"s"`, `"d"`, `"h"`, `"r"`, `"p"`, `"w"`, `"f"`} {
			if strings.Count(refused, name) != 2 {
				t.Errorf("%s is not in the report twice:\n%s", name, refused)
			}
			if !strings.Contains(r.log.String(), "level=ERROR msg=\"registration refused: Run has begun\"") {
				t.Error("the log does not say so at error level")
			}
		}
	})
}

// The zero App says what to do instead; its verbs do not panic.
func TestZeroAppNamesNew(t *testing.T) {
	var a lifecycle.App
	no := func(context.Context) error { return nil }
	a.Go("g", no).Actor("a", func() error { return nil }, func(error) {}).Supervise("s", no, lifecycle.Backoff{}).Job("j", no).
		OnDrain("d", lifecycle.DrainFunc(no)).OnShutdown("h", no).OnReload("r", no).Probe("p", lifecycle.ProbeFunc(no)).
		OnReport("t", func(context.Context, lifecycle.Report) error { return nil }).
		Serve("w", &http.Server{}).Add(worker.NewFunc("f", no)).Go("", nil)
	for range 2 {
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "use lifecycle.New") {
			t.Error(err)
		}
	}
}

// A unit that returns the cause of its context ends as cleanly as one that returns the
// context's error, also when the parent's deadline was the cause.
func TestParentsDeadlineIsACleanEnd(t *testing.T) {
	for name, ended := range map[string]func(context.Context) error{
		"the cause": context.Cause,
		"the error": context.Context.Err,
		"both, wrapped": func(ctx context.Context) error {
			return fmt.Errorf("loop: %w", errors.Join(ctx.Err(), context.Cause(ctx)))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := newRig(t, lifecycle.Config{})
			r.Go("u", func(ctx context.Context) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
					t.Errorf("the cause is %v", context.Cause(ctx))
				}
				return ended(ctx)
			})
			if err := r.Run(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// A unit that comes too late may be the child of a supervisor, which the error names.
func TestLateUnitIsSentToASupervisor(t *testing.T) {
	for _, names := range [][]string{nil, {"shards"}, {"shards", "feeds"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Go("other", untilCancelled)
			want := "register a worker.Supervisor before Run, and give it children with its Add"
			for _, name := range names {
				r.Add(worker.NewSupervisor(name, worker.SupervisorConfig{}))
				want = "give it as a child to a supervisor of this App (" + strings.Join(names, ", ") + ") with its Add"
			}
			r.after(time.Second, func() {
				r.Add(worker.NewFunc("late", untilCancelled)).OnShutdown("hook", untilCancelled)
				r.Stop(nil)
			})
			_ = r.Run(t.Context())
			refused := r.Report().Refused
			if len(refused) != 2 || !strings.HasPrefix(refused[0], `unit "late" `) || !strings.HasSuffix(refused[0], want) || strings.Contains(refused[1], "Add") {
				t.Errorf("the report: %q, want the first to end %q", refused, want)
			}
			if got := linesWith(r.log.String(), "registration refused: Run has begun"); len(got) != 2 || !strings.HasSuffix(got[0], want+`"`) {
				t.Errorf("the log: %q", got)
			}
		})
	}
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Go("u", func(ctx context.Context) error {
			if err := r.Run(ctx); !errors.Is(err, lifecycle.ErrAlreadyRun) {
				t.Errorf("Run inside of Run: %v", err)
			}
			return untilCancelled(ctx)
		})
		r.signalAfter(time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if err := r.Run(t.Context()); !errors.Is(err, lifecycle.ErrAlreadyRun) {
			t.Errorf("Run after Run: %v", err)
		}
	})
}

func TestNewRefusesSenselessConfig(t *testing.T) {
	s := time.Second
	for name, test := range map[string]struct {
		cfg  lifecycle.Config
		says []string
	}{
		"negative":       {lifecycle.Config{DrainInterval: -5 * s}, []string{"DrainInterval is -5s", "want"}},
		"endless":        {lifecycle.Config{ShutdownGrace: 1 << 62}, []string{"ShutdownGrace is", "want at most 8760h0m0s"}},
		"many at a time": {lifecycle.Config{Linger: -2, ShutdownGrace: lifecycle.Off, DrainWait: "maybe"}, []string{"Linger", "ShutdownGrace is off", `DrainWait is "maybe"`, `"auto"`}},
		"readiness":      {lifecycle.Config{DrainReadiness: "up"}, []string{`DrainReadiness is "up"`, `"down"`, `"serving"`}},
		"address":        {lifecycle.Config{HealthAddr: "8081"}, []string{`HealthAddr is "8081"`, "host:port"}},
		"slices":         {lifecycle.Config{ShutdownGrace: 4 * s, Linger: 2 * s, UnitSlice: 2 * s, HookSlice: s}, []string{"2s + 2s + 1s = 5s", "ShutdownGrace, which is 4s"}},
		"quiet":          {lifecycle.Config{AcceptQuiet: 9 * s}, []string{"AcceptQuiet (9s)", "AcceptMax (7.5s)"}},
		"min slice":      {lifecycle.Config{MinSlice: 9 * s}, []string{"MinSlice (9s)", "HookSlice (5s)"}},
		"drain min":      {lifecycle.Config{DrainMin: 9 * s}, []string{"DrainMin (9s)", "DrainInterval (5s)"}},
		"pod grace":      {lifecycle.Config{TerminationGrace: 26 * s}, []string{"0s + 5s + 20s + 2s = 27s", "TerminationGrace", "gives 26s"}},
		"with preStop":   {lifecycle.Config{TerminationGrace: 30 * s, PreStop: 5 * s}, []string{"5s + 5s + 20s + 2s = 32s", "gives 30s"}},
		"liveness grace": {lifecycle.Config{TerminationGrace: 60 * s, LivenessGrace: 10 * s}, []string{"liveness probe's", "gives 10s"}},
		"startup grace":  {lifecycle.Config{StartupGrace: 10 * s}, []string{"startup probe's", "gives 10s"}},
	} {
		t.Run(name, func(t *testing.T) {
			app, err := lifecycle.New(test.cfg)
			if app != nil {
				t.Error("an App came with it")
			}
			wantErr(t, err, nil, test.says...)
		})
	}
	t.Run("a nil metrics handler", func(t *testing.T) {
		_, err := lifecycle.New(lifecycle.Config{}, lifecycle.WithMetrics(nil))
		wantErr(t, err, nil, "WithMetrics")
	})
	t.Run("what just fits", func(t *testing.T) {
		for _, cfg := range []lifecycle.Config{
			{}, lifecycle.Config{}.WithDefaults(), {TerminationGrace: 27 * s}, {ShutdownGrace: s}, {DrainInterval: lifecycle.Off, Linger: lifecycle.Off, AcceptQuiet: lifecycle.Off},
			{ShutdownGrace: 100 * time.Millisecond, DrainInterval: 10 * time.Millisecond, TerminationGrace: 3 * s}, {LivenessGrace: lifecycle.Off},
		} {
			if _, err := lifecycle.FromConfig(cfg); err != nil {
				t.Errorf("%+v: %v", cfg, err)
			}
		}
	})
}

func TestRunReturnsThePrimaryCauseFirst(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  lifecycle.Config
		stop func(r *rig)
		want string
		code int
	}{
		"clean":                       {lifecycle.Config{}, func(r *rig) { r.signals <- syscall.SIGTERM }, "", 0},
		"a signal that is to be told": {lifecycle.Config{ExitOnSignal: true}, func(r *rig) { r.signals <- syscall.SIGTERM }, "received signal: terminated", 143},
		"SIGINT that is to be told":   {lifecycle.Config{ExitOnSignal: true}, func(r *rig) { r.signals <- os.Interrupt }, "received signal: interrupt", 130},
		"no signal to tell":           {lifecycle.Config{ExitOnSignal: true}, func(r *rig) { r.Stop(nil) }, "", 0},
		"Stop, then another":          {lifecycle.Config{DrainWait: lifecycle.WaitAlways}, func(r *rig) { r.Stop(errBoom); r.Stop(errors.New("later")); r.Stop(nil) }, "boom\nlater", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, test.cfg)
				r.Go("u", untilCancelled)
				r.after(time.Second, func() { test.stop(r) })
				err := r.Run(t.Context())
				got := ""
				if err != nil {
					got = err.Error()
				}
				if got != test.want || lifecycle.ExitCode(err) != test.code {
					t.Errorf("got %q, exit code %d, want %q, %d", got, lifecycle.ExitCode(err), test.want, test.code)
				}
			})
		})
	}
}

func TestDrainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newRig(t, lifecycle.Config{DrainInterval: 3 * time.Second, DrainWait: lifecycle.WaitAlways})
		r.Go("u", untilCancelled)
		for _, name := range []string{"a", "b"} { // at the same time
			r.OnDrain(name, lifecycle.DrainFunc(func(context.Context) error { time.Sleep(2 * time.Second); r.mark("drained"); return nil }))
		}
		r.OnDrain("fails", lifecycle.DrainFunc(func(context.Context) error { return errBoom })).
			OnDrain("panics", lifecycle.DrainFunc(func(context.Context) error { panic("oh no") })).
			OnDrain("ignores", lifecycle.DrainFunc(func(context.Context) error { hangsHere(release); return nil })).
			OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
		r.signalAfter(time.Second, syscall.SIGTERM)
		err := r.Run(t.Context())
		wantErr(t, err, errBoom, "drainer fails: boom", "drainer panics: panic: oh no", "drainer ignores: did not return in time", "hangsHere")
		r.wantTrail("3s drained", "3s drained", "4.1s hook") // 100 ms for units that watch the end of their context
		results := map[string]lifecycle.Result{}
		for _, o := range r.Report().Drainers {
			results[o.Name] = o.Result
		}
		if results["a"] != lifecycle.ResultOK || results["fails"] != lifecycle.ResultFailed || results["panics"] != lifecycle.ResultPanicked || results["ignores"] != lifecycle.ResultAbandoned {
			t.Errorf("the report says %v", results)
		}
		close(release)
		synctest.Wait()
	})
}

func TestReportTellsTheWholeLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: 2 * time.Second, DrainWait: lifecycle.WaitAlways})
		r.Go("u", untilCancelled).
			OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { return nil })).
			OnShutdown("h", func(context.Context) error { time.Sleep(time.Second); return nil })
		if rep := r.Report(); rep.Phase != lifecycle.PhaseCreated || rep.Units[0].Result != lifecycle.ResultSkipped {
			t.Errorf("before Run: %+v", rep)
		}
		r.after(time.Second, func() {
			if rep := r.Report(); rep.Phase != lifecycle.PhaseRunning || rep.Units[0].Result != lifecycle.ResultRunning || rep.Units[0].Took != time.Second {
				t.Errorf("in Run: %+v", rep)
			}
			r.signals <- syscall.SIGTERM
		})
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		rep := r.Report()
		if rep.Reason != "received signal: terminated" || rep.Phase != lifecycle.PhaseStopped || rep.Error != "" || rep.Window != "full" {
			t.Errorf("got %+v", rep)
		}
		if rep.Units[0].Took != 3*time.Second || rep.Hooks[0].Took != time.Second || rep.Drainers[0].Result != lifecycle.ResultOK {
			t.Errorf("got %+v", rep)
		}
		if _, err := json.Marshal(rep); err != nil {
			t.Error(err)
		}
		last := ""
		for line := range strings.Lines(r.log.String()) {
			last = line
		}
		for _, want := range []string{"the app stopped", `reason="received signal: terminated"`, "phases.running=1s", "phases.draining=2s", "phases.stopping=1s", `units="u ok in 3s"`, `drainers="d ok in 0s"`, `hooks="h ok in 1s"`} {
			if !strings.Contains(last, want) {
				t.Errorf("the last line of the log does not say %q:\n%s", want, last)
			}
		}
	})
}

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: 5 * time.Second, DrainWait: lifecycle.WaitAlways})
		r.Go("u", untilCancelled)
		if err := r.Reload(t.Context()); !errors.Is(err, lifecycle.ErrReloadRefused) {
			t.Errorf("before Run: %v", err)
		}
		fail := true
		r.OnReload("config", func(context.Context) error {
			r.mark("config")
			time.Sleep(time.Second)
			if fail {
				fail = false
				return errBoom
			}
			return nil
		}).OnReload("cert", func(context.Context) error { r.mark("cert"); return nil })
		r.after(time.Second, func() {
			for range 5 { // stops that come while one waits count as that one
				r.signals <- syscall.SIGHUP
			}
		})
		r.after(10*time.Second, func() {
			if err := r.Reload(t.Context()); err != nil {
				t.Errorf("Reload: %v", err)
			}
		})
		r.after(20*time.Second, func() {
			r.signals <- syscall.SIGTERM
			synctest.Wait()
			r.signals <- syscall.SIGHUP
			if err := r.Reload(t.Context()); !errors.Is(err, lifecycle.ErrReloadRefused) {
				t.Errorf("in the drain: %v", err)
			}
		})
		if err := r.Run(t.Context()); err != nil {
			t.Errorf("a reload that failed is told as an error: %v", err)
		}
		r.wantTrail("1s config", "2s cert", "2s config", "3s cert", "10s config", "11s cert")
		if got := r.Report().Reloads[0]; got.Result != lifecycle.ResultFailed || got.Name != "config" {
			t.Errorf("the report says %v", got)
		}
		if !strings.Contains(r.log.String(), "reload failed, the old state stays") {
			t.Error("the log does not say that it failed")
		}
	})
}

func TestAddressInUseIsAStartUpError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	t.Run("of a server", func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Serve("web", &http.Server{Addr: addr}).
			Go("u", func(context.Context) error { t.Error("a unit was started"); return nil }).
			OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
		wantErr(t, r.Run(t.Context()), syscall.EADDRINUSE, "web", addr)
		if len(r.trail) != 1 {
			t.Error("the hook did not run")
		}
	})
	t.Run("of the health planes", func(t *testing.T) {
		r := newRig(t, lifecycle.Config{HealthAddr: addr})
		wantErr(t, r.Run(t.Context()), syscall.EADDRINUSE, "health", addr)
	})
}

func TestMetricsAreServedOnTheHealthAddress(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) })
	r := newRig(t, lifecycle.Config{HealthAddr: "127.0.0.1:0", DrainWait: lifecycle.WaitNever}, lifecycle.WithMetrics(metrics))
	var bodies []string
	r.Go("u", func(ctx context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		for _, path := range []string{"/metrics", "/readyz", "/livez"} {
			bodies = append(bodies, fetch(t, "http://"+r.HealthAddr().String()+path))
		}
		r.Stop(nil)
		<-ctx.Done()
		return nil
	})
	// The planes outlive the drain: they answer while hooks run.
	r.OnShutdown("h", func(context.Context) error {
		bodies = append(bodies, fetch(t, "http://"+r.HealthAddr().String()+"/livez"))
		return nil
	})
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(bodies, " "); !strings.HasPrefix(got, "200 up 1") || strings.Count(got, `"status":"ok"`) != 3 {
		t.Errorf("got %s", got)
	}
	if resp, err := http.Get("http://" + r.HealthAddr().String() + "/livez"); err == nil {
		resp.Body.Close()
		t.Error("the health server is open after Run")
	}
}

// The first signal of an App that stops already says what one more does.
func TestFirstSignalOfAStopSaysWhatTheNextDoes(t *testing.T) {
	for wait, want := range map[lifecycle.DrainWait]string{
		lifecycle.WaitAlways: "one more skips the drain window",
		lifecycle.WaitNever:  "one more ends the process",
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{DrainWait: wait})
			r.Go("unit", untilCancelled).OnShutdown("slow", func(context.Context) error { time.Sleep(2 * time.Second); return nil })
			r.after(time.Second, func() { r.Stop(nil) })
			r.signalAfter(2*time.Second, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if !strings.Contains(r.log.String(), want) {
				t.Errorf("DrainWait %s: want %q in\n%s", wait, want, r.log)
			}
		})
	}
}
