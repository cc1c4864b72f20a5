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
type Restarter struct {
	BaseWorker
	fn      func(context.Context) error
	opts    []FuncOption
	backoff Backoff

	begun  sync.Mutex // orders Start against Stop
	cancel context.CancelCauseFunc
	hold   fsm.Signal // HoldRestarts was called

	log restartLog // the loop alone uses it

	nowMu    sync.Mutex // guards everything below
	child    *Func
	last     *Exit // how the run before the current one ended
	runs     int   // made so far, the pending one too
	restarts int
	gate     chan struct{} // not nil while suspended; Resume closes it
}

// NewRestarter returns a worker that runs fn until it returns nil or
// [ErrDoNotRestart]. After a failure, or a panic, it starts fn again after the
// wait that backoff says. [ErrTerminate] and a spent budget make the worker fail.
func NewRestarter(name string, fn func(context.Context) error, backoff Backoff, opts ...FuncOption) *Restarter {
	r := &Restarter{fn: fn, opts: opts, backoff: backoff}
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
	if err := r.Begin(own); err != nil {
		cancel(nil)
		return err
	}
	r.cancel = cancel
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
		r.Finish(err)
		cancel(nil)
		return err
	}
	call.Go(r.Name(), func() error { return r.loop(own, first) }, func(err error) {
		// The worker ends with the result of its last run.
		child := r.current()
		if child.Killed() {
			r.Kill(err)
			<-child.Gone() // it was abandoned, and may return later
		}
		r.Finish(err)
		cancel(nil)
	})
	return nil
}

// instance makes run n. The one before it has ended.
func (r *Restarter) instance() (child *Func, n int) {
	child = &Func{fn: r.fn}
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	r.runs++
	child.initRun("func", &r.BaseWorker, r.runs)
	child.apply(r.opts)
	if r.child != nil {
		r.last = &Exit{Status: r.child.Status(), Error: r.child.Err().Error(), Code: -1, At: time.Now()}
	}
	r.child = child
	return child, r.runs
}

// LogTo makes the worker log each failure that it answers with a restart: the error,
// the number of the restart, and the wait before it. There is at most one line a second,
// so the numbers may jump. Call LogTo before Start.
func (r *Restarter) LogTo(log *slog.Logger) { r.log.log = log }

func (r *Restarter) loop(ctx context.Context, child *Func) error {
	delays := r.backoff.delays()
	for {
		_, _ = child.Await(ctx, func(s Status) bool { return s == StatusRunning || s.Terminal() })
		if !child.StartedAt().IsZero() {
			r.MarkRunning()
		}
		<-child.Done()
		err := child.Err()
		if ctx.Err() != nil || err == nil {
			return err
		}
		switch {
		case errors.Is(err, ErrTerminate):
			return err
		case errors.Is(err, ErrDoNotRestart):
			if call.Only(err, func(e error) bool { return call.Same(e, ErrDoNotRestart) }) {
				return nil
			}
			return err // something has failed as well
		}
		var uptime time.Duration // without the time that the start took
		if at := child.StartedAt(); !at.IsZero() {
			uptime = time.Since(at)
		}
		wait, ok := delays.failed(time.Now(), uptime)
		if !ok {
			return fmt.Errorf("%w (%d restarts in %v): %w", ErrRestartBudget, delays.MaxRestarts, delays.Window, err)
		}
		if r.hold.HasSignaled() {
			return err
		}
		next, runs := r.instance() // a stop from now on ends a pending run, and is clean in spite of the failure
		_ = next.hold(&BackoffError{Name: r.Name(), Wait: wait, Due: time.Now().Add(wait), Failures: delays.failures, Err: err}, time.Now().Add(wait))
		if r.log.due() {
			r.log.say("unit failed, and is restarted", call.Unnamed(r.Name(), err), runs-1, wait, "unit", r.Name())
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-r.hold.Signaled():
		}
		timer.Stop()
		started := false
		for gate := r.gated(); ctx.Err() == nil && !r.hold.HasSignaled(); gate = r.gated() {
			if gate == nil {
				if started, gate = r.again(ctx, next); started || gate == nil {
					break
				}
			}
			select {
			case <-gate:
			case <-ctx.Done():
			case <-r.hold.Signaled():
			}
		}
		if !started {
			next.RequestStop(ErrStopRequested)
			r.RequestStop(ErrStopRequested)
			return nil
		}
		child = next
	}
}

// again starts the next run, unless the worker has to end. Stop cancels under the
// same lock, so the run that it sees is the last one. Suspend sets its gate under
// the same lock; when there is a gate, again returns it.
func (r *Restarter) again(ctx context.Context, next *Func) (started bool, gate <-chan struct{}) {
	r.begun.Lock()
	defer r.begun.Unlock()
	if gate = r.gated(); gate != nil {
		return false, gate
	}
	if ctx.Err() != nil || r.hold.HasSignaled() || next.Start(ctx) != nil {
		return false, nil
	}
	r.nowMu.Lock()
	r.restarts++
	r.nowMu.Unlock()
	return true, nil
}

// gated returns the channel that a start has to wait for, or nil.
func (r *Restarter) gated() <-chan struct{} {
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	return r.gate
}

// HoldRestarts makes the current run the last one; it does not stop it. A run that
// waits for its backoff never starts. An App calls it when it begins to drain.
func (r *Restarter) HoldRestarts() { r.hold.Signal() }

// Stop cancels the current run, or the wait for the next one, and waits for its
// end. When ctx ends first, Stop abandons the function, as [Func.Stop] does.
func (r *Restarter) Stop(ctx context.Context) error {
	r.begun.Lock()
	live := r.RequestStop(ErrStopRequested)
	if r.cancel != nil {
		r.cancel(ErrStopRequested)
	}
	child := r.current()
	r.begun.Unlock()
	if child == nil || !live {
		return r.killedErr()
	}
	// This is the last run (see again): when it has ended, the loop ends at once.
	err := child.Stop(ctx)
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
