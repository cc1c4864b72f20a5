package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
// A Restarter has no goroutine of its own: the goroutine of a run makes the next one, and
// a timer starts it.
type Restarter struct {
	BaseWorker
	fn      func(context.Context) error
	opts    []FuncOption
	backoff Backoff
	hold    fsm.Signal // HoldRestarts was called

	begun   sync.Mutex // orders Start, Stop, and the beginning of runs; guards everything up to logging
	own     context.Context
	cancel  context.CancelCauseFunc
	delays  *delays
	pending *Func // waits for its backoff, or for a Resume
	due     bool  // the backoff of pending is over
	timer   *time.Timer
	unwatch func() bool   // ends the watch on own for pending
	again   chan struct{} // closed by the next run, for Restart; nil while none was asked for

	logging sync.Mutex // guards log
	log     restartLog

	nowMu    sync.Mutex // guards everything below
	child    *Func
	last     *Exit // how the run before the current one ended
	runs     int   // made so far, the pending one too
	restarts int
	gated    bool // no run begins while suspended
}

// NewRestarter returns a worker that runs fn until it returns nil or
// [ErrDoNotRestart]. After a failure, or a panic, it starts fn again after the
// wait that backoff says. [ErrTerminate] and a spent budget make the worker fail.
func NewRestarter(name string, fn func(context.Context) error, backoff Backoff, opts ...FuncOption) *Restarter {
	r := &Restarter{fn: fn, opts: opts, backoff: backoff}
	r.patient = true
	r.Init("restarter", name)
	return r
}

// Start begins the first run and returns. Cancelling ctx asks the worker to stop.
// With an invalid backoff, or without a function, Start returns an error and the
// worker is Failed.
func (r *Restarter) Start(ctx context.Context) error {
	r.begun.Lock()
	defer r.begun.Unlock()
	own, cancel := context.WithCancelCause(ctx)
	if err := r.begin(own, ctx, false); err != nil {
		cancel(nil)
		return err
	}
	r.own, r.cancel, r.delays = own, cancel, r.backoff.delays()
	err := r.backoff.Validate()
	if i := slices.IndexFunc(r.opts, func(o FuncOption) bool { return o == nil }); err == nil && i >= 0 {
		err = nilOption(i)
	}
	if err != nil {
		err = fmt.Errorf("start %s: %w", r.Name(), err)
	}
	first, _ := r.instance()
	if err == nil {
		err = first.Start(own)
	} else {
		first.RequestStop(ErrStopRequested) // it never starts
	}
	if err != nil {
		r.end(err)
		return err
	}
	r.follow(first)
	return nil
}

// end ends the worker.
func (r *Restarter) end(err error) {
	r.Finish(err)
	r.cancel(nil)
}

// follow makes the worker Running when its run has reached that.
func (r *Restarter) follow(run *Func) {
	if !run.StartedAt().IsZero() {
		r.MarkRunning()
	}
}

// instance makes run n. The one before it has ended.
func (r *Restarter) instance() (child *Func, n int) {
	child = &Func{fn: r.fn, whole: r}
	child.patient = true
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	r.runs++
	child.initRun("func", &r.BaseWorker, r.runs)
	child.apply(r.opts)
	if r.child != nil {
		r.last = exitOfWorker(r.child.Status(), r.child.Err(), time.Now()) // without an error after a Restart
	}
	r.child = child
	return child, r.runs
}

// LogTo makes the worker log each failure that it answers with a restart: the error,
// the number of the restart, and the wait before it. There is at most one line a second,
// so the numbers may jump. Call LogTo before Start.
func (r *Restarter) LogTo(log *slog.Logger) { r.log.log = log }

// runEnded acts on the end of a run, on the goroutine of the run.
func (r *Restarter) runEnded(run *Func) {
	r.follow(run)
	wait, err := r.verdict(run)
	if wait < 0 {
		r.end(err)
		return
	}
	due := time.Now().Add(wait)
	var why error = &BackoffError{Name: r.Name(), Wait: wait, Due: due, Failures: r.delays.failures, Err: err}
	r.begun.Lock()
	asked := r.again != nil
	if asked {
		why = errRestartAsked
	}
	next, runs := r.instance() // a stop from now on ends a pending run, and is clean in spite of the failure
	_ = next.hold(why, due)
	r.pending, r.due = next, asked // with instance under one lock: a Restart must not take next for the run that has to end
	r.timer = time.AfterFunc(wait, func() { r.goOn(true) })
	r.unwatch = context.AfterFunc(r.own, func() { r.goOn(false) })
	r.goOnLocked()
	r.begun.Unlock()
	if !asked && r.logging.TryLock() { // else a handler blocks
		defer r.logging.Unlock()
		if r.log.due() {
			r.log.say("unit failed, and is restarted", call.Unnamed(r.Name(), err), runs-1, wait, "unit", r.Name())
		}
	}
}

// verdict returns how long the worker waits after a run before the next one, or less than
// 0 and the worker's own result when the run was the last.
func (r *Restarter) verdict(run *Func) (wait time.Duration, err error) {
	err = run.Err()
	asked := r.isAskedAgain()
	switch {
	case r.own.Err() != nil || err == nil && !asked, errors.Is(err, ErrTerminate):
		return -1, err
	case errors.Is(err, ErrDoNotRestart):
		if call.Only(err, func(e error) bool { return call.Same(e, ErrDoNotRestart) }) {
			return -1, nil
		}
		return -1, err // something has failed as well
	case asked && r.hold.HasSignaled():
		return -1, nil
	case asked:
		r.delays.failures = 0
		return 0, nil
	}
	var uptime time.Duration // without the time that the start took
	if at := run.StartedAt(); !at.IsZero() {
		uptime = time.Since(at)
	}
	wait, ok := r.delays.failed(time.Now(), uptime)
	switch {
	case !ok:
		return -1, fmt.Errorf("%w (%d restarts in %v): %w", ErrRestartBudget, r.delays.MaxRestarts, r.delays.Window, err)
	case r.hold.HasSignaled():
		return -1, err
	}
	return wait, err
}

// goOn starts the pending run when it may start, or ends it when the worker has to end.
// due says that its backoff is over.
func (r *Restarter) goOn(due bool) {
	r.begun.Lock()
	defer r.begun.Unlock()
	r.due = r.due || due
	r.goOnLocked()
}

// goOnLocked is goOn. Stop cancels under the same lock, so the run that it sees is the
// last one; Suspend closes its gate under the same lock.
func (r *Restarter) goOnLocked() {
	next := r.pending
	over := next != nil && (r.own.Err() != nil || r.hold.HasSignaled())
	if next == nil || !over && (!r.due || r.isGated()) {
		return
	}
	r.pending = nil
	r.timer.Stop()
	r.unwatch()
	if !over {
		r.countRestart(1) // before the Start, because the run may end at once
		over = next.Start(r.own) != nil
		if over {
			r.countRestart(-1)
		}
	}
	if over {
		next.RequestStop(ErrStopRequested)
		r.RequestStop(ErrStopRequested)
		r.end(nil)
		return
	}
	if r.again != nil {
		close(r.again)
		r.again = nil
	}
	r.follow(next)
}

func (r *Restarter) countRestart(n int) {
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	r.restarts += n
}

func (r *Restarter) isGated() bool {
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	return r.gated
}

// HoldRestarts makes the current run the last one; it does not stop it. A run that
// waits for its backoff never starts. An App calls it when it begins to drain.
func (r *Restarter) HoldRestarts() {
	r.hold.Signal()
	r.goOn(false)
}

// Stop cancels the current run, or the wait for the next one, and waits for its
// end. When ctx ends first, Stop abandons the function, as [Func.Stop] does.
func (r *Restarter) Stop(ctx context.Context) error {
	r.begun.Lock()
	live := r.RequestStop(ErrStopRequested)
	if r.cancel != nil {
		r.cancel(ErrStopRequested)
	}
	child := r.current()
	r.goOnLocked()
	r.begun.Unlock()
	if child == nil || !live {
		return r.killedErr()
	}
	// This is the last run (see goOnLocked): when it has ended, the worker ends at once.
	err := child.Stop(ctx)
	if child.Killed() {
		r.Kill(child.Err())
	}
	<-r.Done()
	return err
}

func (r *Restarter) current() *Func {
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	return r.child
}

// State describes the worker, with the current run as its child. While it waits for a
// restart, Reason and Due say why and until when. Exit says how the run before the
// current one ended.
func (r *Restarter) State() State {
	s := r.BaseWorker.State()
	r.nowMu.Lock()
	child, restarts, last := r.child, r.restarts, r.last
	r.nowMu.Unlock()
	s.Restarts = restarts
	if child != nil {
		run := child.State()
		s.Children = []State{run}
		if !s.Status.Terminal() {
			s.Reason, s.Due, s.Exit = run.Reason, run.Due, last
		}
	}
	return s
}
