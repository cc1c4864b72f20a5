package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// faults breaks the service on purpose, so that a test can watch the
// effect. It is served only with -allow-faults.
type faults struct {
	fail      chan string
	restart   chan struct{}
	lose      chan struct{}
	stuckUnit atomic.Bool
	stuckHook atomic.Bool
	unready   atomic.Bool
}

// The ways to fail, as POST /fail?how=… names them.
const (
	failError     = "error"      // a unit returns an error: the App stops
	failPanic     = "panic"      // a unit panics: the App stops
	failStuckUnit = "stuck-unit" // from now on a unit ignores its cancellation
	failStuckHook = "stuck-hook" // the last hook never returns
	failUnready   = "unready"    // a readiness probe fails, until the next request
	failRestart   = "restart"    // a worker fails, and is started again
	failLose      = "lose"       // a worker fails, and the App runs on without it
)

var failures = []string{failError, failPanic, failStuckUnit, failStuckHook, failUnready, failRestart, failLose}

func newFaults() *faults {
	return &faults{fail: make(chan string, 1), restart: make(chan struct{}), lose: make(chan struct{})}
}

// register adds the units, the hook and the probe that can be broken.
func (f *faults) register(app *lifecycle.App) {
	lost := worker.FuncSpec("lost", failOn(f.lose))
	lost.Restart = worker.Never
	app.Go("faulty", f.unit).
		Add(worker.NewSupervisor("fragile", worker.SupervisorConfig{
			Backoff:  lifecycle.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond, MaxRestarts: worker.NoLimit},
			Children: []worker.Spec{worker.FuncSpec("restarted", failOn(f.restart)), lost},
		})).
		Probe("faulty", lifecycle.ProbeFunc(func(context.Context) error {
			if f.unready.Load() {
				return errors.New("was told to be unready")
			}
			return nil
		})).
		OnShutdown("faulty", func(context.Context) error {
			if f.stuckHook.Load() {
				select {}
			}
			return nil
		})
}

// failOn returns work that fails when it is asked to.
func failOn(asked <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-asked:
			return errors.New("was told to fail")
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *faults) unit(ctx context.Context) error {
	select {
	case how := <-f.fail:
		if how == failPanic {
			panic("was told to panic")
		}
		return errors.New("was told to fail")
	case <-ctx.Done():
	}
	if f.stuckUnit.Load() {
		select {}
	}
	return nil
}

func (f *faults) serve(w http.ResponseWriter, r *http.Request) {
	how := r.FormValue("how")
	switch how {
	case failError, failPanic:
		select {
		case f.fail <- how:
		default: // it fails already
		}
	case failRestart, failLose:
		worker := map[string]chan struct{}{failRestart: f.restart, failLose: f.lose}[how]
		select {
		case worker <- struct{}{}:
		case <-r.Context().Done(): // it has failed already
			return
		}
	case failStuckUnit:
		f.stuckUnit.Store(true)
	case failStuckHook:
		f.stuckHook.Store(true)
	case failUnready:
		f.unready.Store(!f.unready.Load())
	default:
		http.Error(w, fmt.Sprintf("how is %q, want one of %s", how, strings.Join(slices.Sorted(slices.Values(failures)), ", ")), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}
