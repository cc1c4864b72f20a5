package fsm

import (
	"fmt"
	"strings"
	"unicode"
)

// Drawing says what a picture of a table shows in addition to its states and
// edges. The zero value draws the bare table.
type Drawing[S ~string] struct {
	Initial S // gets the start marker; "" draws none
	Current S // gets highlighted; "" highlights none
	// Label returns the label of an edge, "" for none. A nil Label gives no edge
	// a label.
	Label func(Edge[S]) string
}

// Mermaid returns the table as a Mermaid state diagram. Any text may be the
// name of a state: it is escaped.
func (t Table[S]) Mermaid(d Drawing[S]) string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	id := ids(t)
	for _, s := range t.Phases() {
		if string(s) != id[s] {
			fmt.Fprintf(&b, "    state \"%s\" as %s\n", MermaidLabel(string(s)), id[s])
		}
	}
	if t.Has(d.Initial) {
		fmt.Fprintf(&b, "    [*] --> %s\n", id[d.Initial])
	}
	for _, e := range t.Edges() {
		if !t.Has(e.To) {
			continue // Validate reports it
		}
		label := d.label(e)
		if label != "" {
			label = ": " + MermaidLabel(label)
		}
		fmt.Fprintf(&b, "    %s --> %s%s\n", id[e.From], id[e.To], label)
	}
	for _, s := range t.TerminalPhases() {
		fmt.Fprintf(&b, "    %s --> [*]\n", id[s])
	}
	if t.Has(d.Current) {
		fmt.Fprintf(&b, "    classDef current fill:#fde68a,stroke:#b45309,color:#111\n    class %s current\n", id[d.Current])
	}
	return b.String()
}

// DOT returns the table in Graphviz's language. Terminal states have a double border, the
// current one is filled.
func (t Table[S]) DOT(d Drawing[S]) string {
	var b strings.Builder
	b.WriteString("digraph {\n\trankdir=LR\n\tnode [shape=box style=rounded]\n")
	if t.Has(d.Initial) {
		fmt.Fprintf(&b, "\t\"\" [shape=point]\n\t\"\" -> %s\n", DOTText(string(d.Initial)))
	}
	for _, s := range t.Phases() {
		var attrs []string
		if t.IsTerminal(s) {
			attrs = append(attrs, "peripheries=2")
		}
		if s == d.Current && s != "" {
			attrs = append(attrs, `style="rounded,filled" fillcolor="#fde68a" color="#b45309"`)
		}
		fmt.Fprintf(&b, "\t%s%s\n", DOTText(string(s)), bracketed(attrs))
	}
	for _, e := range t.Edges() {
		if !t.Has(e.To) {
			continue
		}
		var attrs []string
		if label := d.label(e); label != "" {
			attrs = append(attrs, "label="+DOTText(label))
		}
		fmt.Fprintf(&b, "\t%s -> %s%s\n", DOTText(string(e.From)), DOTText(string(e.To)), bracketed(attrs))
	}
	b.WriteString("}\n")
	return b.String()
}

func (d Drawing[S]) label(e Edge[S]) string {
	if d.Label == nil {
		return ""
	}
	return d.Label(e)
}

func bracketed(attrs []string) string {
	if len(attrs) == 0 {
		return ""
	}
	return " [" + strings.Join(attrs, " ") + "]"
}

// ids gives each state a valid Mermaid identifier: its own name if that is one,
// and otherwise the next of s0, s1, … that is not the name of another state.
func ids[S ~string](t Table[S]) map[S]string {
	out := make(map[S]string, len(t))
	taken := make(map[string]bool, len(t))
	for s := range t {
		if plain(string(s)) {
			out[s], taken[string(s)] = string(s), true
		}
	}
	n := 0
	for _, s := range t.Phases() {
		if out[s] != "" {
			continue
		}
		for taken[fmt.Sprint("s", n)] {
			n++
		}
		out[s] = fmt.Sprint("s", n)
		n++
	}
	return out
}

// plain reports whether s is a safe Mermaid identifier: letters, digits and
// underscores, and not a keyword of Mermaid.
func plain(s string) bool {
	switch strings.ToLower(s) {
	case "", "state", "note", "end", "direction", "class", "classdef", "style", "as", "default", "click",
		"accdescr", "acctitle", "hide", "scale", "tb", "lr", "rl", "bt":
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return !(r == '_' || r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)))
	}) < 0
}

// MermaidLabel makes any text safe in a label of a Mermaid diagram. It replaces
// each character with a meaning in Mermaid or HTML by its entity code, and
// control characters by spaces.
func MermaidLabel(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsControl(r):
			b.WriteByte(' ')
		case strings.ContainsRune("\"'`<>&#;:{}[]|\\%-", r):
			fmt.Fprintf(&b, "#%d;", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// DOTText returns text as a quoted string of Graphviz's language: backslash and
// quote are escaped, control characters become spaces.
func DOTText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
