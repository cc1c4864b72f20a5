package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/budget"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/drainwindow"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrStopRequested is the context.Cause that units see in a clean stop: App.Stop(nil)
// was called, or an Actor returned nil.
var ErrStopRequested = worker.ErrStopRequested

// Stop asks the App to stop and returns at once: the drain begins. With a nil cause
// the stop is clean. Any other cause becomes the first part of Run's error. Only the
// first request to stop counts; Run joins the causes of later ones to its error.
// Before Run, Stop makes Run stop as soon as it begins; after Run it does nothing.
//
// The stop begins before Stop reads the cause's text. A cause whose Error method does not
// return within a second stops the App, too; the report then says that its text is not
// known.
func (a *App) Stop(cause error) {
	cause = call.Take("the cause given to App.Stop", cause)
	req := stopRequest{reason: "App.Stop was called", detail: cause, cause: cause, err: cause}
	first := a.requestStop(req)
	if !first && cause != nil && a.stop.add(cause) {
		a.log.Error("the app is stopping, and one more reason came", "reason", req.text())
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

// stopRecord is the one stop of an App: its reason, its progress and its errors.
type stopRecord struct {
	requested      fsm.Signal  // T0: the App drains; users watch it too
	skip           fsm.Signal  // the App does not wait for the rest of the drain window
	windowOver     fsm.Signal  // the drain window has ended, or there was none
	unitsCancelled atomic.Bool // units have been told to stop

	drainWindow drainwindow.Window

	mu        sync.Mutex // guards the fields below
	armed     bool       // Run has begun: a request begins the stop
	request   *stopRequest
	further   []error   // of later requests and of the stop's steps
	t0        time.Time // when the stop began, zero before
	window    string    // how the drain window ended
	windowEnd time.Time
	killTime  time.Time // when the process will be killed, from EndBy; zero when that is not known
	drained   []Outcome // drainers that have returned, were abandoned or were skipped
	cut       int       // requests in flight when their time was over
	abandoned []string  // checks and health clients that the App abandoned at the end
	result    stopResult
	unlogged  bool // the first part of result.err is not in the log at error level yet
}

type stopResult struct {
	at     time.Time // when the last hook had returned
	joined bool      // err has all its parts: a later error cannot be joined to it
	err    error     // of Run
	status int       // ExitCode of err
}

// stopRequest says why the App should stop.
type stopRequest struct {
	reason string       // for people
	detail error        // its text stands behind the reason; nil for none
	cause  error        // what units see as their context's cause; nil when nothing is wrong
	err    error        // the primary part of Run's error; nil for a clean stop
	signal *SignalError // set when the request was a signal
	byUnit bool         // the end of a unit is the reason
	logged bool         // err is in the log at error level

	successor int // the id of the process that has replaced this one; 0 for none
}

// text returns the reason with its detail. It may wait a second for the text of a detail
// that blocks, so call it without a lock.
func (r stopRequest) text() string {
	if r.detail == nil {
		return r.reason
	}
	return r.reason + ": " + r.detail.Error()
}

// ask records a request. first reports whether no request came before: only the first
// counts. begin reports whether Run has begun: the caller then begins the stop. When the
// request comes before Run, the stop begins with Run.
func (s *stopRecord) ask(req stopRequest) (first, begin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		return false, false
	}
	s.request = &req
	if s.armed {
		s.t0 = time.Now()
	}
	return true, s.armed
}

// askAfter calls fn under the lock, unless a stop was requested, and records req when fn
// returns nil. The caller then begins the stop.
func (s *stopRecord) askAfter(req stopRequest, fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		return errStopped
	}
	if err := fn(); err != nil {
		return err
	}
	s.request, s.t0 = &req, time.Now()
	return nil
}

// arm makes the next request begin the stop. If a request came before, arm reports
// true: the stop begins now.
func (s *stopRecord) arm() (begin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = true
	if s.request != nil {
		s.t0 = time.Now()
	}
	return s.request != nil
}

// add records an error that Run joins behind the primary one. It reports false, and
// records nothing, when Run has joined its errors already.
func (s *stopRecord) add(err error) (taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.result.joined {
		s.further = append(s.further, err)
	}
	return !s.result.joined
}

// noteDrained records how a drainer ended.
func (s *stopRecord) noteDrained(out Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = append(s.drained, out)
}

// why returns the request, or a zero stopRequest before the first.
func (s *stopRecord) why() stopRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request == nil {
		return stopRequest{}
	}
	return *s.request
}

// runError returns the error of Run, or nil before it is known.
func (s *stopRecord) runError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result.err
}

// began returns T0, or the zero time before T0.
func (s *stopRecord) began() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t0
}

// unlessRequested calls fn under the lock and returns true, unless a stop was requested.
func (s *stopRecord) unlessRequested(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		return false
	}
	fn()
	return true
}

// endWindow records how the drain window ended, "" when there was none. It is called once.
func (s *stopRecord) endWindow(how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window, s.windowEnd = how, time.Now()
	if how == "" {
		s.windowEnd = s.t0
	}
	s.windowOver.Signal()
}

// windowEnded returns when the drain window ended, or the zero time before.
func (s *stopRecord) windowEnded() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.windowEnd
}

// setKillTime records EndBy's time and fits the window of b into it. It does nothing outside of
// the window and when an earlier time is known.
func (s *stopRecord) setKillTime(at time.Time, b budget.Budget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inWindow := !s.t0.IsZero() && s.windowEnd.IsZero()
	isEarliest := s.killTime.IsZero() || at.Before(s.killTime)
	if !inWindow || !isEarliest {
		return
	}
	s.killTime = at
	if d := at.Sub(s.t0); d < b.Total {
		s.drainWindow.Fit(b.Within(d).Window) // under the lock, so that the earliest of several calls counts
	}
}

// canSkipWindow reports whether a window is left to skip, and was not skipped before.
func (s *stopRecord) canSkipWindow() bool {
	return !s.windowOver.HasSignaled() && !s.skip.HasSignaled()
}

// skipWindow ends the wait of the drain window early. It reports false when no
// window is left to skip, or it was skipped before.
func (s *stopRecord) skipWindow() bool { return !s.windowOver.HasSignaled() && s.skip.Signal() }

// requestStop requests the stop. Only the first request counts; for any other it
// returns false. It returns once the drain has begun, and a second later when the text of a
// foreign error blocks, because the log has the reason.
func (a *App) requestStop(req stopRequest) (first bool) {
	if req.err == nil && a.lastReached() == PhaseStarting {
		// A start that hangs is the most frequent reason for such a request.
		if on := a.waitingFor(); on != "" {
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
	if !a.requestStop(stopRequest{reason: err.Error(), cause: err, err: err, logged: true}) {
		a.stop.add(err)
	}
}

// beginStop begins the stop, at T0. It runs once, and without a lock.
func (a *App) beginStop() {
	b := a.budget // a copy: refit replaces it once the window is over
	window := b.Window
	successor := a.stop.why().successor
	if successor != 0 {
		window.Min = 0
	}
	a.armWatchdog()
	a.stop.drainWindow.Begin(a.stop.began(), window)
	a.signals.guardPipe()
	if successor != 0 { // clients come to this address as before, so nothing has to notice the stop
		a.stop.drainWindow.EndAt(a.stop.began())
		a.notifier.Load().HandOver(successor, string(PhaseRunning))
	} else {
		a.health.owner.SetDraining(a.cfg.DrainReadiness == ReadinessDown)
		a.notifier.Load().Stopping(b.Total)
	}
	a.stop.requested.Signal()
	for _, s := range a.parts.servers {
		s.BeginDrain(a.stop.began(), b.Window.Full)
	}
	a.log.Info("stopping", "reason", a.stop.why().text())
}

// stopCause returns the cause of the stop. It is nil before the stop and for a
// clean stop.
func (a *App) stopCause() error { return a.stop.why().cause }

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

// primaryCause returns the error whose exit status the process has: the signal with ExitOnSignal,
// else the request's own error, else that a job was not done.
func (a *App) primaryCause(req *stopRequest) error {
	if a.cfg.ExitOnSignal && req.signal != nil {
		return req.signal
	}
	isReplaced := req.successor != 0 // a process that has taken over does the jobs of this one
	undone := slices.IndexFunc(a.parts.units, (*unit).isUndoneJob)
	if req.err != nil || undone < 0 || isReplaced {
		return req.err
	}
	why := req.cause
	if req.signal != nil {
		why = req.signal
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("job %s was not done: %w", a.parts.units[undone].name, why)
}

// collect joins all errors, the primary cause first. Run calls it again after its last step, for
// registrations that came meanwhile.
func (a *App) collect(hooksErr error) error {
	s, late := &a.stop, a.parts.lateErrors()
	s.mu.Lock()
	defer s.mu.Unlock()
	primary := a.primaryCause(s.request)
	s.unlogged = primary != nil && !s.request.logged
	s.result.joined = true
	errs := []error{primary}
	for _, u := range a.parts.units {
		if err := u.failure(); err != nil && !call.Is(primary, err) {
			errs = append(errs, err)
		}
	}
	for _, out := range s.drained {
		errs = append(errs, out.err)
	}
	for _, err := range s.further {
		if !call.Is(primary, err) { // two reporters may name the same failure
			errs = append(errs, err)
		}
	}
	errs = append(errs, hooksErr)
	return errors.Join(append(errs, late...)...)
}

// stopIsOver records the result after the last hook, and again after the health server.
func (a *App) stopIsOver(result error) {
	status := call.Status(result, ExitStuck)
	a.stop.mu.Lock()
	defer a.stop.mu.Unlock()
	if a.stop.result.at.IsZero() {
		a.stop.result.at = time.Now()
	}
	a.stop.result.err, a.stop.result.status = result, status
}
