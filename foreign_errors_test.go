package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// oneLease is an elector that grants every request.
type oneLease struct{}

func (oneLease) Acquire(context.Context) (time.Duration, error) { return time.Minute, nil }
func (oneLease) Release(context.Context) error                  { return nil }

// foreignPlaces are the places in which an App gets errors of foreign functions. Each
// registers fn in its place and lets the App stop on its own or by a signal.
var foreignPlaces = map[string]func(r *rig, fn func() error){
	"unit":    func(r *rig, fn func() error) { r.Go("it", func(context.Context) error { return fn() }) },
	"job":     func(r *rig, fn func() error) { r.Job("it", func(context.Context) error { return fn() }) },
	"execute": func(r *rig, fn func() error) { r.Actor("it", fn, func(error) {}) },
	"interrupt": func(r *rig, fn func() error) {
		quit := make(chan struct{})
		r.Actor("it", func() error { <-quit; return nil }, func(error) { close(quit); must(fn()) })
	},
	"Supervise": func(r *rig, fn func() error) {
		backoff := lifecycle.DefaultBackoff()
		backoff.MaxRestarts = 1
		r.Supervise("it", func(context.Context) error { return fn() }, backoff)
	},
	"Lead":           func(r *rig, fn func() error) { r.Lead("it", oneLease{}, func(context.Context) error { return fn() }) },
	"worker's Start": func(r *rig, fn func() error) { r.Add(&foreignWorker{start: fn, done: make(chan struct{})}) },
	"worker's Err":   func(r *rig, fn func() error) { r.Add(&foreignWorker{err: fn, done: make(chan struct{})}) },
	"child of a supervisor": func(r *rig, fn func() error) {
		spec := worker.FuncSpec("it", func(context.Context) error { return fn() })
		spec.Restart = worker.OnFailure
		tree := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: worker.Backoff{MaxRestarts: 1, Window: time.Hour}})
		must(tree.Add(spec))
		r.Add(tree)
	},
	"RunLoop": func(r *rig, fn func() error) {
		r.Go("it", func(ctx context.Context) error {
			return lifecycle.RunLoop(ctx, time.Second, func(context.Context) error { return fn() }, lifecycle.WithStopOnError())
		})
	},
	"hook": func(r *rig, fn func() error) { r.OnShutdown("it", func(context.Context) error { return fn() }) },
	"drainer": func(r *rig, fn func() error) {
		r.OnDrain("it", lifecycle.DrainFunc(func(context.Context) error { return fn() }))
	},
	"reload": func(r *rig, fn func() error) { r.OnReload("it", func(context.Context) error { return fn() }) },
	"probe": func(r *rig, fn func() error) {
		r.Probe("it", lifecycle.ProbeFunc(func(context.Context) error { return fn() }))
	},
	"report": func(r *rig, fn func() error) {
		r.OnReport("it", func(context.Context, lifecycle.Report) error { return fn() })
	},
	"Stop": func(r *rig, fn func() error) { r.after(time.Minute, func() { r.Stop(caught(fn)) }) },
}

// silent are the places whose errors are not errors of Run: the log and the report have
// them.
var silent = []string{"probe", "reload", "report"}

// must turns an error into a panic with it.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// caught returns the error that fn returns or panics with.
func caught(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err, _ = v.(error)
		}
	}()
	return fn()
}

// foreignWorker is a worker without BaseWorker. Its Start is start, or it fails after a
// second with what err returns.
type foreignWorker struct {
	start, err func() error
	done       chan struct{}
}

func (w *foreignWorker) Name() string { return "it" }
func (w *foreignWorker) Start(context.Context) error {
	if w.start != nil {
		return w.start()
	}
	time.AfterFunc(time.Second, func() { close(w.done) })
	return nil
}
func (w *foreignWorker) Stop(context.Context) error { return nil }
func (w *foreignWorker) Done() <-chan struct{}      { return w.done }
func (w *foreignWorker) Err() error                 { return w.err() }
func (w *foreignWorker) State() worker.State {
	select {
	case <-w.done:
		return worker.State{Name: "it", Status: worker.StatusFailed}
	default:
		return worker.State{Name: "it", Status: worker.StatusRunning}
	}
}

// runForeign runs an App with fn in one place, for at most two minutes of the
// bubble's time. It reloads the App once, and checks that no step of the teardown
// is missing.
func runForeign(t *testing.T, place string, fn func() error) (r *rig, err error) {
	t.Helper()
	r = newRig(t, lifecycle.Config{})
	r.OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
	r.Go("busy", untilCancelled)
	foreignPlaces[place](r, fn)
	r.after(30*time.Second, func() { _ = r.Reload(t.Context()) })
	r.signalAfter(2*time.Minute, os.Interrupt)
	err = r.Run(t.Context())
	if len(r.trail) != 1 || !strings.Contains(r.trail[0], "db closed") {
		t.Errorf("the teardown did %q, want the hook to have run once", r.trail)
	}
	_ = r.Status()
	return r, err
}

// unreadable has one value of each kind whose methods panic.
type unreadable struct{ text *string }

func (u unreadable) Error() string { return *u.text }

// A panic with a value whose methods fail, such as a nil pointer in an error,
// becomes an error of the part that panicked, like any other panic.
func TestPanicWithANilErrorIsAnErrorEverywhere(t *testing.T) {
	for place := range foreignPlaces {
		for what, value := range map[string]any{"a nil *net.OpError": (*net.OpError)(nil), "an error that panics": unreadable{}, "a wrapped nil": fmt.Errorf("around: %w", (*net.OpError)(nil))} {
			t.Run(place+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, err := runForeign(t, place, func() error { panic(value) })
					switch {
					case slices.Contains(silent, place):
						if err != nil {
							t.Errorf("Run returned %v", err)
						}
						if place == "reload" && r.Report().Reloads[0].Result != lifecycle.ResultPanicked {
							t.Errorf("the report says %v", r.Report().Reloads)
						}
					case place == "Stop":
						if err == nil {
							t.Error("Run returned nil")
						}
					default:
						if p := new(lifecycle.PanicError); !errors.As(err, &p) {
							t.Errorf("Run returned %v, want a panic", err)
						}
						if lifecycle.ExitCode(err) != 1 || !strings.Contains(err.Error(), "it") {
							t.Errorf("exit status %d for %v", lifecycle.ExitCode(err), err)
						}
					}
				})
			})
		}
	}
}

var errAccepted = errors.New("accepted by an Is method")

// accepting answers to errors.Is and errors.As with methods, and formats itself.
type accepting struct{ code int }

func (a *accepting) Error() string              { return "accepting" }
func (a *accepting) Is(target error) bool       { return target == errAccepted }
func (a *accepting) Format(f fmt.State, _ rune) { fmt.Fprint(f, "formatted by itself") }
func (a *accepting) ExitCode() int              { return 7 }
func (a *accepting) As(target any) bool {
	v, ok := target.(*valued)
	if ok {
		*v = valued{a.code}
	}
	return ok
}

// valued is an error that is not a pointer.
type valued struct{ code int }

func (v valued) Error() string { return fmt.Sprint("value ", v.code) }

// listed is an error that cannot be compared.
type listed []error

func (l listed) Error() string   { return fmt.Sprintf("a list of %d", len(l)) }
func (l listed) Unwrap() []error { return l }

// careless is an error of which one method does what the mode says.
type careless struct {
	method, mode string
	release      chan struct{}
}

func (c *careless) do(method string) {
	if method != c.method {
		return
	}
	switch c.mode {
	case "panics":
		panic("careless")
	case "exits":
		runtime.Goexit()
	case "blocks":
		<-c.release
	}
}

func (c *careless) Error() string { c.do("Error"); return "careless" }
func (c *careless) Is(error) bool { c.do("Is"); return false }
func (c *careless) Unwrap() error { c.do("Unwrap"); return nil }

// An error of a user's function is the user's own behind Run: custom Is, As and Format
// methods, comparison and exit status work. An error that is careless ends nothing: the
// App stops in time, in order, with an error.
func TestErrorsOfEveryKindInEveryPlace(t *testing.T) {
	var ring, own error = &accepting{7}, valued{3}
	kinds := map[string]struct {
		err  func(release chan struct{}) error
		want func(err error) bool // nil for a careless error
	}{
		"a custom Is": {func(chan struct{}) error { return ring }, func(err error) bool { return errors.Is(err, errAccepted) && errors.Is(err, ring) }},
		"a custom As": {func(chan struct{}) error { return ring }, func(err error) bool { v := valued{}; return errors.As(err, &v) && v.code == 7 }},
		"a custom Format": {func(chan struct{}) error { return ring }, func(err error) bool {
			var a *accepting
			return errors.As(err, &a) && fmt.Sprintf("%+v", a) == "formatted by itself"
		}},
		"a value":            {func(chan struct{}) error { return own }, func(err error) bool { return errors.Is(err, own) }},
		"wrapped and joined": {func(chan struct{}) error { return fmt.Errorf("a: %w", errors.Join(own, ring)) }, func(err error) bool { return errors.Is(err, own) && errors.Is(err, errAccepted) }},
		"not comparable":     {func(chan struct{}) error { return listed{own, ring} }, func(err error) bool { return errors.Is(err, own) && errors.Is(err, errAccepted) }},
		"a typed nil":        {func(chan struct{}) error { return (*accepting)(nil) }, nil},
		"Error panics":       {func(chan struct{}) error { return &careless{"Error", "panics", nil} }, nil},
		"Error exits":        {func(chan struct{}) error { return &careless{"Error", "exits", nil} }, nil},
		"Error blocks":       {func(release chan struct{}) error { return &careless{"Error", "blocks", release} }, nil},
		"Is blocks":          {func(release chan struct{}) error { return &careless{"Is", "blocks", release} }, nil},
		"Unwrap panics":      {func(chan struct{}) error { return &careless{"Unwrap", "panics", nil} }, nil},
	}
	for place := range foreignPlaces {
		for name, kind := range kinds {
			t.Run(place+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					defer synctest.Wait()
					defer close(release)
					began := time.Now()
					_, err := runForeign(t, place, func() error { return kind.err(release) })
					if took := time.Since(began); took > 3*time.Minute {
						t.Errorf("it took %v", took)
					}
					switch {
					case slices.Contains(silent, place):
						if err != nil {
							t.Errorf("Run returned %v", err)
						}
					case err == nil:
						t.Error("Run returned nil")
					case kind.want != nil && !kind.want(err):
						t.Errorf("the error is lost in %v", err)
					}
				})
			})
		}
	}
}

// counted is an error that counts the calls of its Error method.
type counted struct{ calls atomic.Int64 }

func (c *counted) Error() string { c.calls.Add(1); return "counted" }
func (c *counted) ExitCode() int { return 7 }

// The library reads the text of an error once for each call that returns it, and not for
// each line of the log, report or page.
func TestTheTextOfAnErrorIsReadOnce(t *testing.T) {
	for place := range foreignPlaces {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var returned int64
				err := new(counted)
				r, result := runForeign(t, place, func() error { returned++; return err })
				_ = r.Report()
				_ = r.Ready()
				_ = fmt.Sprint(result)
				if n := err.calls.Load(); n > returned+1 { // a foreign worker's error is asked for twice
					t.Errorf("it was read %d times and returned %d times", n, returned)
				}
				if slices.Contains(silent, place) {
					return
				}
				if !errors.Is(result, err) || !strings.Contains(fmt.Sprint(result), "counted") {
					t.Errorf("Run returned %v, want it to be the error", result)
				}
				later := []string{"hook", "drainer", "interrupt"} // the cause of the stop is another
				if code := lifecycle.ExitCode(result); !slices.Contains(later, place) && code != 7 {
					t.Errorf("exit status %d, want the error's own", code)
				}
			})
		})
	}
}

// A request to stop is made first and described second: an error whose text cannot be
// read stops the App at once.
func TestAStopDoesNotWaitForTheTextOfItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newRig(t, lifecycle.Config{})
		r.Go("busy", untilCancelled)
		r.after(time.Minute, func() { r.Stop(&careless{"Error", "blocks", release}) })
		began := time.Now()
		err := r.Run(t.Context())
		if at := r.Report().Requested.Sub(began); at != time.Minute {
			t.Errorf("the stop began after %v, want a minute", at)
		}
		wantErr(t, err, nil, "careless, whose text is not known")
		if reason := r.Report().Reason; !strings.Contains(reason, "App.Stop was called: a *lifecycle_test.careless") {
			t.Errorf("the reason is %q", reason)
		}
		close(release)
		synctest.Wait()
	})
}
