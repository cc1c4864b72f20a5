package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// BaseWorker is the part that all workers have in common: the status, whether it was
// asked to stop or killed, and how it ended. Embed it, call [BaseWorker.Init] before
// anything else and [BaseWorker.Begin] when it starts, change the status with
// [BaseWorker.SetStatus], and hand the result of the work to [BaseWorker.Finish].
// All methods may be called concurrently.
type BaseWorker struct {
	name, kind string
	machine    *fsm.Machine[Status]
	events     fsm.Dispatcher

	gone fsm.Signal // nothing of it runs any more

	mu            sync.Mutex // guards everything below, and is held around every change of status
	stopRequested bool
	killed        bool
	ended         bool
	hook          func() // called when it has ended, and when it is gone
	err           error
	ctx           context.Context // the work's own; nil before Begin
	unwatch       func() bool     // ends the watch on ctx
	health        Health
	pending       *pending // nil unless it is pending
	startedAt     time.Time
	healthAt      time.Time
}

// pending is what holds a worker back.
type pending struct {
	reason string
	due    time.Time
}

// Init names the worker. kind is what it is ("func", "process", …).
func (b *BaseWorker) Init(kind, name string) {
	b.kind, b.name = kind, name
	b.machine = fsm.MustNew(KindWorker, name, transitions, StatusCreated, &b.events)
	b.events.SetOwner(b.machine.ID())
}

// initRun makes b run n of whole, which runs the same work again and again: its
// changes are events of whole's life, with n as their Attempt.
func (b *BaseWorker) initRun(kind string, whole *BaseWorker, n int) {
	b.kind, b.name = kind, whole.name
	b.machine = whole.machine.Attempt(n, StatusCreated)
}

// takeOver makes b, which has not begun, go on with the life of held, which was
// Pending in its place. It does nothing when either has changed since.
func (b *BaseWorker) takeOver(held *BaseWorker) {
	held.mu.Lock()
	why := held.pending
	held.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusCreated || !b.machine.Continue(held.machine) {
		return
	}
	b.pending = why
	b.events.SetOwner(b.machine.ID())
}

// ID returns the ID of the worker's life, which its events carry. It changes no more
// once Start was called: an instance that a [Supervisor] starts after a wait goes on
// with the life that was Pending in its place.
func (b *BaseWorker) ID() uint64 { return b.machine.ID() }

// Adopt makes child a part of b: the events of child go where those of b go, and b's
// life is their Parent. Call it before child starts.
func (b *BaseWorker) Adopt(child interface{ PublishTo(*fsm.Dispatcher) }) {
	child.PublishTo(&b.events)
}

// Name returns the worker's name.
func (b *BaseWorker) Name() string { return b.name }

// Done is closed once the worker is in a terminal status.
func (b *BaseWorker) Done() <-chan struct{} { return b.machine.Done() }

// Status returns the status it is in.
func (b *BaseWorker) Status() Status { return b.machine.State() }

// Await returns the first status, now or later, for which until is true. It
// misses none. When ctx ends first it returns ctx's error. until must return at
// once and must not call the worker.
func (b *BaseWorker) Await(ctx context.Context, until func(Status) bool) (Status, error) {
	return b.machine.Wait(ctx, until)
}

// Gone returns a channel that is closed once nothing of the worker runs any more.
// Mostly that is when it is [BaseWorker.Done]. A worker that was abandoned is done,
// and is gone once it has returned by itself; until then no other worker may take its
// place.
func (b *BaseWorker) Gone() <-chan struct{} { return b.gone.Signaled() }

// self returns the base of a worker that embeds it.
func (b *BaseWorker) self() *BaseWorker { return b }

// hookEnd makes the worker call fn when it has ended, and again when it is gone if
// that is later. It calls fn under its lock: fn must return at once and must not call
// the worker. Call hookEnd before the worker starts.
func (b *BaseWorker) hookEnd(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = fn
}

// goneLocked records, once, that nothing of it runs any more.
func (b *BaseWorker) goneLocked() {
	if b.gone.Signal() && b.hook != nil {
		b.hook()
	}
}

// Watch returns a reader of the changes of this worker and its children from now on.
// It keeps at most buffer unread events, and a gap event stands for those that it has
// lost. Close it when you no longer read it.
func (b *BaseWorker) Watch(buffer int) *fsm.Subscription { return b.events.Subscribe(buffer) }

// PublishTo also sends the changes of this worker and its children to events, as
// [fsm.Dispatcher.Forward] does. A later call replaces an earlier one.
func (b *BaseWorker) PublishTo(events *fsm.Dispatcher) { b.events.Forward(events) }

// SetStatus changes the status. A change that the table does not have, and a
// word that is no status, is an [*fsm.TransitionError] and changes nothing.
// Stopping records a request to stop. A terminal status ends the worker without an
// error and says that nothing of it runs any more; a Finish after it changes nothing.
func (b *BaseWorker) SetStatus(to Status) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setLocked(to, nil); err != nil {
		return err
	}
	switch {
	case to.Terminal():
		b.ended, b.killed = true, to == StatusKilled
		if b.unwatch != nil {
			b.unwatch()
		}
		b.goneLocked()
	case to == StatusStopping:
		b.stopRequested = true
	}
	return nil
}

func (b *BaseWorker) setLocked(to Status, cause error) error {
	if err := b.machine.To(to, cause); err != nil {
		return err
	}
	if to != StatusPending {
		b.pending = nil
	}
	if to == StatusRunning && b.startedAt.IsZero() {
		b.startedAt = time.Now()
	}
	return nil
}

// Hold makes a created worker pending: reason says what holds it back, due when it
// may start.
func (b *BaseWorker) Hold(reason string, due time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setLocked(StatusPending, errors.New(reason)); err != nil {
		return err
	}
	b.pending = &pending{reason, due}
	return nil
}

// rehold changes what holds a pending worker back. It reports false when it is not
// pending.
func (b *BaseWorker) rehold(reason string, due time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusPending {
		return false
	}
	b.pending = &pending{reason, due}
	return true
}

// Begin moves a created or pending worker to Starting. ctx is the context that
// its work runs under: once that is cancelled the worker counts as asked to
// stop. For a worker in any other status Begin returns an error that wraps
// [ErrNotStartable].
func (b *BaseWorker) Begin(ctx context.Context) error {
	return b.begin(ctx, ctx)
}

// begin is Begin for a worker that cancels ctx itself when it is stopped. Only parent,
// which ctx was made of, needs a watch.
func (b *BaseWorker) begin(ctx, parent context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setLocked(StatusStarting, nil); err != nil {
		return fmt.Errorf("start %s: %w: it is %s", b.name, ErrNotStartable, b.machine.State())
	}
	b.ctx = ctx
	if parent.Done() != nil {
		b.unwatch = context.AfterFunc(parent, func() { b.RequestStop(call.Take("the cause of "+b.name+"'s context", context.Cause(parent))) })
	}
	return nil
}

// MarkRunning moves a starting worker to Running. One that is being stopped, or
// has ended, stays as it is.
func (b *BaseWorker) MarkRunning() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() == StatusStarting {
		_ = b.setLocked(StatusRunning, nil)
	}
}

// RequestStop records that the worker was asked to stop. One that has not begun
// is Stopped at once; one that has begun is Stopping. It reports whether the
// worker still has to end. Asking again changes nothing.
func (b *BaseWorker) RequestStop(cause error) (live bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := b.machine.State(); {
	case s.Terminal():
		return false
	case s == StatusCreated || s == StatusPending:
		b.stopRequested = true
		b.finishLocked(nil)
		b.goneLocked()
		return false
	case s != StatusStopping:
		b.stopRequested = true
		if b.unwatch != nil {
			b.unwatch() // it has nothing left to do: spare the goroutine
		}
		_ = b.setLocked(StatusStopping, cause) // every status that comes here has that edge
	}
	return true
}

// Kill records that the worker did not stop when asked and was ended by force or
// abandoned, with err. It reports false, and changes nothing, when the worker has
// ended by itself meanwhile. Call [BaseWorker.Finish] once nothing of it runs any
// more.
func (b *BaseWorker) Kill(err error) bool {
	err = call.Freeze(b.name, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.killed = true
	b.finishLocked(err)
	if b.hook != nil {
		b.hook()
	}
	return true
}

// Finish ends the worker with the result of its work. The final status is
// [FinalStatus] of what is known. An error that says no more than that the
// worker's own context was cancelled, context.Canceled or the context's cause,
// is wrapped in [ErrInterrupted]. context.Canceled of another context and a deadline
// that passed are failures.
//
// Finish also says that nothing of the worker runs any more. For a worker that has
// ended already, because it was abandoned, it says only that. A further call changes
// nothing.
func (b *BaseWorker) Finish(err error) {
	err = call.Freeze(b.name, err) // in the goroutine of the caller, whose error it is
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone.HasSignaled() {
		return
	}
	defer b.goneLocked()
	if b.ended {
		return
	}
	if b.ctx != nil && b.ctx.Err() != nil {
		if !b.stopRequested { // the watch on ctx comes later
			b.stopRequested = true
			_ = b.setLocked(StatusStopping, call.Take("the cause of "+b.name+"'s context", context.Cause(b.ctx)))
		}
		if err != nil && !errors.Is(err, ErrInterrupted) && means(b.ctx, err) {
			err = fmt.Errorf("%w: %w", ErrInterrupted, err)
		}
	}
	b.finishLocked(err)
}

// abandon ends the worker with err while something of it still runs. Call Finish once
// that has returned.
func (b *BaseWorker) abandon(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.finishLocked(err)
	if b.hook != nil {
		b.hook()
	}
}

// means reports whether err says only that ctx was cancelled, in itself or in all of
// its parts: a failure that was joined with such an error is still a failure.
func means(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	if call.Same(cause, context.DeadlineExceeded) {
		cause = context.Canceled // a deadline that passed is a failure
	}
	return call.Only(err, func(e error) bool { return call.Same(e, context.Canceled) || call.Same(e, cause) })
}

// finishLocked changes to the final status. Where no edge leads there directly, the
// worker passes through the status that it skipped: a function that has returned was
// Running, a killed one was Stopping.
func (b *BaseWorker) finishLocked(err error) {
	final := FinalStatus(b.killed, b.stopRequested, err)
	b.ended, b.err = true, err
	if b.unwatch != nil {
		b.unwatch()
	}
	if b.setLocked(final, err) == nil {
		return
	}
	if s := b.machine.State(); s == StatusCreated || s == StatusPending {
		_ = b.setLocked(StatusStarting, nil)
	}
	via := StatusRunning
	if b.killed || b.stopRequested {
		via = StatusStopping
	}
	_ = b.setLocked(via, nil)
	_ = b.setLocked(final, err)
}

// DeriveFinalStatus returns the status that the worker would end in now, by
// [FinalStatus], or the one that it has ended in.
func (b *BaseWorker) DeriveFinalStatus() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.machine.State(); s.Terminal() {
		return s
	}
	return FinalStatus(b.killed, b.stopRequested, b.err)
}

// StopRequested reports whether the worker was asked to stop, by Stop or by the
// context given to Start.
func (b *BaseWorker) StopRequested() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopRequested
}

// Killed reports whether it was ended by force or abandoned.
func (b *BaseWorker) Killed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.killed
}

// Err returns the error that the worker ended with, nil before it has ended.
func (b *BaseWorker) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// killedErr is what Stop returns for a worker that has ended.
func (b *BaseWorker) killedErr() error {
	if b.Killed() {
		return b.Err()
	}
	return nil
}

// StartedAt returns when it reached Running, or the zero time.
func (b *BaseWorker) StartedAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.startedAt
}

// UpdatedAt returns when its status or its health last changed.
func (b *BaseWorker) UpdatedAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.updatedLocked()
}

func (b *BaseWorker) updatedLocked() time.Time {
	if _, at := b.machine.Since(); at.After(b.healthAt) {
		return at
	}
	return b.healthAt
}

// SetHealth sets the worker's health.
func (b *BaseWorker) SetHealth(h Health) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h != b.health {
		b.health, b.healthAt = h, time.Now()
	}
}

// State describes the worker, without children.
func (b *BaseWorker) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := State{
		Name: b.name, Kind: b.kind, Status: b.machine.State(), Health: b.health,
		StartedAt: b.startedAt, UpdatedAt: b.updatedLocked(),
	}
	if p := b.pending; p != nil {
		s.Reason, s.Due = p.reason, p.due
	}
	if b.err != nil {
		s.Error = b.err.Error()
	}
	return s
}
