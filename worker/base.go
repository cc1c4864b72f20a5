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

// BaseWorker is the part that all workers have in common: the status, whether the
// worker was asked to stop or was killed, and how it ended. To make a worker,
// embed it. Call [BaseWorker.Init] before anything else and [BaseWorker.Begin] in
// Start, change the status with [BaseWorker.SetStatus], and pass the result of
// the work to [BaseWorker.Finish]. All methods may be called concurrently.
type BaseWorker struct {
	kind    string
	machine fsm.Machine[Status]
	gone    fsm.Signal // none of its code runs any more

	mu            sync.Mutex // guards everything below, and is held around every change of status
	stopRequested bool
	killed        bool
	ended         bool
	claimed       bool // a supervisor has it
	err           error
	startedAt     time.Time
	health        Health
	healthAt      time.Time
	reason        string    // why it is pending, or not Running yet
	due           time.Time // when a pending worker may start
	onEnd         []func()
	events        *fsm.Dispatcher // its own; nil before it has readers or parts of its own

	ctx     context.Context         // the work's own context; nil before Begin
	cancel  context.CancelCauseFunc // cancels ctx; nil for a worker that does so itself
	unwatch func() bool             // ends the watch on the context given to Start; nil for none

	suspending chan struct{} // has a token while a Suspend or Resume takes effect; made by the first
}

// Init sets the worker's kind ("func", "process", …) and name.
func (b *BaseWorker) Init(kind, name string) {
	b.kind = kind
	life.Begin(&b.machine, name, StatusCreated, nil)
}

// initRun makes b run n of whole, which runs the same work again and again: its
// changes are events of whole's life, with n as their Attempt.
func (b *BaseWorker) initRun(kind string, whole *BaseWorker, n int) {
	b.kind = kind
	whole.machine.BeginAttempt(&b.machine, n, StatusCreated)
}

// takeOver makes b continue the life of held, which was Pending in its place. b
// must not have begun. takeOver does nothing when either worker has changed
// since.
func (b *BaseWorker) takeOver(held *BaseWorker) {
	held.mu.Lock()
	reason, due := held.reason, held.due
	held.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusCreated || !b.machine.Continue(&held.machine) {
		return
	}
	b.reason, b.due = reason, due
	if b.events != nil {
		b.events.SetOwner(b.machine.ID())
	}
}

// ID returns the ID of the worker's life, which its events carry. It may change
// until Start is called: an instance that a [Supervisor] starts after a wait
// continues the life that was Pending in its place.
func (b *BaseWorker) ID() uint64 { return b.machine.ID() }

// Name returns the worker's name.
func (b *BaseWorker) Name() string { return b.machine.Name() }

// Done returns a channel that is closed once the worker is in a terminal status.
func (b *BaseWorker) Done() <-chan struct{} { return b.machine.Done() }

// Status returns the worker's status.
func (b *BaseWorker) Status() Status { return b.machine.State() }

// Gone returns a channel that is closed once none of the worker's code runs any
// more. Usually that is when [BaseWorker.Done] closes. A worker that was
// abandoned is done, but not gone before it has returned by itself. Until then no
// other worker may take its place.
func (b *BaseWorker) Gone() <-chan struct{} { return b.gone.Signaled() }

// self returns b. A supervisor finds the base of a worker that embeds it by this
// method.
func (b *BaseWorker) self() *BaseWorker { return b }

// SetStatus changes the status. For a change that the table does not have, and
// for a word that is not a status, it returns an [*fsm.TransitionError] and
// changes nothing. Stopping also records a request to stop. A terminal status
// ends the worker without an error and means that none of its code runs any more;
// a later Finish changes nothing.
func (b *BaseWorker) SetStatus(to Status) error {
	b.mu.Lock()
	if err := b.setLocked(to, nil); err != nil {
		b.mu.Unlock()
		return err
	}
	if to == StatusStopping {
		b.stopRequested = true
	}
	var after func()
	if to.Terminal() {
		b.killed = to == StatusKilled
		after = b.endedLocked()
	}
	b.mu.Unlock()
	if after != nil {
		b.gone.Signal()
		after()
	}
	return nil
}

func (b *BaseWorker) setLocked(to Status, cause error) error {
	if err := b.machine.To(to, cause); err != nil {
		return err
	}
	if to != StatusPending {
		b.reason, b.due = "", time.Time{}
	}
	if to == StatusRunning && b.startedAt.IsZero() {
		_, b.startedAt = b.machine.Since()
	}
	return nil
}

// Hold makes a created worker pending. reason says why it waits, and due when it
// may start.
func (b *BaseWorker) Hold(reason string, due time.Time) error {
	return b.hold(errors.New(reason), due)
}

// hold is Hold with the cause of the event. For a worker that is pending already it
// changes the reason, without an event.
func (b *BaseWorker) hold(cause error, due time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusPending {
		if err := b.setLocked(StatusPending, cause); err != nil {
			return err
		}
	}
	b.reason, b.due = cause.Error(), due
	return nil
}

// setReason says why a starting worker is not Running yet.
func (b *BaseWorker) setReason(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() == StatusStarting {
		b.reason = reason
	}
}

// Begin moves a created or pending worker to Starting. ctx is the context of its
// work: once ctx is cancelled, the worker counts as asked to stop. For a worker
// in any other status Begin returns an error that wraps [ErrNotStartable].
func (b *BaseWorker) Begin(ctx context.Context) error { return b.begin(ctx, ctx, nil) }

// beginWork is Begin for a worker whose work has a context of its own, which it
// returns. RequestStop and the end of the worker cancel that context.
func (b *BaseWorker) beginWork(ctx context.Context) (own context.Context, err error) {
	own, cancel := context.WithCancelCause(ctx)
	if err := b.begin(own, ctx, cancel); err != nil {
		cancel(nil)
		return nil, err
	}
	return own, nil
}

func (b *BaseWorker) begin(ctx, parent context.Context, cancel context.CancelCauseFunc) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setLocked(StatusStarting, nil); err != nil {
		return fmt.Errorf("start %s: %w: it is %s", b.Name(), ErrNotStartable, b.machine.State())
	}
	b.ctx, b.cancel = ctx, cancel
	if parent.Done() != nil {
		b.unwatch = context.AfterFunc(parent, func() { b.RequestStop(b.causeOf(parent)) })
	}
	return nil
}

// hasBegun reports whether Begin has been called and has succeeded.
func (b *BaseWorker) hasBegun() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ctx != nil
}

// causeOf returns the cause of a context that has ended.
func (b *BaseWorker) causeOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled { //nolint:errorlint // the usual one, itself
		return cause
	}
	return call.Take("the cause of "+b.Name()+"'s context", cause)
}

// MarkRunning moves a starting worker to Running. It does nothing when the worker
// is being stopped or has ended.
func (b *BaseWorker) MarkRunning() { b.markRunning(nil) }

// markRunning is MarkRunning with a cause, which the event carries.
func (b *BaseWorker) markRunning(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() == StatusStarting {
		_ = b.setLocked(StatusRunning, cause)
	}
}

// RequestStop records that the worker was asked to stop. A worker that has not
// begun becomes Stopped at once; one that has begun becomes Stopping. RequestStop
// reports whether the worker still has to end. A second call changes nothing.
func (b *BaseWorker) RequestStop(cause error) (live bool) {
	b.mu.Lock()
	var after func()
	switch s := b.machine.State(); {
	case s.Terminal():
	case s == StatusCreated || s == StatusPending:
		b.stopRequested = true
		after = b.finishLocked(nil)
	default:
		live = true
		if s != StatusStopping {
			b.stopRequested = true
			_ = b.setLocked(StatusStopping, cause) // every status that is possible here has this edge
		}
	}
	cancel, unwatch := b.cancel, b.unwatch
	b.mu.Unlock()
	switch {
	case after != nil:
		b.gone.Signal()
		after()
	case live:
		if unwatch != nil {
			unwatch() // the watch has nothing left to do: end its goroutine
		}
		if cancel != nil {
			cancel(cause)
		}
	}
	return live
}

// DeriveFinalStatus returns the worker's final status. For a worker that has not
// ended, it returns the status that [FinalStatus] would choose now.
func (b *BaseWorker) DeriveFinalStatus() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.machine.State(); s.Terminal() {
		return s
	}
	return FinalStatus(b.killed, b.stopRequested, b.err)
}

// StopRequested reports whether the worker was asked to stop, by Stop or by the
// end of the context given to Start.
func (b *BaseWorker) StopRequested() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopRequested
}

// Killed reports whether the worker was ended by force or abandoned.
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

// StartedAt returns when the worker reached Running, or the zero time.
func (b *BaseWorker) StartedAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.startedAt
}

// UpdatedAt returns when the worker's status or health last changed.
func (b *BaseWorker) UpdatedAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.updatedLocked()
}

func (b *BaseWorker) updatedLocked() time.Time {
	_, at := b.machine.Since()
	if b.healthAt.After(at) {
		return b.healthAt
	}
	return at
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
		Name:      b.Name(),
		Kind:      b.kind,
		Status:    b.machine.State(),
		Health:    b.health,
		Reason:    b.reason,
		Due:       b.due,
		StartedAt: b.startedAt,
		UpdatedAt: b.updatedLocked(),
	}
	if b.err != nil {
		s.Error = b.err.Error()
	}
	return s
}

// Await waits for a status for which until returns true, and returns it. It calls
// until with the present status and every later one. When ctx ends first, it
// returns ctx's error. until must return at once and must not call the worker.
func (b *BaseWorker) Await(ctx context.Context, until func(Status) bool) (Status, error) {
	return b.machine.Wait(ctx, until)
}

// Watch returns a reader of the changes of this worker and its children from now
// on. The reader keeps at most buffer unread events; a gap event takes the place
// of lost ones. Close the reader when you no longer use it.
func (b *BaseWorker) Watch(buffer int) *fsm.Subscription { return b.dispatcher().Subscribe(buffer) }

// dispatcher returns the worker's own dispatcher. It owns the events of the worker's
// parts, and forwards all to where the worker's own changes went before.
func (b *BaseWorker) dispatcher() *fsm.Dispatcher {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.events == nil {
		b.events = &fsm.Dispatcher{}
		b.events.SetOwner(b.machine.ID())
		b.events.Forward(b.machine.Events())
		b.machine.PublishTo(b.events)
	}
	return b.events
}

// PublishTo also sends the changes of this worker and its children to events, as
// [fsm.Dispatcher.Forward] does. A later call replaces an earlier one.
func (b *BaseWorker) PublishTo(events *fsm.Dispatcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.events != nil {
		b.events.Forward(events)
	} else {
		b.machine.PublishTo(events)
	}
}

// Adopt makes child a part of b: child publishes its events where b does, with
// b's life as their Parent. Call it before child starts.
func (b *BaseWorker) Adopt(child interface{ PublishTo(*fsm.Dispatcher) }) {
	child.PublishTo(b.dispatcher())
}
