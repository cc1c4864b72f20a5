package fsm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Machine holds one life. It is in exactly one state of its [Table] and
// changes it through [Machine.To] alone. All methods may be called
// concurrently.
type Machine[S ~string] struct {
	kind, name string
	table      Table[S]
	events     *Dispatcher
	timeline   timeline[S] // nil without WithTimeline
	whole      *Machine[S] // the life that this is one attempt of; nil for a life's own machine
	attempt    int         // 0 for a life's own machine

	mu      sync.Mutex // guards everything below
	id      uint64
	state   S
	since   time.Time
	seq     uint64
	done    chan struct{} // made by the first Done
	waiters *waiter[S]    // a list
}

// timeline is what a machine keeps of each state of its table. The map is made
// with the machine and never changed.
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
	panicked any    // what until panicked with; set before the send
	next     *waiter[S]
}

// ask reports whether the wait is over. It is over too when until panics: that is
// the panic of the waiter, and not of the goroutine that changes the machine.
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

// New returns a machine in state initial. Its events carry kind and name and go
// to the dispatcher, which may be nil when there are no readers. The table must
// have passed [Table.Validate]; a state that it does not have as initial one is
// an error that wraps [ErrInvalidTable]. A nil option is an error.
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
	m := &Machine[S]{kind: kind, name: name, table: table, events: events, id: lives.Add(1), state: initial, since: time.Now()}
	if o.timeline {
		m.timeline = make(timeline[S], len(table))
		for s := range table {
			m.timeline[s] = &entry{}
		}
		m.timeline.enter(initial, m.since)
	}
	return m, nil
}

// MustNew is [New] for a table and a state that the program text declares: an
// error is a mistake in the program, and panics.
func MustNew[S ~string](kind, name string, table Table[S], initial S, events *Dispatcher, opts ...Option) *Machine[S] {
	m, err := New(kind, name, table, initial, events, opts...)
	if err != nil {
		panic(err)
	}
	return m
}

// Attempt returns a machine for run n of this life, which is begun again and
// again, and counts from 1. The run has a state of its own along the same table,
// beginning in initial. Its events are events of this life: they have its ID,
// their Seq goes on from its last one, and their Attempt is n.
func (m *Machine[S]) Attempt(n int, initial S) *Machine[S] {
	return &Machine[S]{kind: m.kind, name: m.name, table: m.table, events: m.events, whole: m, attempt: n, state: initial, since: time.Now()}
}

// Continue makes m, which has not changed yet, go on with the life of before: m has
// its ID, its state and its Seq from then on, and before refuses every change. It
// is for a life that one owner begins and another one goes on with. It reports
// false, and does nothing, when before is in a terminal state.
func (m *Machine[S]) Continue(before *Machine[S]) bool {
	before.mu.Lock()
	defer before.mu.Unlock()
	if before.table.IsTerminal(before.state) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id, m.state, m.since, m.seq = before.id, before.state, before.since, before.seq
	before.state = "" // no state of the table: nothing follows it
	return true
}

// ID returns the ID of the life, which its events carry. It is unique in this
// process.
func (m *Machine[S]) ID() uint64 {
	if m.whole != nil {
		return m.whole.ID()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// To changes the state. A change that the table does not allow returns a
// [*TransitionError] and changes nothing. cause says why and may be nil; it
// goes into the event.
func (m *Machine[S]) To(to S, cause error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := m.state
	if !m.table.IsValidTransition(from, to) {
		return m.refused(from, to)
	}
	m.state, m.since = to, time.Now()
	m.timeline.enter(to, m.since)
	m.publishLocked(Event{Attempt: m.attempt, From: string(from), To: string(to), At: m.since, Cause: cause})
	for at := &m.waiters; *at != nil; {
		if w := *at; w.ask(to) {
			w.got <- to
			*at = w.next
		} else {
			at = &w.next
		}
	}
	if m.done != nil && m.table.IsTerminal(to) {
		close(m.done)
	}
	return nil
}

// publishLocked completes e and gives it to the dispatcher. The lock keeps the
// events in the order of the changes. An attempt publishes through its whole, which
// numbers them.
func (m *Machine[S]) publishLocked(e Event) {
	if m.whole != nil {
		m.whole.mu.Lock()
		defer m.whole.mu.Unlock()
		m.whole.publishLocked(e)
		return
	}
	m.seq++
	if m.events != nil {
		e.ID, e.Kind, e.Name, e.Seq = m.id, m.kind, m.name, m.seq
		m.events.publish(e)
	}
}

func (m *Machine[S]) refused(from, to S) error {
	allowed := make([]string, 0, len(m.table[from]))
	for _, s := range m.table[from] {
		allowed = append(allowed, string(s))
	}
	slices.Sort(allowed)
	return &TransitionError{Kind: m.kind, Name: m.name, From: string(from), To: string(to), Allowed: allowed}
}

// State returns the state it is in.
func (m *Machine[S]) State() S {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Since returns the state it is in and when it was entered.
func (m *Machine[S]) Since() (S, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.since
}

// EnteredAt returns when the machine first entered s, and the zero time when it
// has not. A state that [Machine.State] has returned has its time. Like
// [Machine.Reached] it does not take the machine's lock, so it answers also while a
// function given to [Machine.Wait] does not return. It panics for a machine made
// without [WithTimeline].
func (m *Machine[S]) EnteredAt(s S) time.Time {
	m.needTimeline()
	if e := m.timeline[s]; e != nil && e.reached.HasSignaled() {
		return e.at
	}
	return time.Time{}
}

// Reached returns a channel that is closed once the machine has entered s, and
// stays closed when it leaves s. For a state that the table does not have it is
// nil. It panics for a machine made without [WithTimeline].
func (m *Machine[S]) Reached(s S) <-chan struct{} {
	m.needTimeline()
	if e := m.timeline[s]; e != nil {
		return e.reached.Signaled()
	}
	return nil
}

func (m *Machine[S]) needTimeline() {
	if m.timeline == nil {
		panic(fmt.Sprintf("fsm: the machine of %s %q was made without WithTimeline", m.kind, m.name))
	}
}

// Done returns a channel that is closed once a terminal state is reached.
// Every call returns the same channel.
func (m *Machine[S]) Done() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done == nil {
		if m.table.IsTerminal(m.state) {
			m.done = closed
		} else {
			m.done = make(chan struct{})
		}
	}
	return m.done
}

// Wait returns the state, now or later, for which until is true. It sees every
// state that the machine enters, also one that it leaves at once. When ctx ends
// first it returns the context's error and the state of that moment.
//
// until is called under the machine's lock: it must return at once and must
// not call the machine. When it panics, Wait does.
func (m *Machine[S]) Wait(ctx context.Context, until func(S) bool) (S, error) {
	s, w := m.beginWait(until)
	if w == nil {
		return s, nil
	}
	select {
	case s = <-w.got:
		return w.result(s)
	case <-ctx.Done():
	}
	s, over := m.endWait(w)
	if over {
		return w.result(s)
	}
	return s, ctx.Err()
}

// result is that of a wait that is over.
func (w *waiter[S]) result(s S) (S, error) {
	if w.panicked != nil {
		panic(w.panicked)
	}
	return s, nil
}

// beginWait returns the state when until is true for it, and else a waiter.
func (m *Machine[S]) beginWait(until func(S) bool) (S, *waiter[S]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if until(m.state) {
		return m.state, nil
	}
	w := &waiter[S]{until: until, got: make(chan S, 1), next: m.waiters}
	m.waiters = w
	return m.state, w
}

// endWait removes a waiter. It returns the state of this moment, or the one that
// the waiter waited for and over when that was reached in the meantime.
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
	return m.state, false
}
