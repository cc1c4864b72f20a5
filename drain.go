package lifecycle

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/drainwindow"
	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
)

// Drainable is a component with obligations to a remote peer that it has to end
// before the process does: sessions, a consumer's claim on messages, a pool's work.
type Drainable interface {
	// Drain stops taking new work, lets the present work finish, and returns. ctx
	// ends with the drain window: Drain then gives up unfinished work.
	Drain(ctx context.Context) error
}

// DrainFunc makes a function a [Drainable].
type DrainFunc func(ctx context.Context) error

// Drain calls f.
func (f DrainFunc) Drain(ctx context.Context) error { return f(ctx) }

// OnDrain registers d to run in the drain window, at the same time as all other
// drainers, each in a goroutine of its own. The App abandons a drainer that
// ignores the end of its context 100 ms after the window; Run's error then names
// the drainer and the line at which it was blocked. A panic is an error too. Use
// OnDrain for obligations to a remote peer, and [App.OnShutdown] to close resources of
// this process.
//
// Register a drainer behind the units that it drains. When the App stops while it is
// starting, it runs a drainer only when it has launched every unit that was registered before that
// drainer, and does not wait for the rest of the window. It skips the other drainers, and all of
// them when it has launched no unit; the log and the report name those.
func (a *App) OnDrain(name string, d Drainable) *App {
	a.parts.add("drainer", name, missing("OnDrain", argument{"drainer", call.IsNil(d)}), func() {
		a.parts.drainers = append(a.parts.drainers, drainer{namedFunc{name, d.Drain}, len(a.parts.units)})
	})
	return a
}

// drainer is a Drainable.
type drainer struct {
	namedFunc
	unitsBefore int // how many units were registered before it
}

type appKey struct{}

// Draining returns a channel that closes when the work under ctx should end. For a
// unit, a drainer or a reload it closes when the App begins to drain.
//
// For a request of one of the App's servers it closes from GoAwayAfter on, when the
// client can find another process: for one handler after the other, spread over the
// window, so that the clients of event streams, polls and websockets do not all come
// back at once. For a request that arrives later it closes at the end of the window, and
// after the window when the listener closes. Answer a long poll then as if its time were
// over, with nothing new. A websocket has one more second to close.
//
// For any other context it is nil, which never closes. Unlike [Stream], Draining does not
// mark the request.
func Draining(ctx context.Context) <-chan struct{} {
	if ch, ok := httpdrain.Draining(ctx); ok {
		return ch
	}
	if a, ok := ctx.Value(appKey{}).(*App); ok {
		return a.Draining()
	}
	return nil
}

// CallContext marks ctx as the context of a call to the server with that name, so that
// [Draining] works in its handler. It is for frameworks whose calls the App does not see; the
// interceptors of the module grpcdrain use it.
//
// For a server added with [App.GRPC] the channel closes a moment after the App has
// called GracefulStop, which tells clients to call elsewhere. For a server added with
// [App.Serve] it closes GoAwayAfter after the App has begun to drain, and for any other
// name when it begins.
func (a *App) CallContext(ctx context.Context, server string) context.Context {
	return httpdrain.WithGoodbye(ctx, func() <-chan struct{} {
		if s := a.server(server); s != nil {
			return s.Goodbye()
		}
		return a.Draining()
	})
}

// Stream says that the request of ctx is a stream, which would not end by itself, and
// returns [Draining] of ctx. The server cancels the context of a stream at the window's
// end, or at once after that, with the cause [ErrWindowOver]; an ordinary request has
// until the in-flight slice is over.
//
// A handler need not call it for a GET that it answers with text/event-stream or
// multipart/x-mixed-replace, for a request that accepts text/event-stream alone, and for
// a hijacked connection: the server knows these as streams. For an answer of such a type
// that does end, use [context.WithoutCancel]. For any other context, a unit's for one,
// Stream is Draining. Call it before the handler returns: later the context may belong
// to the connection's next request.
func Stream(ctx context.Context) <-chan struct{} {
	httpdrain.Stream(ctx)
	return Draining(ctx)
}

// Draining returns a channel that closes when the App begins to drain. Queue
// consumers and schedulers then stop fetching work.
func (a *App) Draining() <-chan struct{} { return a.stop.requested.Signaled() }

// drain runs the drainers and waits for the end of the drain window. The App still
// serves every request in it, and the cluster learns that this process stops.
// skipLinger reports that the servers need not linger for clients: the App skipped the window,
// because of DrainWait, a reason of whyNotWait, or a second signal.
func (a *App) drain(ctx context.Context) (skipLinger bool) {
	t0 := a.stop.began()
	ctx, cancel := context.WithDeadline(ctx, t0.Add(a.budget.Window.Max))
	defer cancel()

	successor := a.stop.why().successor
	if successor != 0 {
		a.handOverServers(ctx)
	}
	why := a.whyNotWait()
	waits := why == ""
	if waits {
		a.log.Info("draining: still serving everything", "window", a.budget.Window.Full)
	} else {
		a.log.Info("not waiting for the drain window", "because", why)
	}
	drained := a.runDrainers(ctx)
	traffic := a.traffic
	if waits {
		a.setWaiting("the drain window")
	} else {
		a.setWaiting("drainers")
		traffic = nil
	}
	how := a.stop.drainWindow.Wait(a.stop.skip.Signaled(), drained, traffic)
	wasSkipped := how == drainwindow.Skipped
	if !waits {
		how = why
	}
	cancel() // a drainer that watches its context returns now
	a.stop.endWindow(how)
	a.endWindows(ctx)
	<-drained
	a.log.Info("the drain window is over", "took", a.stop.windowEnded().Sub(t0), "how", how)
	didNotWait := !waits && successor == 0 // a successor has the listener: clients of this process need the linger
	return wasSkipped || didNotWait
}

// endWindows tells every server that the window is over. A server then ends streams, tells
// the owners of hijacked connections, and closes those a second later. The App bounds and
// recovers each call: a foreign Drainer that hangs takes no time from units and hooks.
func (a *App) endWindows(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range a.parts.servers {
		wg.Go(func() {
			out := callPart(ctx, "call", s.Name()+": end of the window", call.Now(), a.budget.Patience, func() error {
				s.EndWindow()
				return nil
			})
			if out.err != nil {
				a.log.Error("server failed at the end of the window", "server", s.Name(), "took", out.Took, "error", out.err)
				a.stop.add(out.err)
			}
		})
	}
	wg.Wait()
}

// traffic returns what the servers see of their clients.
func (a *App) traffic() (seen drainwindow.Traffic) {
	for _, s := range a.parts.servers {
		st := s.Stats()
		seen.Serving = seen.Serving || st.InFlight > 0 || st.Hijacked > 0
		seen.Busy = seen.Busy || st.Busy()
		if st.LastArrival.After(seen.Last) {
			seen.Last = st.LastArrival
		}
	}
	return seen
}

// EndWindow moves the end of the drain window to at. It is for code that sees whether
// the cluster has noticed the stop, as the module kube does. The window then ends at
// that time: not before DrainMin, not after DrainMax, and before DrainInterval only when
// every drainer has returned and no request is in flight. An early end takes no time from
// open connections. The last call counts, and the zero time gives the window its own length
// again. Before T0, after the window and in a process that was replaced by [App.Upgrade] it does
// nothing.
func (a *App) EndWindow(at time.Time) {
	if a.stop.why().successor == 0 { // clients of a process that was replaced come to its successor
		a.stop.drainWindow.EndAt(at)
	}
}

// EndBy says that the process will be killed at that time. The App shortens the window
// and every later step in proportion, so that the stop ends before it, when it has less
// time than its Config gives. It gives the stop one second at least, also for a time that has
// passed: the hooks then still run. Of several calls the earliest time counts. Before T0 and
// after the window it does nothing.
func (a *App) EndBy(at time.Time) {
	if soonest := time.Now().Add(time.Second); at.Before(soonest) {
		at = soonest
	}
	a.stop.setKillTime(at, a.times())
}

// refit recomputes the times of the steps after the window from when this window ended.
func (a *App) refit(windowEnd time.Time) {
	a.stop.mu.Lock()
	took, early, left := windowEnd.Sub(a.stop.t0), a.stop.window == drainwindow.Early, longest
	if !a.stop.killTime.IsZero() {
		left = a.stop.killTime.Sub(windowEnd)
	}
	a.stop.mu.Unlock()
	if left < a.budget.Total-took {
		a.forced.watchdog.Load().Reset(left)
	}
	b, differs := a.budget.After(took, early, left)
	if !differs {
		return
	}
	a.mu.Lock()
	a.budget = b
	a.mu.Unlock()
	for _, s := range a.parts.servers {
		s.Configure(b.Goodbye())
	}
}

// whyNotWait returns the reason why the App does not wait for the window, or "".
func (a *App) whyNotWait() string {
	if a.EnteredAt(PhaseRunning).IsZero() {
		return "the app was starting"
	}
	switch a.cfg.DrainWait {
	case WaitAlways:
		return ""
	case WaitNever:
		return "DrainWait is never"
	}
	ranShorterThanWindow := a.stop.began().Sub(a.EnteredAt(PhaseRunning)) < a.budget.Window.Full
	switch why := a.stop.why(); {
	case !a.everReady():
		return "the app was never ready"
	case !a.listens():
		return "nothing listens"
	case len(a.parts.servers) == 0 && why.byUnit && ranShorterThanWindow:
		return "a unit ended at once" // the cluster takes about a window to notice a change
	case why.signal != nil && why.signal.Signal == os.Interrupt && a.signals.terminal():
		return "Ctrl-C at a terminal"
	}
	return ""
}

// listens reports whether clients may send requests to this process: one of the App's
// servers is serving, or the App has no server and no job and serves health planes, so
// that a unit may listen by itself.
func (a *App) listens() bool {
	for _, s := range a.parts.servers {
		if s.isServing() {
			return true
		}
	}
	hasJob := slices.ContainsFunc(a.parts.units, func(u *unit) bool { return u.kind == kindJob })
	return len(a.parts.servers) == 0 && a.health.server != nil && !hasJob
}

// runDrainers starts the drainers, and closes the returned channel when each has returned or
// was abandoned. When the App was still starting, it skips every drainer that was registered
// behind a unit that was not launched, and all of them when no unit was launched.
func (a *App) runDrainers(ctx context.Context) <-chan struct{} {
	all := make(chan struct{})
	var wg sync.WaitGroup
	for _, d := range a.parts.drainers {
		haveUnits := a.parts.launched > 0 && a.parts.launched >= d.unitsBefore
		if a.Phase() != PhaseDraining && !haveUnits {
			_ = fsm.MustNew(KindDrainer, d.name, steps, resultPending, &a.events).To(ResultSkipped, nil) // allowed
			a.log.Warn("drainer skipped: not every unit registered before it was launched", "drainer", d.name)
			a.stop.noteDrained(Outcome{Name: d.name, Result: ResultSkipped})
			continue
		}
		wg.Go(func() { a.runDrainer(ctx, d) })
	}
	go func() {
		wg.Wait()
		close(all)
	}()
	return all
}

// runDrainer runs one drainer until it returns or is abandoned, and records how it ended.
func (a *App) runDrainer(ctx context.Context, d drainer) {
	life := step(KindDrainer, d.name, &a.events)
	out := callPart(ctx, KindDrainer, d.name, ctx.Done(), settle, func() error { return d.fn(ctx) })
	_ = life.To(out.Result, out.err)
	if out.Result == ResultAbandoned {
		a.saveBox("drainer " + d.name + " was abandoned")
	}
	if out.err != nil {
		a.log.Error("drainer failed", call.Logged(out.err, "drainer", d.name, "took", out.Took, "error", call.Unnamed(d.name, out.err))...)
		out.err = call.About("drainer", d.name, out.err)
	} else {
		a.log.Info("drainer done", "drainer", d.name, "took", out.Took)
	}
	a.stop.noteDrained(out)
}
