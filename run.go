package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/cgroup"
	"github.com/pleme-io/lifecycle-go/internal/inbox"
	"golang.org/x/sync/errgroup"
)

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
// notifications in its parent's name. Of two Apps in a process the first to run takes the
// socket. A process that takes over ([App.Upgrade]) says nothing before it serves; the old
// one names it as the main process (MAINPID=) and says nothing from then on.
//
// When a registration was refused, Run starts nothing and returns the reasons. A
// registration that comes after Run has begun is refused too: the App goes on without
// it, and Run's error names it in the end. When parent has already ended, Run starts
// nothing and returns nil, or which jobs were not done. In both cases it runs the
// shutdown hooks, because main opened the resources that they close.
func (a *App) Run(parent context.Context) (err error) {
	if a.parts.log == nil {
		return errZeroApp
	}
	if !a.parts.seal() {
		return ErrAlreadyRun
	}
	if parent == nil {
		parent = context.Background()
		a.parts.refused = append(a.parts.refused, errors.New("Run: the parent context is nil, want context.Background() when there is none"))
	}
	a.exitRecord.terminationLog.Find(a.cfg.TerminationLog, a.cfg.Name)
	a.queue.Start()
	// The signal handlers are in place before Run calls any user code, so that no
	// signal is lost. They stay until the log is written: if the log's reader has
	// ended, a write would otherwise end the process with SIGPIPE.
	unwatch := a.watchSignals()
	defer func() { // after everything else
		a.queue.Close(time.Second)
		unwatch()
	}()
	defer a.disarmWatchdog()
	if a.stop.arm() {
		a.beginStop()
	}
	if err := a.refusals(); err != nil {
		a.log.Error("nothing was started", "error", err)
		if !a.requestStop(stopRequest{reason: "refused registrations", cause: err, err: err, logged: true}) {
			a.stop.add(err) // another request was first
		}
		<-a.stop.requested.Signaled()
		a.stop.endWindow("")
		<-a.runDrainers(parent) // all are skipped
		// The hooks run: main opened most of their resources before Run.
		hooksErr := a.hooks.runUntil(context.WithoutCancel(parent), time.Now().Add(a.budget.Grace))
		return a.finish(a.collect(hooksErr))
	}
	closeBox := a.openBox()
	defer closeBox()
	if a.upgrade.parent == nil {
		a.notifyServiceManager()
	}
	defer func() {
		a.disarmWatchdog() // the remaining steps are bounded
		a.notifier.Load().Close()
	}()

	base := context.WithValue(asynclog.WithLogger(context.WithoutCancel(parent), a.log), appKey{}, a)
	a.unitsCtx, a.cancelUnits = context.WithCancelCause(base)
	defer a.cancelUnits(nil)
	a.reloads.ctx, a.reloads.cancel = context.WithCancel(a.unitsCtx)
	defer a.reloads.cancel()
	if parent.Err() != nil {
		a.stopWith(parent)
	}
	defer context.AfterFunc(parent, func() { a.stopWith(parent) })()

	var group errgroup.Group
	a.parts.ended = inbox.New[*unit]()
	group.Go(func() error { a.parts.ended.Each(a.watch); return nil })
	skipLinger := true
	if a.start(&group) && a.awaitTakeover() {
		skipLinger = a.serveUntilStop(base)
	} else {
		a.holdRestarts()
		a.drain(base)
	}
	return a.teardown(base, &group, skipLinger)
}

// refusals returns the faults of all registrations, joined.
func (a *App) refusals() error {
	errs := append([]error(nil), a.parts.refused...)
	errs = append(errs, a.health.reg.Err())
	slice, err := minSlice(a.budget, a.hooks.len())
	a.hooks.minSlice = slice
	return errors.Join(append(errs, err)...)
}

// start starts, in this order: the health server, so that the kubelet gets an answer
// from the beginning; the listeners, so that the App finds an address in use before any
// work begins; the units. It reports false when a step failed or a stop was requested
// meanwhile.
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
	takesFirst := a.upgrade.parent == nil && len(a.upgrade.exclusives) > 0 // else awaitTakeover takes them
	if err == nil && takesFirst {
		a.setWaiting("what only one process can have")
		ctx, cancel := a.untilStop()
		err = takeAll(ctx, a.upgrade.exclusives)
		cancel()
		a.setWaiting("")
	}
	for i := 0; err == nil && i < len(a.parts.units) && !a.isStopping(); i++ {
		if err = a.launch(a.parts.units[i], group); err == nil {
			a.parts.launched++
		}
	}
	for i := 0; err == nil && i < len(a.parts.units) && !a.isStopping(); i++ {
		a.awaitStarted(a.parts.units[i])
	}
	if err != nil {
		err = fmt.Errorf("start: %w", err)
		if a.isStopping() && call.Is(err, context.Canceled) {
			return false // the stop cancels DNS lookups
		}
		a.fail(err)
		<-a.stop.requested.Signaled() // another request may have been first
	}
	return !a.isStopping()
}

// slowStart is the time after which the log names the units that have not started.
const slowStart = 15 * time.Second

// watchStart logs which parts a slow start waits for: after slowStart, and again whenever
// that time has doubled. After StartTimeout it stops the App. The caller calls end when the
// start is over.
func (a *App) watchStart() (end func()) {
	timeout := a.cfg.StartTimeout
	if timeout == Off {
		timeout = longest
	}
	ctx, cancel := context.WithTimeout(a.unitsCtx, timeout)
	began := time.Now()
	go func() {
		for pause := slowStart; ; {
			select {
			case <-time.After(pause):
				pause = time.Since(began)
				a.log.Warn("still starting", "for", pause, "waiting_for", a.notStarted())
				continue
			case <-ctx.Done():
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				a.fail(fmt.Errorf("start: not done within %v (StartTimeout): waiting for %s: %w", timeout, a.notStarted(), context.DeadlineExceeded))
			}
			return
		}
	}()
	return cancel
}

// notStarted names the units whose start has begun and not ended. Without such a unit it
// names the part for which the start waits.
func (a *App) notStarted() string {
	var names []string
	for _, u := range a.parts.units {
		if u.launched.Load() && !u.shown().Status.Begun() {
			names = append(names, "unit "+u.name)
		}
	}
	if names == nil {
		return a.waitingFor()
	}
	return strings.Join(names, ", ")
}

// serveUntilStop serves until a stop is requested, and then drains. skipLinger is the result
// of drain.
func (a *App) serveUntilStop(base context.Context) (skipLinger bool) {
	if a.upgrade.parent != nil {
		a.notifyServiceManager()
	}
	a.setWaiting("the readiness probes")
	a.health.owner.SetGate(StateUp, "")
	a.probeReadinessOnce()
	a.setWaiting("")
	a.enter(PhaseRunning, nil)
	a.log.Info("running", append([]any{"units", len(a.parts.units)}, a.budgetAttrs()...)...)
	a.warnOfLongStops()
	if len(a.parts.units) == 0 {
		a.log.Warn("no unit is registered: the app waits for a signal, the end of the parent context or App.Stop")
	}
	var requests sync.WaitGroup
	requests.Go(a.serveReloads)
	requests.Go(a.followResources)
	requests.Go(a.serveUpgrades)
	<-a.stop.requested.Signaled()

	a.holdRestarts()
	a.enter(PhaseDraining, a.stopCause())
	skipLinger = a.drain(base)
	a.setWaiting("a reload")
	a.endReloads()
	a.setWaiting("an upgrade")
	a.upgrade.turn <- struct{}{} // never given back: an upgrade that runs has ended, and none begins
	requests.Wait()
	return skipLinger
}

// budgetAttrs returns the times of a stop for the log: the whole, its slices, and the stop
// times of units that declare one.
func (a *App) budgetAttrs() []any {
	b := a.times()
	var declared []string
	for _, u := range a.parts.units {
		if d := u.stopTime(); d > 0 {
			declared = append(declared, fmt.Sprintf("%s %v", u.name, d))
		}
	}
	attrs := []any{"stop_at_most", b.Total, "window", b.Window.Max, "requests", b.InFlight(), "unit_slice", b.UnitSlice, "hook_slice", b.HookSlice}
	if declared != nil {
		attrs = append(attrs, "units_take", strings.Join(declared, ", "))
	}
	return attrs
}

// warnOfLongStops warns of a unit that declares a longer stop than the slice of the units, which
// all stop at the same time.
func (a *App) warnOfLongStops() {
	b := a.times()
	for _, u := range a.parts.units {
		if d := u.stopTime(); d > b.UnitSlice {
			a.log.Warn("a unit may take longer to stop than it is sure to have: raise unit_slice and shutdown_grace, or lower the unit's own time",
				"unit", u.name, "takes", d, "unit_slice", b.UnitSlice, "shutdown_grace", b.Grace)
		}
	}
}

// holdRestarts tells every unit that has started to restart nothing any more.
func (a *App) holdRestarts() {
	a.setWaiting("restarts to be held")
	for _, u := range a.parts.units {
		if u.launched.Load() {
			u.holdRestarts()
		}
	}
	a.setWaiting("")
}

// hookSlice returns the time that is reserved for hooks: none without a hook.
func (a *App) hookSlice() time.Duration {
	if a.hooks.len() == 0 {
		return 0
	}
	return a.budget.HookSlice
}

// unitSlice returns the time that is reserved for units. When all units are servers it is
// the time in which a server's own Stop has to return.
func (a *App) unitSlice() time.Duration {
	hasOtherUnits := len(a.parts.units) > len(a.parts.servers)
	if hasOtherUnits {
		return a.budget.UnitSlice
	}
	return min(a.budget.UnitSlice, a.budget.Patience+settle)
}

// teardown takes down the parts that have started. It has ShutdownGrace from the
// end of the window, and reserves a slice of it for each step. A slice that no part
// uses belongs to requests in flight.
//
// With skipLinger the servers close without the steps for clients that have not noticed
// the stop yet.
func (a *App) teardown(base context.Context, group *errgroup.Group, skipLinger bool) error {
	end := a.stop.windowEnded()
	a.refit(end)
	end = end.Add(a.budget.Grace)
	reportsBegin := end.Add(-a.reportSlice())
	hooksBegin := reportsBegin.Add(-a.hookSlice())
	unitsBegin := hooksBegin.Add(-a.unitSlice())

	neverRan := a.Phase() == PhaseStarting // so no request has to finish
	if neverRan {
		a.enter(PhaseStopping, a.stopCause())
	}
	a.retireServers(base, unitsBegin, skipLinger)
	if !neverRan {
		a.enter(PhaseStopping, a.stopCause())
	}
	a.health.owner.SetDraining(true) // also with DrainReadiness serving, and without a server
	a.stopUnits(base, hooksBegin)
	a.parts.ended.Close()
	_ = group.Wait() // each unit keeps its own error

	a.setWaiting("shutdown hooks")
	hooksErr := a.hooks.runUntil(base, reportsBegin)
	a.stopIsOver(a.collect(hooksErr))
	a.runReports(base, end.Add(-min(time.Second, a.reportSlice()/4))) // the rest is for the health server to close
	a.setWaiting("the health server")
	a.closeHealth(end)
	a.setWaiting("")
	a.awaitBox(end)
	return a.finish(a.collect(hooksErr))
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
