package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// BaseWorker is the part that all workers have in common: the status, whether the
// worker was asked to stop or was killed, and how it ended. To make a worker,
// embed it. Call [BaseWorker.Init] before anything else and [BaseWorker.Begin] in
// Start, change the status with [BaseWorker.SetStatus], and pass the result of
// the work to [BaseWorker.Finish]. All methods may be called concurrently.
type BaseWorker struct {
	kind    string
	machine fsm.Machine[Status]

	patient bool        // the worker may notice late that its context has ended; set before Start
	unseen  atomic.Bool // nothing watches the context
	gone    atomic.Bool // none of its code runs any more

	mu            sync.Mutex // guards everything below, and is held around every change of status
	stopRequested bool
	killed        bool
	ended         bool
	claimed       bool            // a supervisor has it
	events        *fsm.Dispatcher // its own; nil before it has readers or parts of its own
	hook          endHook         // told when the worker has ended, and when it is gone
	err           error
	ctx           context.Context // the work's own context; nil before Begin
	startedAt     time.Time
	rare          *rare // nil for most workers
}

// rare is what few workers need at a time. BaseWorker.mu guards it; pausing and pause
// have locks of their own.
type rare struct {
	unwatch  func() bool // ends the watch on the context
	health   Health
	healthAt time.Time
	pending  *pending      // nil unless the worker is pending
	pausing  *pausing      // made by the first Suspend or Resume
	pause    *pause        // of a function; made when it is asked to pause
	gone     chan struct{} // made by Gone
	refused  error         // of the options; Start returns it
}

// rareLocked returns b.rare, to be changed.
func (b *BaseWorker) rareLocked() *rare {
	if b.rare == nil {
		b.rare = &rare{}
	}
	return b.rare
}

// none is the rare of a worker without one.
var none rare

// seldomLocked returns b.rare, to be read.
func (b *BaseWorker) seldomLocked() *rare {
	if b.rare == nil {
		return &none
	}
	return b.rare
}

// pending says why a pending worker waits.
type pending struct {
	reason string
	due    time.Time
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
	why := held.seldomLocked().pending
	held.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.State() != StatusCreated || !b.machine.Continue(&held.machine) {
		return
	}
	if why != nil {
		b.rareLocked().pending = why
	}
	if b.events != nil {
		b.events.SetOwner(b.machine.ID())
	}
}

// ID returns the ID of the worker's life, which its events carry. It may change
// until Start is called: an instance that a [Supervisor] starts after a wait
// continues the life that was Pending in its place.
func (b *BaseWorker) ID() uint64 { return b.machine.ID() }

// Adopt makes child a part of b: child publishes its events where b does, with
// b's life as their Parent. Call it before child starts.
func (b *BaseWorker) Adopt(child interface{ PublishTo(*fsm.Dispatcher) }) {
	child.PublishTo(b.dispatcher())
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

// Gone returns a channel that is closed once none of the worker's code runs any
// more. Usually that is when [BaseWorker.Done] closes. A worker that was
// abandoned is done, but not gone before it has returned by itself. Until then no
// other worker may take its place.
func (b *BaseWorker) Gone() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.rareLocked()
	if r.gone == nil {
		r.gone = make(chan struct{})
		if b.gone.Load() {
			close(r.gone)
		}
	}
	return r.gone
}

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
	defer b.mu.Unlock()
	if err := b.setLocked(to, nil); err != nil {
		return err
	}
	switch {
	case to.Terminal():
		b.ended, b.killed = true, to == StatusKilled
		b.unwatchLocked()
		b.goneLocked()
	case to == StatusStopping:
		b.stopRequested = true
	}
	return nil
}

func (b *BaseWorker) setLocked(to Status, cause error) error {
	return b.setAtLocked(time.Now(), to, cause)
}

func (b *BaseWorker) setAtLocked(at time.Time, to Status, cause error) error {
	if err := b.machine.ToAt(at, to, cause); err != nil {
		return err
	}
	if to != StatusPending && b.rare != nil {
		b.rare.pending = nil
	}
	if to == StatusRunning && b.startedAt.IsZero() {
		b.startedAt = at
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
	b.rareLocked().pending = &pending{cause.Error(), due}
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
	b.rareLocked().pending = &pending{reason, due}
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
	return b.begin(ctx, ctx, false)
}

// begin is Begin for a worker that cancels ctx itself when it is stopped. It
// watches only parent, from which ctx was derived. A worker that runs at once is also
// Running then.
func (b *BaseWorker) begin(ctx, parent context.Context, runs bool) error {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.setAtLocked(now, StatusStarting, nil); err != nil {
		return fmt.Errorf("start %s: %w: it is %s", b.Name(), ErrNotStartable, b.machine.State())
	}
	b.ctx = ctx
	switch {
	case parent.Done() == nil:
	case b.patient && !b.machine.Events().HasReader():
		b.unseen.Store(true)
	default:
		b.rareLocked().unwatch = context.AfterFunc(parent, func() { b.RequestStop(b.causeOf(parent)) })
	}
	if runs {
		_ = b.setAtLocked(now, StatusRunning, nil) // every starting worker has this edge
	}
	return nil
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
		b.unwatchLocked()                      // the watch has nothing left to do: end its goroutine
		_ = b.setLocked(StatusStopping, cause) // every status that is possible here has this edge
	}
	return true
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
	_, at := b.machine.Since()
	if healthAt := b.seldomLocked().healthAt; healthAt.After(at) {
		return healthAt
	}
	return at
}

// SetHealth sets the worker's health.
func (b *BaseWorker) SetHealth(h Health) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h != b.seldomLocked().health {
		r := b.rareLocked()
		r.health, r.healthAt = h, time.Now()
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
		Name: b.Name(), Kind: b.kind, Status: b.machine.State(), Health: b.seldomLocked().health,
		StartedAt: b.startedAt, UpdatedAt: b.updatedLocked(),
	}
	if p := b.seldomLocked().pending; p != nil {
		s.Reason, s.Due = p.reason, p.due
	}
	if b.err != nil {
		s.Error = b.err.Error()
	}
	return s
}
