package fsm

import "time"

// Model is a kind of life, prepared for programs that have many machines of it: a
// machine of a model needs no look-up in the [Table], and can be part of a larger
// struct. A Model does not change. All methods may be called concurrently.
type Model[S ~string] struct {
	kind  string
	nodes []node[S]
}

// node is a state and the states that may follow it. A nil node means that a state is unknown.
type node[S ~string] struct {
	state S
	next  []*node[S]
}

// NewModel returns the model of kind, which has the table. The table must have passed
// [Table.Validate]. The model does not notice later changes of the table.
func NewModel[S ~string](kind string, table Table[S]) *Model[S] {
	m := &Model[S]{kind: kind, nodes: make([]node[S], 0, len(table))}
	for s := range table {
		m.nodes = append(m.nodes, node[S]{state: s})
	}
	for i := range m.nodes {
		n := &m.nodes[i]
		n.next = make([]*node[S], 0, len(table[n.state]))
		for _, to := range table[n.state] {
			if next := m.node(to); next != nil {
				n.next = append(n.next, next)
			}
		}
	}
	return m
}

// Begin makes machine, which must be zero, a new life of the model in the state
// initial. Its events have name and go to the dispatcher, which may be nil. Begin
// panics when the model does not have the state, because that is a mistake in the
// program.
func (m *Model[S]) Begin(machine *Machine[S], name string, initial S, events *Dispatcher) {
	machine.model, machine.name = m, name
	machine.events.Store(events)
	machine.id, machine.since = lives.Add(1), time.Now()
	if machine.at = m.node(initial); machine.at == nil {
		panic("fsm: a life of the kind " + m.kind + " cannot begin in " + string(initial))
	}
}

// New returns a machine that [Model.Begin] has made.
func (m *Model[S]) New(name string, initial S, events *Dispatcher) *Machine[S] {
	machine := &Machine[S]{}
	m.Begin(machine, name, initial, events)
	return machine
}

// IsTerminal reports whether no state may follow s, as [Table.IsTerminal] does.
func (m *Model[S]) IsTerminal(s S) bool { return m.node(s).terminal() }

func (m *Model[S]) node(s S) *node[S] {
	for i := range m.nodes {
		if m.nodes[i].state == s {
			return &m.nodes[i]
		}
	}
	return nil
}

func (n *node[S]) name() S {
	if n == nil {
		return ""
	}
	return n.state
}

func (n *node[S]) terminal() bool { return n == nil || len(n.next) == 0 }

// to returns the state s when it may follow n, and otherwise nil.
func (n *node[S]) to(s S) *node[S] {
	if n == nil {
		return nil
	}
	for _, next := range n.next {
		if next.state == s {
			return next
		}
	}
	return nil
}
