package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// life is one kind of life, with the text above its diagram.
type life struct {
	title, text string
	diagram     string // Mermaid
	rows        []row
}

// row is one state and the states that may follow it.
type row struct{ state, next string }

func lives() []life {
	return []life{
		describe("App", "One service process. It enters each phase at most once, and `App.Reached` returns a channel for each. The table is `lifecycle.Phases`.",
			lifecycle.Phases(), lifecycle.PhaseCreated, nil),
		describe("Worker", "Every unit of an App is a worker: a function, a process, a container, a supervisor. The table is `worker.Transitions`.",
			worker.Transitions(), worker.StatusCreated, worker.AddedEdges()),
		describe("Worker process of a pool", "One process of a `procpool.Pool`. It has these states besides those of a Worker. The table is `procpool.WorkerTransitions`.",
			procpool.WorkerTransitions(), procpool.WorkerStarting, procpool.AddedWorkerEdges()),
		describe("Query", "One query to a pool, from its submission to exactly one terminal state. The table is `procpool.QueryTransitions`.",
			procpool.QueryTransitions(), procpool.QueryPending, procpool.AddedQueryEdges()),
		describe("Connection", "The unix socket between a pool and one of its processes. The table is `procpool.ConnTransitions`.",
			procpool.ConnTransitions(), procpool.ConnDisconnected, nil),
		describe("Pool", "The use of a pool's capacity. The table is `procpool.PoolTransitions`.",
			procpool.PoolTransitions(), procpool.PoolIdle, nil),
	}
}

// describe draws one table. It marks edges that were added to the model's
// table.
func describe[S ~string](title, text string, t fsm.Table[S], initial S, added []fsm.Edge[S]) life {
	l := life{title: title, text: text, diagram: t.Mermaid(fsm.Drawing[S]{Initial: initial, Added: added})}
	for _, from := range inOrder(t, initial) {
		next := make([]string, 0, len(t[from]))
		for _, to := range t[from] {
			name := string(to)
			if slices.Contains(added, fsm.Edge[S]{From: from, To: to}) {
				name += " (added)"
			}
			next = append(next, name)
		}
		if len(next) == 0 {
			next = []string{"nothing: it is terminal"}
		}
		l.rows = append(l.rows, row{string(from), strings.Join(next, ", ")})
	}
	return l
}

// inOrder returns the states in the order of a depth-first walk from initial,
// the terminal ones last.
func inOrder[S ~string](t fsm.Table[S], initial S) []S {
	var order []S
	var visit func(S)
	visit = func(s S) {
		if slices.Contains(order, s) {
			return
		}
		order = append(order, s)
		for _, next := range t[s] {
			visit(next)
		}
	}
	visit(initial)
	for _, s := range t.Phases() {
		visit(s) // also states that no edge leads to
	}
	slices.SortStableFunc(order, func(a, b S) int {
		switch {
		case t.IsTerminal(a) == t.IsTerminal(b):
			return 0
		case t.IsTerminal(a):
			return 1
		}
		return -1
	})
	return order
}

// states renders every kind of life as a page.
func states() ([]byte, error) {
	var b strings.Builder
	b.WriteString("<!-- Drawn by tools/docgen from the code. Do not edit: run \"make docs\". -->\n\n# States\n\n")
	b.WriteString("Every component has named states, and a table defines the allowed transitions. The diagrams are drawn from the tables that the code enforces. \"(added)\" marks a transition that the model of this library does not list; [seeds.md](seeds.md) explains each.\n")
	for _, l := range lives() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```mermaid\n%s```\n\n| from | to |\n| --- | --- |\n", l.title, l.text, l.diagram)
		for _, r := range l.rows {
			fmt.Fprintf(&b, "| %s | %s |\n", r.state, r.next)
		}
	}
	return []byte(b.String()), nil
}
