package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
	"golang.org/x/sync/errgroup"
)

// unit is one worker of an App, with its result and the effect of its end.
type unit struct {
	kind, name string // a kind of kindUnit …
	worker.Worker

	launched atomic.Bool // Start was called
	over     fsm.Signal  // the unit has ended, or was abandoned

	// For a worker that is not a function.
	starting call.Call       // its Start
	answers  call.Answers    // of its methods
	doneCall call.Call       // the call of its Done
	done     <-chan struct{} // what doneCall returned; nil when it panicked

	mu       sync.Mutex // guards the fields below
	began    time.Time
	end      time.Time
	cause    error // why it ended, without the unit's name; nil for no error
	namedErr error // the same with the unit's name, for the result of Run
}

// isFunction reports whether the unit is a function with a context, run once or
// repeatedly: its Start returns at once, and the end of its context stops it.
func (u *unit) isFunction() bool {
	switch u.Worker.(type) {
	case *worker.Func, *worker.Restarter:
		return true
	}
	return false
}

// askUnit calls one of the worker's methods. It waits for [call.AnswerIn] at most, but for
// a function, which answers at once. A panic is an error.
func askUnit[T any](u *unit, method string, fn func() T) (T, error) {
	if u.isFunction() {
		return fn(), nil
	}
	return call.Ask(&u.answers, u.name+": "+method, fn)
}

// statusMethod returns the method that answers with the worker's status, for decisions: its
// Status, which does not look at children, or else its State.
func (u *unit) statusMethod() (name string, fn func() worker.Status) {
	if w, ok := u.Worker.(interface{ Status() worker.Status }); ok {
		return "Status", w.Status
	}
	return "State", func() worker.Status { return u.State().Status }
}

// endStatus returns the status of a worker that has ended. A worker that does not answer within
// [call.AnswerIn] has failed, with the error.
func (u *unit) endStatus() (worker.Status, error) {
	method, ask := u.statusMethod()
	if u.isFunction() {
		return ask(), nil
	}
	var status worker.Status // must not be read before the call has ended
	asked := call.Start(u.name+": "+method, func() error { status = ask(); return nil })
	if err := asked.Wait(call.Now(), call.AnswerIn); err != nil {
		return worker.StatusFailed, err
	}
	return status, nil
}

// shown returns the worker's State for display, with the kind "job" for a job. For a worker
// that does not answer it shows StatusRunning.
func (u *unit) shown() worker.State {
	s, err := askUnit(u, "State", u.State)
	switch {
	case call.Is(err, call.ErrNoAnswer) && !u.over.HasSignaled():
		return worker.State{Name: u.name, Status: worker.StatusRunning, Error: err.Error()}
	case err != nil:
		return worker.State{Name: u.name, Status: worker.StatusFailed, Error: err.Error()}
	}
	if u.kind == kindJob {
		s.Kind = kindJob
	}
	return s
}

// awaitDone returns the worker's Done channel, or the error when Done panics. When Done
// does not return, awaitDone waits until the unit is abandoned and returns nil.
func (u *unit) awaitDone() (<-chan struct{}, error) {
	if u.isFunction() {
		return u.Done(), nil
	}
	u.doneCall.Start(context.Background(), "call", u.name+": Done", func() error { u.done = u.Done(); return nil }, nil)
	select {
	case <-u.doneCall.Done():
		if _, err := u.doneCall.Ended(); err != nil {
			return nil, err
		}
		return u.done, nil
	case <-u.over.Signaled():
		return nil, nil
	}
}

// checkEnded returns nil when a worker whose Stop has returned has also ended, and
// otherwise an error. It waits for a Done that has not returned until ctx ends.
func (u *unit) checkEnded(ctx context.Context) error {
	var done <-chan struct{}
	if u.isFunction() {
		done = u.Done()
	} else {
		select {
		case <-u.doneCall.Done():
		case <-ctx.Done():
		}
		switch ended, panicked := u.doneCall.Ended(); {
		case !ended:
			return errors.New("its Stop has returned, and its Done has not")
		case panicked != nil:
			return nil //nolint:nilerr // the unit has ended with that
		}
		done = u.done
	}
	select {
	case <-done:
		return nil
	default:
		return errors.New("its Stop has returned, and it has not ended")
	}
}

// stopTime returns how long the worker's Stop may take by times of its own, 0 for a worker
// that has none.
func (u *unit) stopTime() time.Duration {
	w, ok := u.Worker.(interface{ StopTime() time.Duration })
	if !ok {
		return 0
	}
	d, _ := askUnit(u, "StopTime", w.StopTime)
	return d
}

// lastErr returns the worker's Err, or a substitute when a worker that failed has none.
func (u *unit) lastErr() error {
	out, err := askUnit(u, "Err", u.Err)
	if err != nil {
		return err
	}
	if out != nil {
		return out
	}
	if s, err := askUnit(u, "State", u.State); err == nil && s.Error != "" {
		return errors.New(s.Error)
	}
	return errors.New("it failed and gave no reason")
}

// holdRestarts tells a worker that restarts others, such as a supervisor, to restart none
// any more.
func (u *unit) holdRestarts() {
	r, ok := u.Worker.(interface{ HoldRestarts() })
	switch {
	case !ok:
	case u.isFunction():
		r.HoldRestarts() // a worker of this module: it returns at once
	default:
		call.Go(u.name+": HoldRestarts", func() error { r.HoldRestarts(); return nil }, func(error) {})
	}
}

// finish records the end of the unit, once, and returns its error with its name.
func (u *unit) finish(cause error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.end.IsZero() {
		u.end, u.cause = time.Now(), cause
		if cause != nil {
			u.namedErr = call.About("unit", u.name, cause)
		}
		u.over.Signal()
	}
	return u.namedErr
}

// failure returns what the unit's end adds to the result of Run.
func (u *unit) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.namedErr
}

func (u *unit) outcome() Outcome {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.began.IsZero():
		return Outcome{Name: u.name, Result: ResultSkipped}
	case u.end.IsZero():
		return Outcome{Name: u.name, Result: ResultRunning, Took: time.Since(u.began)}
	}
	out := outcome(u.name, u.began, u.cause)
	out.Took = u.end.Sub(u.began)
	return out
}

// launch starts one unit. When Start hangs, launch returns as soon as a stop is
// requested, and the teardown stops the unit like all others.
func (a *App) launch(u *unit, group *errgroup.Group) error {
	u.mu.Lock()
	u.began = time.Now()
	u.mu.Unlock()
	u.launched.Store(true)
	if u.isFunction() {
		if err := u.Start(a.unitsCtx); err != nil { // a worker of this module: it returns at once
			return u.finish(err)
		}
		if w, ok := u.Worker.(interface{ OnEnd(func()) }); ok {
			w.OnEnd(func() { a.parts.ended.Post(u) })
		}
		return nil
	}
	a.setWaiting("start of unit " + u.name)
	u.starting.Start(a.unitsCtx, worker.KindWorker, u.name, func() error { return u.Start(a.unitsCtx) }, func(err error) {
		if err != nil {
			_ = u.finish(err) // in Start's goroutine, because Start may return during a stop or later
		}
	})
	select {
	case <-u.starting.Done():
		if _, err := u.starting.Ended(); err != nil {
			return u.failure()
		}
	case <-a.stop.requested.Signaled():
	}
	group.Go(func() error {
		a.watch(u)
		return nil
	})
	return nil
}

// awaitStarted waits until the unit has met its start condition, has ended, or a stop
// is requested. When the unit has ended in a way that stops the App, it also waits for that
// request, which watch is about to make.
func (a *App) awaitStarted(u *unit) {
	if u.isFunction() {
		if s := a.startStatus(u); s.Begun() && !s.Terminal() {
			return // most units: the termination log needs no line about it
		}
	}
	waiting := "unit " + u.name + " to start"
	a.setWaiting(waiting) // first, because a foreign worker may not answer
	s := a.startStatus(u)
	if !s.Begun() {
		a.health.owner.SetGate(StateUnknown, "starting: waiting for "+waiting)
		a.awaitBegun(u)
		s = a.startStatus(u)
	}
	// A failure stops the App, unless the unit's supervision has given it up. So does the end of an
	// Actor, and of the last job.
	failed := s == worker.StatusFailed || s == worker.StatusKilled
	stopsApp := failed && !u.hasGivenUp() || s.Terminal() && a.endsWith(u)
	if stopsApp {
		<-a.stop.requested.Signaled()
	}
}

// startStatus returns the status of a unit that starts. A worker that does not answer has not
// started. A panic in its method fails the unit.
func (a *App) startStatus(u *unit) worker.Status {
	method, ask := u.statusMethod()
	status, err := askUnit(u, method, ask)
	switch {
	case call.Is(err, call.ErrNoAnswer):
		return worker.StatusStarting
	case err != nil:
		a.unitFailed(u, worker.StatusFailed, err)
		return worker.StatusFailed
	}
	return status
}

// awaitBegun waits for the start condition: by the worker's Await, or else by looking at its
// status every 50 ms. It does not wait for an Await that ignores the end of its context. A
// panic of Await fails the start.
func (a *App) awaitBegun(u *unit) {
	ctx, cancel := a.untilStop()
	defer cancel()
	w, ok := u.Worker.(interface {
		Await(context.Context, func(worker.Status) bool) (worker.Status, error)
	})
	if !ok {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for !a.startStatus(u).Begun() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		return
	}
	await := func() error {
		_, err := w.Await(ctx, worker.Status.Begun)
		return err
	}
	if u.isFunction() {
		_ = await() // an error says that a stop was requested
		return
	}
	waiting := call.Start(u.name+": Await", await)
	select {
	case <-waiting.Done():
	case <-ctx.Done():
		return
	}
	_, err := waiting.Ended()
	if _, panicked := call.As[*PanicError](err); panicked {
		a.fail(call.About("unit", u.name, err))
		<-a.stop.requested.Signaled() // another request may have been first
	}
}

// watch waits for the end of a unit and acts on it.
func (a *App) watch(u *unit) {
	done, err := u.awaitDone()
	if err == nil {
		select {
		case <-done:
		case <-u.over.Signaled(): // the unit was abandoned
			return
		}
	}
	if !u.isFunction() {
		select {
		case <-u.starting.Done():
		case <-time.After(settle): // a Start that fails during a stop is about to return
		}
	}
	status, statusErr := u.endStatus()
	failed := err != nil || status == worker.StatusFailed || status == worker.StatusKilled
	if !failed {
		_ = u.finish(nil)
		a.log.LogAttrs(a.unitsCtx, slog.LevelInfo, "unit ended", slog.String("unit", u.name), slog.String("status", string(status)))
		if a.endsWith(u) {
			how := map[string]string{kindActor: " returned", kindJob: " is done"}
			a.requestStop(stopRequest{reason: u.kind + " " + u.name + how[u.kind], byUnit: true})
		}
		return
	}
	if err == nil {
		err = statusErr
	}
	if err == nil {
		err = u.lastErr()
	}
	a.unitFailed(u, status, err)
}

// unitFailed ends the unit with err and asks for the stop, unless the App goes on.
func (a *App) unitFailed(u *unit, status worker.Status, err error) {
	named := u.finish(err)
	if _, isAbandoned := call.As[*AbandonedError](err); isAbandoned {
		a.saveBox("unit " + u.name + " was abandoned")
	}
	a.log.Error("unit failed", call.Logged(err, "unit", u.name, "status", string(status), "error", call.Unnamed(u.name, err))...)
	if !u.hasGivenUp() {
		a.requestStop(stopRequest{reason: named.Error(), cause: named, err: named, byUnit: true, logged: true})
	}
}

// stopUnits cancels the units' context and waits for the units until end. It abandons
// units that have not returned then.
func (a *App) stopUnits(base context.Context, end time.Time) {
	a.stop.unitsCancelled.Store(true) // from now on waitingFor names the units that still run
	a.setWaiting("")
	cause := a.stopCause()
	if cause == nil {
		cause = ErrStopRequested
	}
	for _, u := range a.parts.units {
		if f, ok := u.Worker.(interface{ RequestStop(error) bool }); ok && u.launched.Load() && u.isFunction() {
			f.RequestStop(cause) // the context does the same, in a goroutine for each unit
		}
	}
	a.cancelUnits(cause)
	ctx, cancel := context.WithDeadline(base, end)
	defer cancel()
	var wg sync.WaitGroup
	stopInBackground := func(u *unit) {
		wg.Go(func() {
			a.stopUnit(ctx, u)
			a.terminationLog() // it names the units that still run
		})
	}
	for _, u := range a.parts.units {
		if u.launched.Load() && !u.isFunction() {
			stopInBackground(u)
		}
	}
	// The end of the context stops functions. The App calls Stop only for functions
	// that ignored it, each in a goroutine of its own. While one is stuck and the others
	// end, the termination log is rewritten, so that it names the stuck one.
	look := time.NewTicker(settle)
	defer look.Stop()
	a.terminationLog()
	for _, u := range a.parts.units {
		if u.launched.Load() && u.isFunction() && !a.awaitFunction(ctx, u, look.C) {
			stopInBackground(u)
		}
	}
	wg.Wait()
}

// awaitFunction waits for the end of a function until ctx ends, and reports whether it has ended.
// At each look it rewrites the termination log.
func (a *App) awaitFunction(ctx context.Context, u *unit, look <-chan time.Time) (ended bool) {
	for {
		if u.over.HasSignaled() {
			return true
		}
		select {
		case <-u.over.Signaled():
			return true
		case <-ctx.Done():
			return false
		case <-look:
			a.terminationLog()
		}
	}
}

// stopUnit stops a unit and waits for its end. It abandons a unit that does not end.
func (a *App) stopUnit(ctx context.Context, u *unit) {
	// A worker bounds its own Stop. The App waits three times as long for a worker that
	// breaks its contract.
	out := callPart(ctx, "call", u.name+": Stop", ctx.Done(), 3*settle, func() error { return u.Stop(ctx) })
	if !u.over.HasSignaled() { // it is when its Start has failed
		if err := u.checkEnded(ctx); err != nil {
			if out.err != nil {
				err = out.err
			}
			a.saveBox("unit " + u.name + " was abandoned")
			a.log.Error("unit did not stop", "unit", u.name, "error", call.Unnamed(u.name, err))
			_ = u.finish(err)
			return
		}
		<-u.over.Signaled() // watch will see it: each of its calls has a bound
	}
	if out.err != nil && !call.Is(u.failure(), out.err) {
		a.log.Error("unit failed to stop", call.Logged(out.err, "unit", u.name, "error", call.Unnamed(u.name, out.err))...)
		a.stop.add(call.About("unit", u.name, out.err))
	}
}
