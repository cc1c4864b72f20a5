package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pleme-io/lifecycle-go"
)

// faults breaks the service on purpose, so that a test can watch the
// effect. It is served only with -allow-faults.
type faults struct {
	fail      chan string
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
)

var failures = []string{failError, failPanic, failStuckUnit, failStuckHook, failUnready}

func newFaults() *faults { return &faults{fail: make(chan string, 1)} }

// register adds the unit, the hook and the probe that can be broken.
func (f *faults) register(app *lifecycle.App) {
	app.Go("faulty", f.unit).
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
