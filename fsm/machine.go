package fsm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Machine holds one life. It is in exactly one state of its [Table] and
// changes it through [Machine.To] alone. All methods may be called
// concurrently.
type Machine[S ~string] struct {
	kind, name string
	table      Table[S]
	events     *Dispatcher

	mu      sync.Mutex // guards what follows
	state   S
	since   time.Time
	seq     uint64
	done    chan struct{} // made when somebody asks for it
	waiters []*waiter[S]
}

type waiter[S ~string] struct {
	until func(S) bool
	got   chan S // capacity 1: at most one send, made when the waiter is removed
}

// New returns a machine in state initial. Its events carry kind and name and go
// to the dispatcher, which may be nil when nobody is to know. The table must
// have passed [Table.Validate]; a state that it does not have as initial one is
// an error that wraps [ErrInvalidTable].
func New[S ~string](kind, name string, table Table[S], initial S, events *Dispatcher) (*Machine[S], error) {
	if !table.Has(initial) {
		return nil, fmt.Errorf("%s %q: %w: it has no state %q to begin in (declared are %s)",
			kind, name, ErrInvalidTable, initial, quoted(table.Phases()))
	}
	return &Machine[S]{kind: kind, name: name, table: table, events: events, state: initial, since: time.Now()}, nil
}

// MustNew is [New] for a table and a state that the program text declares: an
// error is a mistake in the program, and panics.
func MustNew[S ~string](kind, name string, table Table[S], initial S, events *Dispatcher) *Machine[S] {
	m, err := New(kind, name, table, initial, events)
	if err != nil {
		panic(err)
	}
	return m
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
	m.seq++
	// Publishing under the lock is what puts events in the order of the
	// changes. It only appends to the readers' rings.
	if m.events != nil {
		m.events.publish(Event{Kind: m.kind, Name: m.name, Seq: m.seq, From: string(from), To: string(to), At: m.since, Cause: cause})
	}
	if len(m.waiters) > 0 {
		m.waiters = slices.DeleteFunc(m.waiters, func(w *waiter[S]) bool {
			if !w.until(to) {
				return false
			}
			w.got <- to
			return true
		})
	}
	if m.done != nil && m.table.IsTerminal(to) {
		close(m.done)
	}
	return nil
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
// not call the machine.
func (m *Machine[S]) Wait(ctx context.Context, until func(S) bool) (S, error) {
	m.mu.Lock()
	if until(m.state) {
		defer m.mu.Unlock()
		return m.state, nil
	}
	w := &waiter[S]{until: until, got: make(chan S, 1)}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()

	select {
	case s := <-w.got:
		return s, nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case s := <-w.got: // it was reached while we came here
		return s, nil
	default:
	}
	m.waiters = slices.DeleteFunc(m.waiters, func(other *waiter[S]) bool { return other == w })
	return m.state, ctx.Err()
}
