package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
	events  fsm.Dispatcher

	gone fsm.Signal // none of its code runs any more

	patient bool        // the worker may notice late that its context has ended; set before Start
	unseen  atomic.Bool // nothing watches the context

	mu            sync.Mutex // guards everything below, and is held around every change of status
	stopRequested bool
	killed        bool
	ended         bool
	claimed       bool   // a supervisor has it
	hook          endHook // told when the worker has ended, and when it is gone
	err           error
	ctx           context.Context // the work's own context; nil before Begin
	unwatch       func() bool     // ends the watch on ctx
	health        Health
	pending       *pending // nil unless the worker is pending
	pausing       *pausing // made by the first Suspend or Resume
	startedAt     time.Time
	healthAt      time.Time
}

// pending says why a pending worker waits.
type pending struct {
	reason string
	due    time.Time
}

// Init sets the worker's kind ("func", "process", …) and name.
func (b *BaseWorker) Init(kind, name string) {
	b.kind = kind
	life.Begin(&b.machine, name, StatusCreated, &b.events)
	b.events.SetOwner(b.machine.ID())
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
	why := held.pending
	held.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusCreated || !b.machine.Continue(&held.machine) {
		return
	}
	b.pending = why
	b.events.SetOwner(b.machine.ID())
}

// ID returns the ID of the worker's life, which its events carry. It may change
// until Start is called: an instance that a [Supervisor] starts after a wait
// continues the life that was Pending in its place.
func (b *BaseWorker) ID() uint64 { return b.machine.ID() }

// Adopt makes child a part of b: child publishes its events where b does, with
// b's life as their Parent. Call it before child starts.
func (b *BaseWorker) Adopt(child interface{ PublishTo(*fsm.Dispatcher) }) {
	child.PublishTo(&b.events)
}

// Name returns the worker's name.
func (b *BaseWorker) Name() string { return b.machine.Name() }

// Done returns a channel that is closed once the worker is in a terminal status.
func (b *BaseWorker) Done() <-chan struct{} { return b.machine.Done() }

// Status returns the worker's status.
func (b *BaseWorker) Status() Status {
	if b.unseen.Load() {
		b.look()
	}
	return b.machine.State()
}

// Await waits for a status for which until returns true, and returns it. It calls
// until with the present status and every later one. When ctx ends first, it
// returns ctx's error. until must return at once and must not call the worker.
func (b *BaseWorker) Await(ctx context.Context, until func(Status) bool) (Status, error) {
	b.observe()
	return b.machine.Wait(ctx, until)
}

// Gone returns a channel that is closed once none of the worker's code runs any
// more. Usually that is when [BaseWorker.Done] closes. A worker that was
// abandoned is done, but not gone before it has returned by itself. Until then no
// other worker may take its place.
func (b *BaseWorker) Gone() <-chan struct{} { return b.gone.Signaled() }

// self returns b. A supervisor finds the base of a worker that embeds it by this
// method.
func (b *BaseWorker) self() *BaseWorker { return b }

// endHook hears of the end of a worker.
type endHook interface{ workerEnded() }

// hookEnd makes the worker tell hook when it has ended, and once more when it is
// gone if that happens later. It does so under its lock: hook must return at once
// and must not call the worker. Call hookEnd before the worker starts.
func (b *BaseWorker) hookEnd(hook endHook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = hook
}

// goneLocked records, once, that none of the worker's code runs any more.
func (b *BaseWorker) goneLocked() {
	if b.gone.Signal() && b.hook != nil {
		b.hook.workerEnded()
	}
}

// Watch returns a reader of the changes of this worker and its children from now
// on. The reader keeps at most buffer unread events; a gap event takes the place
// of lost ones. Close the reader when you no longer use it.
func (b *BaseWorker) Watch(buffer int) *fsm.Subscription {
	sub := b.events.Subscribe(buffer)
	b.observe()
	return sub
}

// PublishTo also sends the changes of this worker and its children to events, as
// [fsm.Dispatcher.Forward] does. A later call replaces an earlier one.
func (b *BaseWorker) PublishTo(events *fsm.Dispatcher) {
	b.events.Forward(events)
	if b.events.HasReader() {
		b.observe()
	}
}

// SetStatus changes the status. For a change that the table does not have, and
// for a word that is not a status, it returns an [*fsm.TransitionError] and
// changes nothing. Stopping also records a request to stop. A terminal status
// ends the worker without an error and means that none of its code runs any more;
// a later Finish changes nothing.
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

// Hold makes a created worker pending. reason says why it waits, and due when it
// may start.
func (b *BaseWorker) Hold(reason string, due time.Time) error {
	return b.hold(errors.New(reason), due)
}

// hold is Hold with the cause of the event.
func (b *BaseWorker) hold(cause error, due time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setLocked(StatusPending, cause); err != nil {
		return err
	}
	b.pending = &pending{cause.Error(), due}
	return nil
}

// rehold changes the reason of a pending worker. It returns false when the worker
// is not pending.
func (b *BaseWorker) rehold(reason string, due time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusPending {
		return false
	}
	b.pending = &pending{reason, due}
	return true
}

// ending returns a channel that is closed when the work's context ends, which it does
// at the latest when the worker ends. It is nil before Begin.
func (b *BaseWorker) ending() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx == nil {
		return nil
	}
	return b.ctx.Done()
}

// Begin moves a created or pending worker to Starting. ctx is the context of its
// work: once ctx is cancelled, the worker counts as asked to stop. For a worker
// in any other status Begin returns an error that wraps [ErrNotStartable].
func (b *BaseWorker) Begin(ctx context.Context) error {
	return b.begin(ctx, ctx)
}

// begin is Begin for a worker that cancels ctx itself when it is stopped. It
// watches only parent, from which ctx was derived.
func (b *BaseWorker) begin(ctx, parent context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setLocked(StatusStarting, nil); err != nil {
		return fmt.Errorf("start %s: %w: it is %s", b.Name(), ErrNotStartable, b.machine.State())
	}
	b.ctx = ctx
	switch {
	case parent.Done() == nil:
	case b.patient && !b.events.HasReader():
		b.unseen.Store(true)
	default:
		b.unwatch = context.AfterFunc(parent, func() { b.RequestStop(b.causeOf(parent)) })
	}
	return nil
}

// look records a stop that the end of the context asks for.
func (b *BaseWorker) look() {
	b.mu.Lock()
	ctx := b.ctx
	b.mu.Unlock()
	if ctx.Err() != nil {
		b.RequestStop(b.causeOf(ctx))
	}
}

// observe makes a worker that has not watched its context do so from now on, for a
// caller that waits for changes.
func (b *BaseWorker) observe() {
	if b.unseen.CompareAndSwap(true, false) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.ended && !b.stopRequested {
			b.unwatch = context.AfterFunc(b.ctx, b.look)
		}
	}
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
			b.unwatch() // the watch has nothing left to do: end its goroutine
		}
		_ = b.setLocked(StatusStopping, cause) // every status that is possible here has this edge
	}
	return true
}

// Kill records that the worker did not stop when asked, and was ended by force or
// abandoned, with err. It returns false and changes nothing when the worker has
// ended by itself meanwhile. Call [BaseWorker.Finish] once none of the worker's
// code runs any more.
func (b *BaseWorker) Kill(err error) bool {
	err = call.Freeze(b.Name(), err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.killed = true
	b.finishLocked(err)
	if b.hook != nil {
		b.hook.workerEnded()
	}
	return true
}

// Finish ends the worker with the result of its work. [FinalStatus] decides the
// final status. When err says only that the worker's own context was cancelled
// (context.Canceled, or the context's cause), Finish wraps it in
// [ErrInterrupted]. context.Canceled of another context, and a deadline that
// passed, are failures.
//
// Finish also means that none of the worker's code runs any more. For an
// abandoned worker, which has ended already, that is its only effect. A second
// call changes nothing.
func (b *BaseWorker) Finish(err error) {
	err = call.Freeze(b.Name(), err) // in the goroutine of the caller, who made the error
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
		if !b.stopRequested { // the watch on ctx may be late
			b.stopRequested = true
			_ = b.setLocked(StatusStopping, b.causeOf(b.ctx))
		}
		if err != nil && !errors.Is(err, ErrInterrupted) && means(b.ctx, err) {
			err = fmt.Errorf("%w: %w", ErrInterrupted, err)
		}
	}
	b.finishLocked(err)
}

// abandon ends the worker with err while some of its code still runs. Call Finish
// once that code has returned.
func (b *BaseWorker) abandon(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.finishLocked(err)
	if b.hook != nil {
		b.hook.workerEnded()
	}
}

// means reports whether err, or every error that it joins, says only that ctx was
// cancelled. A failure that is joined with such an error is still a failure.
func means(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	if call.Same(cause, context.DeadlineExceeded) {
		cause = context.Canceled // a deadline that passed is a failure
	}
	return call.Only(err, func(e error) bool { return call.Same(e, context.Canceled) || call.Same(e, cause) })
}

// finishLocked changes to the final status. Where the table has no direct edge,
// the worker passes through the status between: Running for a function that has
// returned, Stopping for one that was killed.
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
	if b.unseen.Load() {
		b.look()
	}
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

// killedErr returns the result of Stop for a worker that has ended.
func (b *BaseWorker) killedErr() error {
	if b.Killed() {
		return b.Err()
	}
	return nil
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
	if b.unseen.Load() {
		b.look()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := State{
		Name: b.Name(), Kind: b.kind, Status: b.machine.State(), Health: b.health,
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
