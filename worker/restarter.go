package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

var (
	// ErrDoNotRestart ends a restarted function cleanly: return it, or an error
	// that wraps it, when there is nothing more to do. Joined with another error it
	// ends the function without a restart, as Failed and with that error.
	ErrDoNotRestart = errors.New("do not restart")

	// ErrTerminate ends a restarted function for good, and the supervisor or App
	// that runs it: return it, or an error that wraps it, when going on would do
	// harm. To end this function alone use [ErrDoNotRestart]. A supervisor with
	// ContainTerminate ends alone.
	ErrTerminate = errors.New("terminate")

	// ErrRestartBudget ends a function that failed more often than its
	// [Backoff] allows. It is joined with the last failure.
	ErrRestartBudget = errors.New("restart budget is spent")
)

// The Is method of a foreign error may match one of these.
var _ = call.Sentinels(ErrDoNotRestart, ErrTerminate)

// Restarter is a worker that runs a function and starts it again when it fails.
//
// A Restarter is one life. Each run has a status of its own, which
// [Restarter.State] shows as a child: Pending during the backoff, then Starting,
// Running and a terminal status. The changes of a run are events of the
// Restarter's life, with the number of the run as their Attempt. The Restarter's
// own changes have the Attempt 0.
//
// It is not a [Supervisor] of one child for the sake of speed (bench/units). To start and
// end a thousand of them, supervisors take 6.5 times as long as suture takes for a thousand
// services, and Restarters 2.8 times. The two share the backoff, the budget and the log.
type Restarter struct {
	BaseWorker
	fn      func(context.Context) error
	opts    []FuncOption
	backoff Backoff
	log     limitedLog
	hold    fsm.Signal // HoldRestarts was called
	wake    fsm.Wake   // the loop has to look at the fields below

	runMu    sync.Mutex // guards everything below, and is held while a run starts
	run      *Func
	last     *Exit // how the run before the current one ended
	restarts int

	restarted chan struct{} // Restart waits for it: closed when the next run begins; nil when no restart was asked for
}

// NewRestarter returns a worker that runs fn until it returns nil or
// [ErrDoNotRestart]. After a failure, or a panic, it starts fn again after the
// wait that backoff says. [ErrTerminate] and a spent budget make the worker fail.
func NewRestarter(name string, fn func(context.Context) error, backoff Backoff, opts ...FuncOption) *Restarter {
	r := &Restarter{fn: fn, opts: opts, backoff: backoff, wake: fsm.NewWake()}
	r.Init("restarter", name)
	return r
}

// LogTo makes the worker log each failure that leads to a restart: the error,
// the number of the restart, and the wait before it. There is at most one line a second,
// so the numbers may jump. Call LogTo before Start.
func (r *Restarter) LogTo(log *slog.Logger) { r.log.log = log }

// Start begins the first run and returns. Cancelling ctx asks the worker to stop.
// With an invalid backoff, or without a function, Start returns an error and the
// worker is Failed.
func (r *Restarter) Start(ctx context.Context) error {
	own, err := r.beginWork(call.WithLabels(ctx, KindWorker, r.Name()))
	if err != nil {
		return err
	}
	if err := r.backoff.Validate(); err != nil {
		return r.refuse(err)
	}
	first := r.newRun(1)
	r.setRun(first)
	if err := first.Start(own); err != nil {
		r.Finish(err)
		return err
	}
	r.followStart()
	call.Go(r.Name(), func() error { return r.loop(own) }, r.Finish)
	return nil
}

// newRun makes run n.
func (r *Restarter) newRun(n int) *Func {
	run := newFunc(r.fn, r.opts)
	run.initRun("func", &r.BaseWorker, n)
	return run
}

// setRun makes run the current one. The one before it has ended.
func (r *Restarter) setRun(run *Func) {
	r.runMu.Lock()
	defer r.runMu.Unlock()
	if r.run != nil {
		r.last = exitOfWorker(r.run.Status(), r.run.Err(), time.Now()) // without an error after a Restart
	}
	r.run = run
}

// followStart makes the worker Running when its run has reached that.
func (r *Restarter) followStart() {
	if !r.current().StartedAt().IsZero() {
		r.MarkRunning()
	}
}

// loop waits for the end of each run and starts the next one. It returns the worker's
// result.
func (r *Restarter) loop(own context.Context) error {
	delays := r.backoff.delays()
	for n := 2; ; n++ {
		run := r.current()
		_, _ = run.Await(context.Background(), func(s Status) bool { return s != StatusStarting })
		r.followStart()
		<-run.Done()
		if run.Killed() { // by Stop
			r.Kill(run.Err())
			<-run.Gone()
			return run.Err()
		}
		wait, err := r.verdict(own, run, delays)
		if wait < 0 {
			return err
		}
		due := time.Now().Add(wait)
		var why error = &BackoffError{Name: r.Name(), Wait: wait, Due: due, Failures: delays.failures, Err: err}
		if wait == 0 {
			why = errRestartAsked
		}
		next := r.newRun(n)
		_ = next.hold(why, due) // never fails for a new worker
		r.setRun(next)          // Pending by now: Restart would stop a run in any other status, and the worker would end
		if wait > 0 && r.log.due() {
			failure := call.Unnamed(r.Name(), err)
			r.log.say(slog.LevelWarn, "unit failed, and is restarted", failure, "unit", r.Name(),
				"error", failure, "restarts", n-1, "wait", wait.Round(time.Millisecond))
		}
		if !r.startWhenDue(own, next, wait) {
			next.RequestStop(ErrStopRequested)
			r.RequestStop(ErrStopRequested)
			return nil
		}
	}
}

// verdict returns how long the worker waits after a run before the next one, 0 when a
// restart was asked for, and less than 0 and the worker's own result when the run was the
// last.
func (r *Restarter) verdict(own context.Context, run *Func, delays *delays) (wait time.Duration, err error) {
	err = run.Err()
	asked := r.isRestartAsked()
	switch {
	case own.Err() != nil || err == nil && !asked, call.Is(err, ErrTerminate):
		return -1, err
	case call.Is(err, ErrDoNotRestart):
		if call.Only(err, ErrDoNotRestart) {
			return -1, nil
		}
		return -1, err // something has failed as well
	case asked && r.hold.HasSignaled():
		return -1, nil
	case asked:
		delays.failures = 0
		return 0, nil
	}
	var uptime time.Duration // without the time that the start took
	if at := run.StartedAt(); !at.IsZero() {
		uptime = time.Since(at)
	}
	wait, ok := delays.failed(time.Now(), uptime)
	switch {
	case !ok:
		return -1, fmt.Errorf("%w (%d restarts in %v): %w", ErrRestartBudget, delays.MaxRestarts, delays.Window, err)
	case r.hold.HasSignaled():
		return -1, err
	}
	return max(wait, 1), err
}

// startWhenDue starts a pending run when its wait is over or Restart was called. It returns
// false when the worker has to end instead.
func (r *Restarter) startWhenDue(own context.Context, next *Func, wait time.Duration) bool {
	over := time.After(wait)
	for due := false; own.Err() == nil && !r.hold.HasSignaled(); {
		if started, ok := r.startIf(own, next, due); started {
			return ok
		}
		select {
		case <-over:
			due = true
		case <-r.wake:
		case <-r.hold.Signaled():
		case <-own.Done():
		}
	}
	return false
}

// startIf starts a pending run unless it has to wait. Restart looks at the worker under the
// same lock.
func (r *Restarter) startIf(own context.Context, next *Func, due bool) (started, ok bool) {
	r.runMu.Lock()
	defer r.runMu.Unlock()
	if !due && r.restarted == nil {
		return false, false
	}
	r.restarts++ // before the Start, because the run may end at once
	if next.Start(own) != nil {
		r.restarts--
		return true, false
	}
	if r.restarted != nil {
		close(r.restarted)
		r.restarted = nil
	}
	return true, true
}

// HoldRestarts makes the current run the last one; it does not stop it. A run that
// waits for its backoff never starts. An App calls it when it begins to drain.
func (r *Restarter) HoldRestarts() { r.hold.Signal() }

// Stop cancels the current run, or the wait for the next one, and waits for its
// end. When ctx ends first, Stop abandons the function, as [Func.Stop] does.
func (r *Restarter) Stop(ctx context.Context) error {
	r.RequestStop(stopCause(ctx))
	return r.awaitStop(ctx, func() error {
		if run := r.current(); run != nil { // nil while Start begins
			if err := run.Stop(ctx); err != nil {
				return err
			}
		}
		select {
		case <-r.Done(): // the loop ends with its run
			return nil
		case <-time.After(call.Settle): // the log does not return
			return call.Abandoned(KindWorker, r.Name())
		}
	})
}

func (r *Restarter) current() *Func {
	r.runMu.Lock()
	defer r.runMu.Unlock()
	return r.run
}

// State describes the worker, with the current run as its child. While it waits for a
// restart, Reason and Due say why and until when. Exit says how the run before the
// current one ended.
func (r *Restarter) State() State {
	s := r.BaseWorker.State()
	r.runMu.Lock()
	run, last := r.run, r.last
	s.Restarts = r.restarts
	r.runMu.Unlock()
	if run != nil {
		child := run.State()
		s.Children = []State{child}
		if !s.Status.Terminal() {
			s.Reason, s.Due, s.Exit = child.Reason, child.Due, last
		}
	}
	return s
}

// errRestartAsked is the cause of the stop of a run that Restart ends.
var errRestartAsked = errors.New("a restart was asked for")

// Restart ends the current run and begins the next one at once; a worker that waits for
// its backoff begins it at once. The context of the run is cancelled, and the next run
// begins when the function has returned: there are never two. The restart does not count
// against the [Backoff], and after a later failure the worker waits for Min again. What
// the function returns does not matter, but [ErrDoNotRestart] and [ErrTerminate] end the
// worker as they always do.
//
// Restart returns nil once the next run is Running, and otherwise the error of that run or
// of the worker's end. When ctx ends first, it returns ctx's cause and the restart goes on.
// It returns [ErrNotRestartable] and does nothing when the worker was not started, is
// stopping, has ended, or after HoldRestarts. Calls at the same time are one
// restart.
func (r *Restarter) Restart(ctx context.Context) error {
	again, err := r.askAgain()
	if err != nil {
		return err
	}
	select {
	case <-again:
	case <-r.Done():
		return fmt.Errorf("it has ended in place of a restart: it is %s", r.Status())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	next := r.current()
	s, err := next.Await(ctx, func(s Status) bool { return s != StatusStarting })
	switch {
	case err != nil:
		return err
	case s == StatusFailed:
		return next.Err()
	}
	return nil
}

// askAgain ends the current run, or the wait for it. It returns a channel that is closed
// when the next one has begun.
func (r *Restarter) askAgain() (again <-chan struct{}, err error) {
	r.runMu.Lock()
	defer r.runMu.Unlock()
	switch s := r.Status(); {
	case r.run == nil || s == StatusStopping || s.Terminal():
		return nil, fmt.Errorf("%w: it is %s", ErrNotRestartable, s)
	case r.hold.HasSignaled():
		return nil, fmt.Errorf("%w: it is about to stop", ErrNotRestartable)
	}
	if r.restarted == nil {
		r.restarted = make(chan struct{})
	}
	if r.run.Status() == StatusPending {
		r.wake.Notify()
	} else {
		r.run.RequestStop(errRestartAsked)
	}
	return r.restarted, nil
}

// isRestartAsked reports whether a Restart waits for the next run.
func (r *Restarter) isRestartAsked() bool {
	r.runMu.Lock()
	defer r.runMu.Unlock()
	return r.restarted != nil
}
