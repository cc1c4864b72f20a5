package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/cgroup"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
	"golang.org/x/sync/errgroup"
)

// ErrStopRequested is the context.Cause that units see when the App stops and
// nothing is wrong: App.Stop(nil) was called, or an Actor returned nil.
var ErrStopRequested = worker.ErrStopRequested

// Stop asks the App to stop and returns at once: the drain begins. A nil cause is
// a clean stop; any other cause is what Run returns first. Only the first request
// to stop counts; the cause of a later one is kept and joined. Before Run, Stop
// makes Run stop as soon as it begins; after Run it does nothing.
func (a *App) Stop(cause error) {
	reason := "App.Stop was called"
	cause = call.Freeze("the cause given to App.Stop", cause)
	if cause != nil {
		reason += ": " + cause.Error()
	}
	if !a.requestStop(stopRequest{reason: reason, cause: cause, err: cause}) {
		a.stop.add(cause)
	}
}

// StopBecause is Stop(nil) with a reason: a clean stop that an operator asked
// for. Run returns nil, and units see [ErrStopRequested]. The reason stands in
// the log, in [Report.Reason] and in the termination log, at most 256 bytes of
// it and on one line; an empty one says what Stop(nil) says. When the App is
// stopping already it does nothing.
func (a *App) StopBecause(reason string) {
	if reason = text.OneLine(text.Clip(reason, maxReason)); reason == "" {
		a.Stop(nil)
		return
	}
	a.requestStop(stopRequest{reason: reason})
}

// Run runs the App: it starts what was registered, waits for the first reason to
// stop, and takes everything down in order. Reasons are a signal (SIGINT,
// SIGTERM), the end of parent, a unit that fails, an Actor that returns, and
// [App.Stop]; all lead to the same teardown. A reason that comes during the start
// takes down what has started.
//
// Run returns nil when the App was asked to stop and everything ended well.
// Otherwise the error's first part is the primary cause, and every other error is
// joined behind it; [ExitCode] makes an exit status of it. Run returns when every
// unit, drainer and hook has returned or was abandoned; the error names the
// abandoned ones. A second Run returns [ErrAlreadyRun] at once.
//
// When NOTIFY_SOCKET is set (systemd, Type=notify or notify-reload) the App tells
// the service manager:
//
//   - READY=1 on entering the phase running, which is when everything has started.
//     Readiness does not count, because it may wait for services that systemd
//     starts after this one.
//   - STOPPING=1 at T0, with EXTEND_TIMEOUT_USEC for all of the stop, so that
//     TimeoutStopSec does not cut the drain.
//   - RELOADING=1 with MONOTONIC_USEC around a reload.
//   - STATUS= with each phase.
//   - WATCHDOG=1 at half of WATCHDOG_USEC while liveness passes, when WATCHDOG_PID
//     is this process or unset.
//
// Run removes the variables from the environment, so that no child speaks for its
// parent. Of two Apps in a process the first to run takes the socket.
//
// Run returns refused registrations and starts nothing. When parent has ended
// already it starts nothing either, and returns nil once the shutdown hooks have
// run, because main opened what they close before Run.
func (a *App) Run(parent context.Context) error {
	if !a.parts.seal() {
		return ErrAlreadyRun
	}
	if parent == nil {
		parent = context.Background()
		a.parts.refused = append(a.parts.refused, errors.New("Run: the parent context is nil, want context.Background() when there is none"))
	}
	a.words.Find(a.cfg.TerminationLog, a.cfg.Name)
	a.queue.Start()
	// The handlers are in place before Run calls any user code, so that no signal
	// is lost, and stay until the log is written, because its reader may be gone.
	unwatch := a.watchSignals()
	defer func() {
		a.queue.Close(time.Second)
		unwatch()
	}()
	defer a.disarmWatchdog()
	if a.stop.arm() {
		a.beginStop()
	}
	if err := a.refusals(); err != nil {
		a.log.Error("nothing was started", "error", err)
		a.requestStop(stopRequest{reason: "refused registrations", cause: err, err: err})
		<-a.stop.requested.Signaled() // another request may have been first
		// main opened most of what the hooks close before Run.
		if hooksErr := a.hooks.runUntil(context.WithoutCancel(parent), time.Now().Add(a.budget.grace)); hooksErr != nil {
			err = errors.Join(err, hooksErr)
		}
		return a.finish(err)
	}
	goodbye := a.notifyServiceManager()
	defer func() {
		a.disarmWatchdog() // the remaining steps are bounded
		goodbye()
	}()

	base := context.WithValue(context.WithoutCancel(parent), appKey{}, a)
	a.unitsCtx, a.cancelUnits = context.WithCancelCause(base)
	defer a.cancelUnits(nil)
	defer a.reloads.under(a.unitsCtx)()
	parentEnded := func() {
		cause := call.Take("the parent context's cause", context.Cause(parent))
		req := stopRequest{reason: "the parent context ended: " + cause.Error(), cause: cause}
		errors.As(cause, &req.signal) // when a SignalContext saw the signal first
		a.requestStop(req)
	}
	if parent.Err() != nil {
		parentEnded()
	}
	defer context.AfterFunc(parent, parentEnded)()

	var group errgroup.Group
	hurried := true
	if a.start(&group) {
		hurried = a.run(base)
	}
	return a.teardown(base, &group, hurried)
}

// refusals returns everything that was wrong with the registrations.
func (a *App) refusals() error {
	errs := append([]error(nil), a.parts.refused...)
	errs = append(errs, a.health.reg.Err())
	slice, err := a.budget.minSliceFor(a.hooks.len())
	a.hooks.minSlice = slice
	return errors.Join(append(errs, err)...)
}

// start brings everything up, in order: the health server, so that the kubelet
// gets an answer from the beginning; the listeners, so that an address in use
// shows before any work begins; the units. It reports false when a step failed
// or a stop was asked for meanwhile.
func (a *App) start(group *errgroup.Group) bool {
	if a.isStopping() {
		a.enter(PhaseStarting, nil)
		return false
	}
	a.enter(PhaseStarting, nil)
	cgroup.LimitMemory(a.log, os.DirFS("/"), a.cfg.MemoryLimitRatio)
	a.health.owner.SetGate(StateUnknown, "starting")
	err := a.startHealth()
	for i := 0; err == nil && i < len(a.parts.servers) && !a.isStopping(); i++ {
		err = a.bind(a.parts.servers[i])
	}
	for i := 0; err == nil && i < len(a.parts.units) && !a.isStopping(); i++ {
		err = a.launch(a.parts.units[i], group)
	}
	for i := 0; err == nil && i < len(a.parts.units) && !a.isStopping(); i++ {
		a.awaitStarted(a.parts.units[i])
	}
	if err != nil {
		err = fmt.Errorf("start: %w", err)
		if a.isStopping() && errors.Is(err, context.Canceled) {
			return false // the stop cancels DNS lookups
		}
		a.fail(err)
		<-a.stop.requested.Signaled() // another request may have been first
	}
	return !a.isStopping()
}

// run is the time in which the App serves, and the drain after it.
func (a *App) run(base context.Context) (hurried bool) {
	a.nowDoing("the readiness probes")
	a.health.owner.SetGate(StateUp, "")
	a.lookOnce()
	a.nowDoing("")
	a.enter(PhaseRunning, nil)
	a.log.Info("running", "units", len(a.parts.units))
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		a.serveReloads()
	}()
	<-a.stop.requested.Signaled()

	a.nowDoing("restarts to be held")
	for _, u := range a.parts.units {
		u.holdRestarts()
	}
	a.nowDoing("")
	a.enter(PhaseDraining, a.stopCause())
	hurried = a.drain(base)
	a.endReloads()
	<-reloads
	return hurried
}

func (a *App) isStopping() bool { return a.stop.requested.HasSignaled() }

// untilStop returns a context that ends when a stop is asked for.
func (a *App) untilStop() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a.unitsCtx)
	go func() {
		select {
		case <-a.stop.requested.Signaled():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// requestStop asks for the stop. Only the first request counts; it reports false
// for any other. It never waits.
func (a *App) requestStop(req stopRequest) (first bool) {
	if req.err == nil && a.lastReached() == PhaseStarting {
		// A start that hangs is the most frequent reason for such a request.
		if on := a.blocking(); on != "" {
			req.reason += " (while starting, waiting for " + on + ")"
		}
	}
	first, begin := a.stop.ask(req)
	if begin {
		a.beginStop()
	}
	return first
}

// fail stops the App with err. When it is stopping already, err is joined.
func (a *App) fail(err error) {
	if !a.requestStop(stopRequest{reason: err.Error(), cause: err, err: err}) {
		a.stop.add(err)
	}
}

// beginStop is T0. It runs once, and without a lock.
func (a *App) beginStop() {
	a.armWatchdog()
	a.health.owner.SetDraining(a.cfg.DrainReadiness == ReadinessDown)
	a.signals.guardPipe()
	a.notifier.Load().Stopping(a.budget.total)
	a.stop.requested.Signal() // before anything that a server could hold up
	a.stop.draining.Signal()
	for _, s := range a.parts.servers {
		s.BeginDrain(a.stop.began(), a.budget.window)
	}
	a.log.Info("stopping", "reason", a.stop.why().reason)
}

// stopCause returns what began the stop: nil before it, and when nothing is
// wrong.
func (a *App) stopCause() error { return a.stop.why().cause }

// teardown takes down what has started. It has ShutdownGrace for it, from the
// window's end, and keeps a slice of that for each of its steps.
func (a *App) teardown(base context.Context, group *errgroup.Group, hurried bool) error {
	end := a.stop.endWindow("").Add(a.budget.grace)
	hooksBegin := end.Add(-a.budget.hookSlice)
	unitsBegin := hooksBegin.Add(-a.budget.unitSlice)

	if hurried && a.Phase() == PhaseStarting {
		// No client was ever invited: no request has to finish.
		a.enter(PhaseStopping, a.stopCause())
		a.retireServers(base, unitsBegin, true)
	} else {
		a.retireServers(base, unitsBegin, hurried)
		a.enter(PhaseStopping, a.stopCause())
	}
	a.health.owner.SetDraining(true) // also with DrainReadiness serving, and without a server
	a.stopUnits(base, hooksBegin)
	_ = group.Wait() // each unit keeps its own error

	a.nowDoing("shutdown hooks")
	hooksErr := a.hooks.runUntil(base, end)
	a.nowDoing("the health server")
	a.closeHealth(end)
	a.nowDoing("")
	return a.finish(a.collect(hooksErr))
}

// collect joins everything that went wrong, the primary cause first.
func (a *App) collect(hooksErr error) error {
	s := &a.stop
	s.mu.Lock()
	defer s.mu.Unlock()
	primary := s.request.err
	if a.cfg.ExitOnSignal && s.request.signal != nil {
		primary = s.request.signal
	}
	errs := []error{primary}
	for _, u := range a.parts.units {
		if err := u.failure(); err != nil && !errors.Is(primary, err) {
			errs = append(errs, err)
		}
	}
	for _, out := range s.drained {
		errs = append(errs, out.err)
	}
	for _, err := range s.further {
		if !errors.Is(primary, err) { // the same failure may be told twice
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, hooksErr)...)
}

// finish ends the life with the result of Run.
func (a *App) finish(err error) error {
	a.stop.mu.Lock()
	a.stop.result = err
	a.stop.mu.Unlock()
	p := PhaseStopped
	if err != nil {
		p = PhaseFailed
	}
	a.enter(p, err)
	if !a.stop.began().IsZero() {
		a.logReport()
	}
	return err
}
