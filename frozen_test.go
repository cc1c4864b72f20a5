package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

// foreignPlaces are the places in which an App runs foreign functions that return
// an error. Each registers fn in its place and lets the App stop on its own or by
// a signal.
var foreignPlaces = map[string]func(r *rig, fn func() error){
	"unit":    func(r *rig, fn func() error) { r.Go("it", func(context.Context) error { return fn() }) },
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
	"Lead":   func(r *rig, fn func() error) { r.Lead("it", oneLease{}, func(context.Context) error { return fn() }) },
	"worker": func(r *rig, fn func() error) { r.Add(&startsWith{fn: fn, done: make(chan struct{})}) },
	"hook":   func(r *rig, fn func() error) { r.OnShutdown("it", func(context.Context) error { return fn() }) },
	"drainer": func(r *rig, fn func() error) {
		r.OnDrain("it", lifecycle.DrainFunc(func(context.Context) error { return fn() }))
	},
	"reload": func(r *rig, fn func() error) { r.OnReload("it", func(context.Context) error { return fn() }) },
	"probe": func(r *rig, fn func() error) {
		r.Probe("it", lifecycle.ProbeFunc(func(context.Context) error { return fn() }))
	},
	"Stop": func(r *rig, fn func() error) { r.after(time.Minute, func() { r.Stop(caught(fn)) }) },
}

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

// startsWith is a foreign worker whose Start is fn.
type startsWith struct {
	fn   func() error
	done chan struct{}
}

func (w *startsWith) Name() string                { return "it" }
func (w *startsWith) Start(context.Context) error { return w.fn() }
func (w *startsWith) Stop(context.Context) error  { return nil }
func (w *startsWith) Done() <-chan struct{}       { return w.done }
func (w *startsWith) Err() error                  { return nil }
func (w *startsWith) State() worker.State {
	return worker.State{Name: "it", Status: worker.StatusRunning}
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
// becomes an error of the part that panicked, like any other panic. It once ended
// the process, because errors.Is called the nil pointer's method in a goroutine
// of the App.
func TestPanicWithANilErrorIsAnErrorEverywhere(t *testing.T) {
	for place := range foreignPlaces {
		for what, value := range map[string]any{"a nil *net.OpError": (*net.OpError)(nil), "an error that panics": unreadable{}, "a wrapped nil": fmt.Errorf("around: %w", (*net.OpError)(nil))} {
			t.Run(place+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, err := runForeign(t, place, func() error { panic(value) })
					switch place {
					case "probe", "reload": // their errors are not errors of Run
						if err != nil {
							t.Errorf("Run returned %v", err)
						}
						if place == "reload" && r.Report().Reloads[0].Result != lifecycle.ResultPanicked {
							t.Errorf("the report says %v", r.Report().Reloads)
						}
					case "Stop":
						if err == nil || errors.Is(err, context.Canceled) {
							t.Errorf("Run returned %v", err)
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

// shy is a foreign error. Once it is shut, it counts the calls of its methods.
type shy struct {
	shut  atomic.Bool
	calls atomic.Int64
}

func (s *shy) touch() string {
	if s.shut.Load() {
		s.calls.Add(1)
	}
	return "shy"
}

func (s *shy) Error() string              { return s.touch() }
func (s *shy) Unwrap() error              { s.touch(); return nil }
func (s *shy) Is(error) bool              { s.touch(); return false }
func (s *shy) As(any) bool                { s.touch(); return false }
func (s *shy) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.touch()) }
func (s *shy) ExitCode() int              { return 7 }

// After the call that returned a foreign error, no goroutine of the App runs a
// method of that error, neither to log or report it nor to compare it. The caller
// of Run still finds the original error and its exit status.
func TestForeignErrorsAreReadOnce(t *testing.T) {
	for place := range foreignPlaces {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := new(shy)
				r, result := runForeign(t, place, func() error {
					err.shut.Store(false) // Supervise and a probe call it again
					time.AfterFunc(time.Nanosecond, func() { err.shut.Store(true) })
					return err
				})
				_ = r.Report()
				_ = r.Ready()
				if n := err.calls.Load(); n != 0 {
					t.Errorf("the App ran its methods %d times after the call", n)
				}
				if place == "probe" || place == "reload" {
					return
				}
				if !errors.Is(result, err) || !strings.Contains(fmt.Sprint(result), "shy") {
					t.Errorf("Run returned %v, want it to be the error", result)
				}
				if found := new(shy); place != "interrupt" && (!errors.As(result, &found) || found != err) {
					t.Errorf("errors.As found %p, want %p", found, err)
				}
				if code := lifecycle.ExitCode(result); place != "hook" && place != "drainer" && place != "interrupt" && code != 7 {
					t.Errorf("exit status %d, want the error's own", code)
				}
			})
		})
	}
}
