// Package fsm has finite state machines with named states. A [Table] defines the
// allowed transitions. A [Machine] is one life: it changes its state along that
// table only. Every change makes an [Event].
//
// A process, a goroutine, a child process, a probe and a durable entity each have a
// life. Logs, metrics, diagrams and tests read the events of a [Dispatcher] and keep
// no state of their own.
//
// [Signal] is an event that happens once and needs no table.
package fsm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrInvalidTable is wrapped by every error of [Table.Validate].
var ErrInvalidTable = errors.New("fsm: invalid transitions table")

// ErrInvalidTransition is wrapped by the error of a change that the table does
// not allow. The error itself is a [*TransitionError].
var ErrInvalidTransition = errors.New("fsm: invalid transition")

// Table declares the transitions of one kind of life. Its keys are the states,
// and its values the states that may follow. A state that no state may follow is
// terminal. An edge from a state to itself is allowed only if the table declares
// it.
//
// A Table is data. Do not change it after you have built it; then any number of
// goroutines may use it.
type Table[S ~string] map[S][]S

// Edge is one allowed transition.
type Edge[S ~string] struct{ From, To S }

// Validate reports every fault of the table at once: no states, an empty name, an
// edge to an undeclared state (usually a typo), the same edge twice. The error
// names the states and wraps [ErrInvalidTable]. Cycles, several initial states
// and tables without a terminal state are valid.
func (t Table[S]) Validate() error {
	if len(t) == 0 {
		return fmt.Errorf("%w: it declares no states", ErrInvalidTable)
	}
	var faults []string
	for _, from := range t.Phases() {
		if from == "" {
			faults = append(faults, "a state has an empty name")
		}
		seen := make(map[S]bool, len(t[from]))
		for _, to := range t[from] {
			if seen[to] {
				faults = append(faults, fmt.Sprintf("the edge %q -> %q is declared twice", from, to))
				continue
			}
			seen[to] = true
			if _, ok := t[to]; !ok {
				faults = append(faults, fmt.Sprintf("the edge %q -> %q leads to a state that is not declared (declared are %s)", from, to, quoted(t.Phases())))
			}
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %s", ErrInvalidTable, strings.Join(faults, "; "))
	}
	return nil
}

// Clone returns a copy that shares nothing with the table.
func (t Table[S]) Clone() Table[S] {
	t = maps.Clone(t)
	for from, to := range t {
		t[from] = slices.Clone(to)
	}
	return t
}

// Has reports whether s is a state of the table.
func (t Table[S]) Has(s S) bool {
	_, ok := t[s]
	return ok
}

// IsTerminal reports whether no state may follow s. A state that the table does
// not have is terminal too, so a life in it cannot change.
func (t Table[S]) IsTerminal(s S) bool { return len(t[s]) == 0 }

// IsValidTransition reports whether the edge from -> to is declared.
func (t Table[S]) IsValidTransition(from, to S) bool { return slices.Contains(t[from], to) }

// Phases returns every state, sorted.
func (t Table[S]) Phases() []S { return slices.Sorted(maps.Keys(t)) }

// TerminalPhases returns the terminal states, sorted.
func (t Table[S]) TerminalPhases() []S {
	return slices.DeleteFunc(t.Phases(), func(s S) bool { return !t.IsTerminal(s) })
}

// Edges returns every edge, sorted by From and in the declared order after it.
func (t Table[S]) Edges() []Edge[S] {
	var edges []Edge[S]
	for _, from := range t.Phases() {
		for _, to := range t[from] {
			edges = append(edges, Edge[S]{from, to})
		}
	}
	return edges
}

// TransitionError says which change was refused, and which ones are allowed. It
// wraps [ErrInvalidTransition].
type TransitionError struct {
	Kind, Name string   // of the life
	From, To   string   // the change that was refused
	Allowed    []string // the states that may follow From, sorted; empty when From is terminal
}

// Error names the refused change and the allowed ones.
func (e *TransitionError) Error() string {
	right := "nothing follows it: it is terminal"
	if len(e.Allowed) > 0 {
		right = "allowed are " + quoted(e.Allowed)
	}
	return fmt.Sprintf("%s %q: %v: %q -> %q (%s)", e.Kind, e.Name, ErrInvalidTransition, e.From, e.To, right)
}

// Unwrap returns [ErrInvalidTransition].
func (e *TransitionError) Unwrap() error { return ErrInvalidTransition }

func quoted[S ~string](states []S) string {
	out := make([]string, len(states))
	for i, s := range states {
		out[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(out, ", ")
}
