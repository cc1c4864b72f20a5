package fsm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Machine is one life. It is in exactly one state of its [Table], and only
// [Machine.To] changes the state. All methods may be called concurrently. The zero
// value is not ready: [New] and [Model.Begin] make a machine. A Machine must not be
// copied.
type Machine[S ~string] struct {
	model  *Model[S]
	name   string
	events atomic.Pointer[Dispatcher]
	extras *extras[S] // nil for most machines

	mu      sync.Mutex // guards everything below
	id      uint64
	at      *node[S] // the present state; nil when another machine continues this life
	since   time.Time
	seq     uint64
	done    chan struct{} // made by the first Done
	waiters *waiter[S]    // a list
}

// extras has the data that only few machines need. It never changes.
type extras[S ~string] struct {
	timeline timeline[S] // nil without WithTimeline
	whole    *Machine[S] // the life that this is one attempt of; nil for a life's own machine
	attempt  int         // 0 for a life's own machine
}

// timeline has a machine's data for each state of its table. The map is made with
// the machine and never changes.
type timeline[S ~string] map[S]*entry

type entry struct {
	at      time.Time // when the state was first entered; set before reached is signaled
	reached Signal
}

// enter records that s was entered. The caller holds the machine's lock.
func (t timeline[S]) enter(s S, at time.Time) {
	if e := t[s]; e != nil && !e.reached.HasSignaled() {
		e.at = at
		e.reached.Signal()
	}
}

type waiter[S ~string] struct {
	until    func(S) bool
	got      chan S // capacity 1: at most one send, made when the waiter is removed
	panicked any    // the value with which until panicked; set before the send
	next     *waiter[S]
}

// ask reports whether the wait is over. It is also over when until panics: then
// the waiter panics, not the goroutine that changes the machine.
func (w *waiter[S]) ask(s S) (over bool) {
	defer func() {
		if v := recover(); v != nil {
			w.panicked, over = v, true
		}
	}()
	return w.until(s)
}

// lives counts the lives of this process; see [Event].
var lives atomic.Uint64

// Option shapes a [Machine].
type Option func(*options)

type options struct{ timeline bool }

// WithTimeline keeps when each state was first entered, for [Machine.EnteredAt]
// and [Machine.Reached].
func WithTimeline() Option { return func(o *options) { o.timeline = true } }

// New returns a machine in state initial. Its events have kind and name and go to
// the dispatcher, which may be nil. The table must have passed [Table.Validate].
// When the table does not have the state initial, New returns an error that wraps
// [ErrInvalidTable]. It also returns an error for a nil option.
func New[S ~string](kind, name string, table Table[S], initial S, events *Dispatcher, opts ...Option) (*Machine[S], error) {
	if !table.Has(initial) {
		return nil, fmt.Errorf("%s %q: %w: it has no state %q to begin in (declared are %s)",
			kind, name, ErrInvalidTable, initial, quoted(table.Phases()))
	}
	var o options
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%s %q: option %d is nil", kind, name, i+1)
		}
		opt(&o)
	}
	m := &Machine[S]{}
	NewModel(kind, table).Begin(m, name, initial, events)
	if o.timeline {
		timeline := make(timeline[S], len(table))
		for s := range table {
			timeline[s] = &entry{}
		}
		timeline.enter(initial, m.since)
		m.extras = &extras[S]{timeline: timeline}
	}
	return m, nil
}

// MustNew is [New] for a table and a state that are constants of the program. It
// panics on an error, because that is a mistake in the program.
func MustNew[S ~string](kind, name string, table Table[S], initial S, events *Dispatcher, opts ...Option) *Machine[S] {
	m, err := New(kind, name, table, initial, events, opts...)
	if err != nil {
		panic(err)
	}
	return m
}

// BeginAttempt makes run, which must be zero, the machine of run n of this life, for a
// life that runs again and again; n counts from 1. The run has its own state along the same
// table, and begins in initial. Its events are events of this life: they have the life's ID,
// their Seq continues the life's, and their Attempt is n.
func (m *Machine[S]) BeginAttempt(run *Machine[S], n int, initial S) {
	run.model, run.name = m.model, m.name
	run.extras = &extras[S]{whole: m, attempt: n}
	run.at, run.since = m.model.node(initial), time.Now()
}

// Continue makes m continue the life of before: m takes over its ID, state and
// Seq, and before refuses every change from then on. m must not have changed yet.
// Use it when one owner begins a life and another one continues it. When before
// is in a terminal state, Continue does nothing and returns false.
func (m *Machine[S]) Continue(before *Machine[S]) bool {
	before.mu.Lock()
	defer before.mu.Unlock()
	if before.at.terminal() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id, m.at, m.since, m.seq = before.id, before.at, before.since, before.seq
	before.at = nil
	return true
}

// ID returns the ID of the life, which is also in its events. It is unique in
// this process.
func (m *Machine[S]) ID() uint64 {
	if m.extras != nil && m.extras.whole != nil {
		return m.extras.whole.ID()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// Name returns the name of the life.
func (m *Machine[S]) Name() string { return m.name }

// PublishTo makes the machine's events go to this dispatcher alone from now on.
// nil ends the publishing. For a run of a life it does nothing: its events are the life's.
func (m *Machine[S]) PublishTo(events *Dispatcher) { m.events.Store(events) }

// Events returns the dispatcher to which the machine's events go, or nil. A run has the
// dispatcher of its life.
func (m *Machine[S]) Events() *Dispatcher {
	if m.extras != nil && m.extras.whole != nil {
		return m.extras.whole.Events()
	}
	return m.events.Load()
}

// To changes the state. For a change that the table does not allow it returns a
// [*TransitionError] and changes nothing. cause is the reason in the event; it
// may be nil.
func (m *Machine[S]) To(to S, cause error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := m.at
	next := from.to(to)
	if next == nil {
		return m.refused(from, to)
	}
	m.at, m.since = next, time.Now()
	if m.extras != nil {
		m.extras.timeline.enter(to, m.since)
	}
	m.publishLocked(from, cause)
	if m.waiters != nil {
		m.answerWaitersLocked(to)
	}
	if m.done != nil && next.terminal() {
		close(m.done)
	}
	return nil
}

// answerWaitersLocked ends the waits that have waited for the state s.
func (m *Machine[S]) answerWaitersLocked(s S) {
	for at := &m.waiters; *at != nil; {
		if w := *at; w.ask(s) {
			w.got <- s
			*at = w.next
		} else {
			at = &w.next
		}
	}
}

// publishLocked gives the change from a state its number, and publishes it. The lock keeps
// the events in the order of the changes. The changes of an attempt get numbers of its life.
func (m *Machine[S]) publishLocked(from *node[S], cause error) {
	life, attempt := m, 0
	if m.extras != nil && m.extras.whole != nil {
		life, attempt = m.extras.whole, m.extras.attempt
		life.mu.Lock()
		defer life.mu.Unlock()
	}
	life.seq++
	if events := life.events.Load(); events.hasReader() {
		m.sendLocked(events, life, attempt, from, cause)
	}
}

// sendLocked is a function of its own because an [Event] is large: a change without a
// reader needs little stack.
//
//go:noinline
func (m *Machine[S]) sendLocked(events *Dispatcher, life *Machine[S], attempt int, from *node[S], cause error) {
	events.publish(Event{
		ID: life.id, Kind: m.model.kind, Name: m.name, Seq: life.seq, Attempt: attempt,
		From: string(from.state), To: string(m.at.state), At: m.since, Cause: cause,
	})
}

//go:noinline
func (m *Machine[S]) refused(from *node[S], to S) error {
	err := &TransitionError{Kind: m.model.kind, Name: m.name, From: string(from.name()), To: string(to)}
	if from != nil {
		for _, s := range from.next {
			err.Allowed = append(err.Allowed, string(s.state))
		}
		slices.Sort(err.Allowed)
	}
	return err
}

// State returns the present state.
func (m *Machine[S]) State() S {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at.name()
}

// Since returns the present state and when the machine entered it.
func (m *Machine[S]) Since() (S, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at.name(), m.since
}

// EnteredAt returns when the machine first entered s, and the zero time when it
// has not. Every state that [Machine.State] has returned has a time. Like
// [Machine.Reached], it takes no lock, so it works even while a function given to
// [Machine.Wait] does not return. It panics for a machine made without
// [WithTimeline].
func (m *Machine[S]) EnteredAt(s S) time.Time {
	m.needTimeline()
	if e := m.extras.timeline[s]; e != nil && e.reached.HasSignaled() {
		return e.at
	}
	return time.Time{}
}

// Reached returns a channel that is closed once the machine has entered s, and
// stays closed when it leaves s. For a state that the table does not have it is
// nil. It panics for a machine made without [WithTimeline].
func (m *Machine[S]) Reached(s S) <-chan struct{} {
	m.needTimeline()
	if e := m.extras.timeline[s]; e != nil {
		return e.reached.Signaled()
	}
	return nil
}

func (m *Machine[S]) needTimeline() {
	if m.extras == nil || m.extras.timeline == nil {
		panic(fmt.Sprintf("fsm: the machine of %s %q was made without WithTimeline", m.model.kind, m.name))
	}
}

// Done returns a channel that is closed once a terminal state is reached.
// Every call returns the same channel.
func (m *Machine[S]) Done() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done == nil {
		if m.at.terminal() {
			m.done = closed
		} else {
			m.done = make(chan struct{})
		}
	}
	return m.done
}

// Wait waits for a state for which until returns true, and returns it. It calls
// until with the present state and with every state that the machine enters, even
// if the machine leaves it at once. When ctx ends first, it returns the present
// state and ctx's error.
//
// Wait calls until under the machine's lock: until must return at once and must
// not call the machine. When until panics, Wait panics.
func (m *Machine[S]) Wait(ctx context.Context, until func(S) bool) (S, error) {
	s, w := m.beginWait(until)
	if w == nil {
		return s, nil
	}
	select {
	case s = <-w.got:
		return w.result(s), nil
	case <-ctx.Done():
	}
	s, over := m.endWait(w)
	if over {
		return w.result(s), nil
	}
	return s, ctx.Err()
}

// result returns the state that ended a wait, or panics as until did.
func (w *waiter[S]) result(s S) S {
	if w.panicked != nil {
		panic(w.panicked)
	}
	return s
}

// beginWait returns the present state when until is true for it, and otherwise a
// waiter.
func (m *Machine[S]) beginWait(until func(S) bool) (S, *waiter[S]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.at.name(); until(s) {
		return s, nil
	}
	w := &waiter[S]{until: until, got: make(chan S, 1), next: m.waiters}
	m.waiters = w
	return m.at.name(), w
}

// endWait removes a waiter. It returns the present state. When the waiter's state
// was reached meanwhile, it returns that state, and over is true.
func (m *Machine[S]) endWait(w *waiter[S]) (s S, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case s = <-w.got:
		return s, true
	default:
	}
	for at := &m.waiters; *at != nil; at = &(*at).next {
		if *at == w {
			*at = w.next
			break
		}
	}
	return m.at.name(), false
}
