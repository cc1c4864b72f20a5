package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/safe"
	"github.com/pleme-io/lifecycle-go/worker"
	"golang.org/x/sync/errgroup"
)

// ErrStopRequested is the context.Cause that units see when the App stops and
// nothing is wrong: App.Stop(nil) was called, or an Actor returned nil.
var ErrStopRequested = worker.ErrStopRequested

// stopRequest says who wants the App to stop, and why.
type stopRequest struct {
	reason string       // for people
	cause  error        // what units see as their context's cause; nil when nothing is wrong
	err    error        // the primary part of what Run returns; nil for a clean stop
	signal *SignalError // when it was one
}

// Run runs the App: it starts what was registered, waits for the first reason to
// stop, and takes everything down in order. Reasons are a signal (SIGINT,
// SIGTERM), parent being cancelled, a unit that fails, an Actor that returns,
// and [App.Stop]; all lead to the same teardown. A reason that comes while it
// starts takes down what has started.
//
// It returns nil when the App was asked to stop and everything ended well.
// Otherwise the error's first part is the primary cause, joined with everything
// else that went wrong; [ExitCode] makes an exit status of it. It returns when
// every unit, drainer and hook has returned or was abandoned, with its name in
// the error. A second Run returns [ErrAlreadyRun] at once.
//
// When NOTIFY_SOCKET is set (systemd, Type=notify or notify-reload) the service
// manager is told: READY=1 when the phase running is entered, which is when
// everything has started; readiness does not count, because it may wait for
// services that systemd starts after this one. STOPPING=1 at T0, with
// EXTEND_TIMEOUT_USEC for all of the stop, so that TimeoutStopSec does not cut
// the drain. RELOADING=1 with MONOTONIC_USEC around a reload. STATUS= with each
// phase. WATCHDOG=1 at half of WATCHDOG_USEC while liveness passes, when
// WATCHDOG_PID is this process or unset. The variables are removed from the
// environment, so that no child speaks for its parent; of two Apps in a process
// the first that runs takes the socket.
//
// Registrations that were refused are returned, and nothing starts. With a
// parent that is cancelled already nothing starts either, and Run returns nil
// once the shutdown hooks have run: what they close was opened before.
func (a *App) Run(parent context.Context) error {
	if !a.seal() {
		return ErrAlreadyRun
	}
	if parent == nil {
		parent = context.Background()
		a.errs = append(a.errs, errors.New("Run: the parent context is nil, want context.Background() when there is none"))
	}
	a.findLog()
	a.queue.Start()
	// Before any code of the user's, so that no signal from here on is lost, and
	// until the log is written, because its reader may be gone.
	unwatch := a.watchSignals()
	defer func() {
		a.queue.Close(time.Second)
		unwatch()
	}()
	defer a.disarmWatchdog()
	if a.early != nil {
		a.stopNow(a.early)
	}
	if err := a.refusals(); err != nil {
		a.log.Error("nothing was started", "error", err)
		a.requestStop(stopRequest{reason: "refused registrations", cause: err, err: err})
		<-a.stopping // also when somebody else was first
		// What the hooks close was mostly opened before.
		hooksErr := a.hooks.runUntil(context.WithoutCancel(parent), time.Now().Add(a.cfg.ShutdownGrace))
		if hooksErr != nil {
			err = errors.Join(err, hooksErr)
		}
		return a.finish(err)
	}
	goodbye := a.notifyServiceManager()
	defer func() {
		a.disarmWatchdog() // all that is left is bounded, and has ended well or not
		goodbye()
	}()

	base := context.WithValue(context.WithoutCancel(parent), appKey{}, a)
	a.unitsCtx, a.cancelUnits = context.WithCancelCause(base)
	defer a.cancelUnits(nil)
	a.reloadCtx, a.cancelReload = context.WithCancel(a.unitsCtx)
	defer a.cancelReload()
	ended := func() {
		cause := readable("the parent context's cause", context.Cause(parent))
		req := stopRequest{reason: "the parent context ended: " + cause.Error(), cause: cause}
		errors.As(cause, &req.signal) // a SignalContext saw the signal before we did: it is that signal
		a.requestStop(req)
	}
	if parent.Err() != nil {
		ended()
	}
	defer context.AfterFunc(parent, ended)()

	var group errgroup.Group
	hurried := true
	if a.start(&group) {
		hurried = a.run(base)
	}
	return a.teardown(base, &group, hurried)
}

// seal ends registration. It reports false when it was ended before.
func (a *App) seal() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed {
		return false
	}
	a.sealed = true
	return true
}

// readable returns err, or what says that it cannot be read when its own methods
// panic: a nil pointer in an error is the common case.
func readable(whose string, err error) error {
	return safe.Do(whose, func() error { return err })
}

// refusals returns everything that was wrong with the registrations.
func (a *App) refusals() error {
	errs := append([]error(nil), a.errs...)
	errs = append(errs, a.reg.errs())
	slice, err := minSlice(a.cfg, a.hooks.len())
	a.hooks.minSlice = slice
	return errors.Join(append(errs, err)...)
}

// minSlice is what each of so many hooks is sure to get. When they cannot all
// have it the error says so, and the slice is what they can: they run all the
// same.
func minSlice(cfg Config, hooks int) (time.Duration, error) {
	slice := cfg.MinSlice
	if hooks == 0 {
		return on(slice), nil
	}
	share := on(cfg.HookSlice) / time.Duration(hooks)
	switch {
	case slice == 0:
		return min(time.Second, share), nil
	case slice > share:
		return share, &ConfigError{Fields: []string{"MinSlice", "HookSlice"},
			Problem: fmt.Sprintf("MinSlice is %v, which %d shutdown hooks do not get out of HookSlice, which is %v", slice, hooks, on(cfg.HookSlice))}
	}
	return on(slice), nil
}

// run is the time in which the App does what it is for, and the drain after it.
func (a *App) run(base context.Context) (hurried bool) {
	a.nowDoing("the readiness probes")
	a.reg.setGate(StateUp, "")
	a.lookOnce()
	a.nowDoing("")
	a.enter(PhaseRunning, nil)
	a.log.Info("running", "units", len(a.units))
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		a.serveReloads()
	}()
	<-a.stopping

	a.nowDoing("restarts to be held")
	for _, u := range a.units {
		u.holdRestarts()
	}
	a.nowDoing("")
	a.enter(PhaseDraining, a.request.cause)
	hurried = a.drain(base)
	a.endReloads()
	<-reloads
	return hurried
}

// requestStop is T0. Only the first request counts; it reports false for any
// other. It never waits, so that whoever has a reason to stop may call it.
func (a *App) requestStop(req stopRequest) (first bool) {
	a.mu.Lock()
	switch {
	case a.request != nil || a.early != nil:
		a.mu.Unlock()
		return false
	case !a.sealed:
		a.early = &req // and Run begins with it
		a.mu.Unlock()
		return true
	}
	if on := a.blocking(); req.err == nil && on != "" && a.lastReached() == PhaseStarting {
		// A start that does not get there is mostly why somebody asks.
		req.reason += " (while starting, waiting for " + on + ")"
	}
	a.request, a.t0 = &req, time.Now()
	a.mu.Unlock()
	a.begin(req)
	return true
}

// stopNow makes the request that came before Run the first.
func (a *App) stopNow(early *stopRequest) {
	a.mu.Lock()
	a.request, a.t0 = early, time.Now()
	a.mu.Unlock()
	a.begin(*early)
}

// begin tells everybody that the stop has begun. It is called once, and without
// a lock.
func (a *App) begin(req stopRequest) {
	a.armWatchdog()
	a.reg.setDraining(a.cfg.DrainReadiness == ReadinessDown)
	a.guardPipe()
	a.notifier.Load().Stopping(a.cfg.total())
	close(a.stopping) // before anything that a server could hold up
	close(a.draining)
	for _, s := range a.servers {
		s.BeginDrain(a.t0, on(a.cfg.DrainInterval))
	}
	a.log.Info("stopping", "reason", req.reason)
}

// stopCause returns what began the stop: nil before it, and when nothing is
// wrong.
func (a *App) stopCause() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.request == nil {
		return nil
	}
	return a.request.cause
}

// teardown takes down whatever has started. It has ShutdownGrace for it, from
// the window's end, and keeps a slice of that for each of its steps.
func (a *App) teardown(base context.Context, group *errgroup.Group, hurried bool) error {
	if a.windowEnd.IsZero() {
		a.windowEnd = a.t0
		close(a.windowOver) // a further signal finds nothing to skip
	}
	end := a.windowEnd.Add(a.cfg.ShutdownGrace)
	hooksBegin := end.Add(-on(a.cfg.HookSlice))
	unitsBegin := hooksBegin.Add(-on(a.cfg.UnitSlice))

	if hurried && a.Phase() == PhaseStarting {
		// Nothing was ever offered: there is nobody to let finish.
		a.enter(PhaseStopping, a.request.cause)
		a.retireServers(base, unitsBegin, true)
	} else {
		a.retireServers(base, unitsBegin, hurried)
		a.enter(PhaseStopping, a.request.cause)
	}
	a.reg.setDraining(true) // also with DrainReadiness serving, and without a server
	a.stopUnits(base, hooksBegin)
	_ = group.Wait() // each unit's error is with the unit

	a.nowDoing("shutdown hooks")
	hooksErr := a.hooks.runUntil(base, end)
	a.nowDoing("the health server")
	a.closeHealth(end)
	a.nowDoing("")
	return a.finish(a.collect(hooksErr))
}

// collect joins everything that went wrong, the primary cause first.
func (a *App) collect(hooksErr error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	primary := a.request.err
	if a.cfg.ExitOnSignal && a.request.signal != nil {
		primary = a.request.signal
	}
	errs := []error{primary}
	for _, u := range a.units {
		u.mu.Lock()
		err := u.err
		u.mu.Unlock()
		if err != nil && !errors.Is(primary, err) {
			errs = append(errs, err)
		}
	}
	for _, out := range a.drained {
		errs = append(errs, out.err)
	}
	for _, err := range a.further {
		if !errors.Is(primary, err) { // some say it twice
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, hooksErr)...)
}

// finish is the end.
func (a *App) finish(err error) error {
	a.mu.Lock()
	a.result = err
	a.mu.Unlock()
	p := PhaseStopped
	if err != nil {
		p = PhaseFailed
	}
	a.enter(p, err)
	if !a.t0.IsZero() {
		a.logReport()
	}
	return err
}
