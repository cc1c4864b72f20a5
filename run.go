package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/cgroup"
	"github.com/pleme-io/lifecycle-go/internal/inbox"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/internal/watch"
	"github.com/pleme-io/lifecycle-go/worker"
	"golang.org/x/sync/errgroup"
)

// ErrStopRequested is the context.Cause that units see in a clean stop: App.Stop(nil)
// was called, or an Actor returned nil.
var ErrStopRequested = worker.ErrStopRequested

// Stop asks the App to stop and returns at once: the drain begins. With a nil cause
// the stop is clean. Any other cause becomes the first part of Run's error. Only the
// first request to stop counts; Run joins the causes of later ones to its error.
// Before Run, Stop makes Run stop as soon as it begins; after Run it does nothing.
func (a *App) Stop(cause error) {
	reason := "App.Stop was called"
	cause = call.Freeze("the cause given to App.Stop", cause)
	if cause != nil {
		reason += ": " + cause.Error()
	}
	if !a.requestStop(stopRequest{reason: reason, cause: cause, err: cause}) && cause != nil && a.stop.add(cause) {
		a.log.Error("the app is stopping, and one more reason came", "reason", reason)
	}
}

// StopBecause is Stop(nil) with a reason: a clean stop at an operator's request. Run
// returns nil, and units see [ErrStopRequested]. The log, [Report.Reason] and the
// termination log show the reason, on one line and at most 256 bytes of it. An empty
// reason is the same as Stop(nil). When the App is already stopping, StopBecause
// does nothing.
func (a *App) StopBecause(reason string) {
	if reason = text.OneLine(text.Clip(reason, maxReason)); reason == "" {
		a.Stop(nil)
		return
	}
	a.requestStop(stopRequest{reason: reason})
}

// ReExec is [App.StopBecause], and then Run does not return: after a clean stop the
// program runs once more in this process, with the same arguments and environment. It
// is the file of os.Executable, which may be a new release by now. It gets the sockets
// and variables of the service manager, which hears of a reload and not of a stop. Any
// other request to stop undoes ReExec. Run returns the error of a stop that is not
// clean, or of the exec, which works on Unix only. Deferred functions do not run.
func (a *App) ReExec(reason string) {
	a.requestStop(stopRequest{reason: text.OneLine(text.Clip(reason, maxReason)), again: true})
}

// Run runs the App: it starts the registered parts, waits for the first reason to
// stop, and takes everything down in order. Reasons are a signal (SIGINT,
// SIGTERM), the end of parent, a unit that fails, an Actor that returns, and
// [App.Stop]; all lead to the same teardown. When a reason comes during the start,
// Run drains and takes down the parts that have started, without the wait of the window.
//
// Run returns nil after a clean stop. Otherwise the first part of its error is the
// primary cause, and every other error is joined behind it; [ExitCode] turns the
// error into an exit status. Run returns when every unit, drainer and hook has
// returned or was abandoned; the error names the abandoned ones. A second Run returns
// [ErrAlreadyRun] at once.
//
// When NOTIFY_SOCKET is set (systemd, Type=notify or notify-reload) the App tells
// the service manager:
//
//   - READY=1 when the App enters the phase running: everything has started. The App
//     does not wait for readiness, which may need services that systemd starts after
//     this one.
//   - STOPPING=1 at T0, with EXTEND_TIMEOUT_USEC for all of the stop, so that
//     TimeoutStopSec does not cut the drain.
//   - RELOADING=1 with MONOTONIC_USEC around a reload.
//   - STATUS= with each phase.
//   - WATCHDOG=1 at half of WATCHDOG_USEC while liveness passes, when WATCHDOG_PID
//     is this process or unset.
//
// Run removes the variables from the environment, so that no child process sends
// notifications in its parent's name; [App.ReExec] puts them back. Of two Apps in a
// process the first to run takes the socket.
//
// When a registration was refused, Run starts nothing and returns the reasons. When
// parent has already ended, Run starts nothing and returns nil. In both cases it
// runs the shutdown hooks, because main opened the resources that they close.
func (a *App) Run(parent context.Context) (err error) {
	if !a.parts.seal() {
		return ErrAlreadyRun
	}
	again := false
	defer func() { // after everything else
		if again {
			err = a.parts.sockets.Exec(a.notifier.Load().Environ()...)
			signal.Reset(syscall.SIGHUP)
		}
	}()
	if parent == nil {
		parent = context.Background()
		a.parts.refused = append(a.parts.refused, errors.New("Run: the parent context is nil, want context.Background() when there is none"))
	}
	a.last.words.Find(a.cfg.TerminationLog, a.cfg.Name)
	a.queue.Start()
	// The signal handlers are in place before Run calls any user code, so that no
	// signal is lost. They stay until the log is written: if the log's reader has
	// ended, a write would otherwise end the process with SIGPIPE.
	unwatch := a.watchSignals()
	defer func() {
		a.queue.Close(time.Second)
		unwatch(err == nil && a.stop.why().again)
		again = err == nil && a.stop.why().again // its last signal may have undone it
	}()
	defer a.disarmWatchdog()
	if a.stop.arm() {
		a.beginStop()
	}
	if err := a.refusals(); err != nil {
		a.log.Error("nothing was started", "error", err)
		a.requestStop(stopRequest{reason: "refused registrations", cause: err, err: err, told: true})
		<-a.stop.requested.Signaled() // another request may have been first
		<-a.runDrainers(parent)       // all are skipped
		// The hooks run: main opened most of their resources before Run.
		if hooksErr := a.hooks.runUntil(context.WithoutCancel(parent), time.Now().Add(a.budget.Grace)); hooksErr != nil {
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
	a.parts.ended = inbox.New[*unit]()
	group.Go(func() error { a.parts.ended.Each(a.watch); return nil })
	hurried := true
	if a.start(&group) {
		hurried = a.run(base)
	} else if len(a.parts.drainers) > 0 {
		a.holdRestarts()
		a.drain(base)
	}
	return a.teardown(base, &group, hurried)
}

// refusals returns the faults of all registrations, joined.
func (a *App) refusals() error {
	errs := append([]error(nil), a.parts.refused...)
	errs = append(errs, a.health.reg.Err())
	slice, err := minSlice(a.budget, a.hooks.len())
	a.hooks.minSlice = slice
	return errors.Join(append(errs, err)...)
}

// start starts everything in this order: the health server, so that the kubelet
// gets an answer from the beginning; the listeners, so that an address in use is
// found before any work begins; the units. It reports false when a step failed or a
// stop was requested meanwhile.
func (a *App) start(group *errgroup.Group) bool {
	if a.enter(PhaseStarting, nil); a.isStopping() {
		return false
	}
	defer a.watchStart()()
	cgroup.LimitMemory(a.unitsCtx, a.log, os.DirFS("/"), a.cfg.MemoryLimitRatio)
	a.health.owner.SetGate(StateUnknown, "starting")
	err := a.startHealth()
	for i := 0; err == nil && i < len(a.parts.servers) && !a.isStopping(); i++ {
		err = a.bind(a.parts.servers[i])
	}
	for i := 0; err == nil && i < len(a.parts.units) && !a.isStopping(); i++ {
		if err = a.launch(a.parts.units[i], group); err == nil {
			a.parts.started++
		}
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

// slowStart is the time after which the log names the units that have not started.
const slowStart = 15 * time.Second

// watchStart logs for what a slow start waits, after slowStart and whenever the time has
// doubled, and ends it after StartTimeout. The caller calls end when the start is over.
func (a *App) watchStart() (end func()) {
	timeout := a.cfg.StartTimeout
	if timeout == Off {
		timeout = longest
	}
	return watch.Long(a.unitsCtx, slowStart, timeout, func(took time.Duration) {
		a.log.Warn("still starting", "for", took, "waiting_for", a.notStarted())
	}, func() {
		a.fail(fmt.Errorf("start: not done within %v (StartTimeout): waiting for %s: %w", timeout, a.notStarted(), context.DeadlineExceeded))
	})
}

// notStarted names the units that have begun to start and are not done with it, or what
// else the start waits for.
func (a *App) notStarted() string {
	var names []string
	for _, u := range a.parts.units {
		if u.launched.Load() && !u.shown().Status.Begun() {
			names = append(names, "unit "+u.name)
		}
	}
	if names == nil {
		return a.blocking()
	}
	return strings.Join(names, ", ")
}

// run serves until a stop is requested, and then drains.
func (a *App) run(base context.Context) (hurried bool) {
	a.nowDoing("the readiness probes")
	a.health.owner.SetGate(StateUp, "")
	a.lookOnce()
	a.nowDoing("")
	a.enter(PhaseRunning, nil)
	a.log.Info("running", "units", len(a.parts.units))
	if len(a.parts.units) == 0 {
		a.log.Warn("no unit is registered: the app waits for a signal, the end of the parent context or App.Stop")
	}
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		a.serveReloads()
	}()
	<-a.stop.requested.Signaled()

	a.holdRestarts()
	a.enter(PhaseDraining, a.stopCause())
	hurried = a.drain(base)
	a.endReloads()
	<-reloads
	return hurried
}

// holdRestarts tells every unit that has started to restart nothing any more.
func (a *App) holdRestarts() {
	a.nowDoing("restarts to be held")
	for _, u := range a.parts.units {
		if u.launched.Load() {
			u.holdRestarts()
		}
	}
	a.nowDoing("")
}

func (a *App) isStopping() bool { return a.stop.requested.HasSignaled() }

// untilStop returns a context that ends when a stop is requested.
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

// requestStop requests the stop. Only the first request counts; for any other it
// returns false. It never waits.
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

// fail logs err and stops the App with it. When the App is already stopping, fail joins
// err to the result.
func (a *App) fail(err error) {
	a.log.Error("the app cannot go on", "error", err)
	if !a.requestStop(stopRequest{reason: err.Error(), cause: err, err: err, told: true}) {
		a.stop.add(err)
	}
}

// beginStop begins the stop, at T0. It runs once, and without a lock.
func (a *App) beginStop() {
	b := a.budget // App.EndBy changes it as soon as the stop is known
	a.armWatchdog()
	a.stop.open.Begin(a.stop.began(), b.Window)
	a.health.owner.SetDraining(a.cfg.DrainReadiness == ReadinessDown)
	a.signals.guardPipe()
	a.notifier.Load().Stopping(b.Total, a.stop.why().again)
	a.stop.requested.Signal() // first, because a server could delay the steps below
	a.stop.draining.Signal()
	for _, s := range a.parts.servers {
		s.BeginDrain(a.stop.began(), b.Window.Full)
	}
	a.log.Info("stopping", "reason", a.stop.why().reason)
}

// stopCause returns the cause of the stop. It is nil before the stop and for a
// clean stop.
func (a *App) stopCause() error { return a.stop.why().cause }

// teardown takes down the parts that have started. It has ShutdownGrace from the
// end of the window, and reserves a slice of it for each step.
func (a *App) teardown(base context.Context, group *errgroup.Group, hurried bool) error {
	end := a.stop.endWindow("")
	a.refit(end)
	end = end.Add(a.budget.Grace)
	reportsBegin := end.Add(-a.reportSlice())
	hooksBegin := reportsBegin.Add(-a.budget.HookSlice)
	unitsBegin := hooksBegin.Add(-a.budget.UnitSlice)

	if hurried && a.Phase() == PhaseStarting {
		// The App was never ready, so no request has to finish.
		a.enter(PhaseStopping, a.stopCause())
		a.retireServers(base, unitsBegin, true)
	} else {
		a.retireServers(base, unitsBegin, hurried)
		a.enter(PhaseStopping, a.stopCause())
	}
	a.health.owner.SetDraining(true) // also with DrainReadiness serving, and without a server
	a.stopUnits(base, hooksBegin)
	a.parts.ended.Close()
	_ = group.Wait() // each unit keeps its own error

	a.nowDoing("shutdown hooks")
	hooksErr := a.hooks.runUntil(base, reportsBegin)
	a.stopIsOver(a.collect(hooksErr))
	a.tell(base, end.Add(-min(time.Second, a.reportSlice()/4))) // the rest is for the health server to close
	a.nowDoing("the health server")
	a.closeHealth(end)
	a.nowDoing("")
	return a.finish(a.collect(hooksErr))
}

// collect joins all errors, the primary cause first.
func (a *App) collect(hooksErr error) error {
	s := &a.stop
	s.mu.Lock()
	defer s.mu.Unlock()
	primary := s.request.err
	if a.cfg.ExitOnSignal && s.request.signal != nil {
		primary = s.request.signal
	}
	if i := slices.IndexFunc(a.parts.units, (*unit).isUndoneJob); i >= 0 && primary == nil {
		why := s.request.cause
		if s.request.signal != nil {
			why = s.request.signal
		}
		if why != nil {
			primary = fmt.Errorf("job %s was not done: %w", a.parts.units[i].name, why)
		}
	}
	s.untold, s.over.joined = primary != nil && !s.request.told, true
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
		if !errors.Is(primary, err) { // two reporters may name the same failure
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, hooksErr)...)
}

// finish enters the last phase with the result of Run.
func (a *App) finish(err error) error {
	a.stopIsOver(err)
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
