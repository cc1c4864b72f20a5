package main

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/pages"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// states returns the diagram and the table of one kind of component.
func states(kind string) (string, error) {
	switch kind {
	case "App":
		return drawn(lifecycle.Phases(), lifecycle.PhaseCreated), nil
	case "Worker":
		return drawn(worker.Transitions(), worker.StatusCreated), nil
	case "Worker process":
		return drawn(procpool.WorkerTransitions(), procpool.WorkerStarting), nil
	case "Query":
		return drawn(procpool.QueryTransitions(), procpool.QueryPending), nil
	case "Connection":
		return drawn(procpool.ConnTransitions(), procpool.ConnDisconnected), nil
	case "Pool":
		return drawn(procpool.PoolTransitions(), procpool.PoolIdle), nil
	}
	return "", fmt.Errorf("there is no kind of component %q", kind)
}

func drawn[S ~string](t fsm.Table[S], initial S) string {
	var rows [][]string
	for _, from := range t.Phases() {
		next := make([]string, 0, len(t[from]))
		for _, to := range t[from] {
			next = append(next, string(to))
		}
		if len(next) == 0 {
			next = []string{"nothing: it is terminal"}
		}
		rows = append(rows, []string{string(from), strings.Join(next, ", ")})
	}
	diagram := t.Mermaid(fsm.Drawing[S]{Initial: initial})
	return "```mermaid\n" + diagram + "```\n\n" + pages.Table([]string{"from", "to"}, rows)
}
