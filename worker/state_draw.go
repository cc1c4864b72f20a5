package worker

import (
	"fmt"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Mermaid returns the tree as a Mermaid flowchart: a node for each worker with
// its name, kind and status, coloured by status, and an edge from each supervisor
// to each of its children, in their order. Any text may be a name: it is escaped.
func (s State) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	s.walk(func(id, parent int, w State) {
		lines := w.lines()
		for i, line := range lines {
			lines[i] = fsm.MermaidLabel(line)
		}
		fmt.Fprintf(&b, "    n%d[\"%s\"]:::%s\n", id, strings.Join(lines, "<br/>"), w.look().class)
		if parent >= 0 {
			fmt.Fprintf(&b, "    n%d --> n%d\n", parent, id)
		}
	})
	for _, l := range looks {
		fmt.Fprintf(&b, "    classDef %s fill:%s,stroke:%s,color:#111\n", l.class, l.fill, l.line)
	}
	return b.String()
}

// DOT returns the tree in Graphviz's language, drawn as by [State.Mermaid].
func (s State) DOT() string {
	var b strings.Builder
	b.WriteString("digraph {\n\tnode [shape=box style=\"rounded,filled\"]\n")
	s.walk(func(id, parent int, w State) {
		lines := w.lines()
		for i, line := range lines {
			quoted := fsm.DOTText(line)
			lines[i] = quoted[1 : len(quoted)-1]
		}
		l := w.look()
		fmt.Fprintf(&b, "\tn%d [label=\"%s\" fillcolor=%q color=%q]\n", id, strings.Join(lines, `\n`), l.fill, l.line)
		if parent >= 0 {
			fmt.Fprintf(&b, "\tn%d -> n%d\n", parent, id)
		}
	})
	b.WriteString("}\n")
	return b.String()
}

// walk visits every worker, parents first. The root's parent is -1.
func (s State) walk(visit func(id, parent int, w State)) {
	next := 0
	var down func(parent int, w State)
	down = func(parent int, w State) {
		id := next
		next++
		visit(id, parent, w)
		for _, c := range w.Children {
			down(id, c)
		}
	}
	down(-1, s)
}

// lines returns the text of a node.
func (s State) lines() []string {
	status := string(s.Status)
	if s.Health != HealthUnknown && !s.Status.Terminal() {
		status += ", " + string(s.Health)
	}
	lines := []string{s.Name, s.Kind, status}
	if s.Kind == "" {
		lines = []string{s.Name, status}
	}
	if s.Reason != "" {
		lines = append(lines, text.Head(s.Reason, 80))
	}
	if !s.Due.IsZero() {
		lines = append(lines, "due "+s.Due.Format(time.TimeOnly))
	}
	if s.PID != 0 && !s.Status.Terminal() {
		lines = append(lines, fmt.Sprintf("pid %d", s.PID))
	}
	if s.Restarts > 0 {
		lines = append(lines, fmt.Sprintf("restarts %d", s.Restarts))
	}
	if s.Error != "" {
		lines = append(lines, text.Head(s.Error, 80))
	}
	return lines
}

type look struct{ class, fill, line string }

// Readers who cannot tell red from green can tell these colours apart.
var (
	waiting = look{"waiting", "#fef3c7", "#b45309"}
	running = look{"running", "#dbeafe", "#1d4ed8"}
	ill     = look{"ill", "#fde68a", "#b91c1c"}
	ended   = look{"ended", "#f3f4f6", "#6b7280"}
	failed  = look{"failed", "#fecaca", "#b91c1c"}
	looks   = []look{waiting, running, ill, ended, failed}
)

func (s State) look() look {
	switch s.Status {
	case StatusFailed, StatusKilled:
		return failed
	case StatusFinished, StatusStopped:
		return ended
	case StatusRunning, StatusStopping, StatusStarting:
		if s.Health == HealthUnhealthy {
			return ill
		}
		return running
	}
	return waiting
}
