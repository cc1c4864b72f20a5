package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// table is a set of states in the code of this repository: a table of transitions, or constants
// that name the steps of a protocol.
type table struct {
	name string // of the table in the models
	what string // for people
	file string // that declares it
	decl string // the variable of a table of transitions, or the first of the constants
	mark string // begins the name of each constant in the models, because these share one space
}

// tables are what the models take from the code.
var tables = []table{
	{name: "Phases", what: "the phases of an App", file: "app.go", decl: "phases"},
	{name: "Steps", what: "how a drainer, a hook or a reload goes", file: "app.go", decl: "steps"},
	{name: "Statuses", what: "the statuses of a worker", file: "worker/status.go", decl: "transitions"},
	{name: "Goodbye", what: "the steps of a goodbye on HTTP/2", file: "internal/httpdrain/http2conn.go", decl: "notAsked", mark: "goodbye_"},
	{name: "Outcome", what: "what became of a write without an answer", file: "fleet/workflow/publish.go", decl: "undecided", mark: "outcome_"},
}

// states are the states of one table, in the order of the code.
type states struct {
	names []string
	next  map[string][]string // nil for constants
}

// read reads the table from the code. It compares nothing with the values of the constants: a
// state that was renamed in the code has another name in the models, which then do not build.
func (t table) read(root string) (states, error) {
	path := filepath.Join(root, filepath.FromSlash(t.file))
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return states{}, err
	}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range decl.Specs {
			spec, ok := s.(*ast.ValueSpec)
			switch {
			case !ok || spec.Names[0].Name != t.decl:
			case decl.Tok == token.CONST:
				return t.constants(decl), nil
			case len(spec.Values) == 1:
				return transitions(spec.Values[0])
			}
		}
	}
	return states{}, fmt.Errorf("%s declares no %s", t.file, t.decl)
}

// constants returns the names of a block of constants.
func (t table) constants(block *ast.GenDecl) (s states) {
	for _, spec := range block.Specs {
		values, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue // a block of constants has nothing else
		}
		for _, name := range values.Names {
			s.names = append(s.names, t.mark+name.Name)
		}
	}
	return s
}

// transitions returns the content of an fsm.Table.
func transitions(value ast.Expr) (states, error) {
	s := states{next: map[string][]string{}}
	literal, ok := value.(*ast.CompositeLit)
	if !ok {
		return s, fmt.Errorf("a %T is not the literal of a table", value)
	}
	for _, element := range literal.Elts {
		row, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return s, fmt.Errorf("a %T is not a row of a table", element)
		}
		from, fromOK := row.Key.(*ast.Ident)
		to, toOK := row.Value.(*ast.CompositeLit)
		if !fromOK || !toOK {
			return s, fmt.Errorf("a row of a table has the key %T and the value %T", row.Key, row.Value)
		}
		s.names = append(s.names, from.Name)
		for _, next := range to.Elts {
			id, ok := next.(*ast.Ident)
			if !ok {
				return s, fmt.Errorf("a %T is not a state", next)
			}
			s.next[from.Name] = append(s.next[from.Name], id.Name)
		}
	}
	return s, nil
}

// statesFile returns the content of states.pml.
func statesFile(root string) (string, error) {
	var b strings.Builder
	b.WriteString("/* Made from the tables in the Go code by tools/models (make docs). Do not edit. */\n")
	for _, t := range tables {
		s, err := t.read(root)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n/* %s: %s, %s */\nmtype = {\n\t%s\n};\n", t.what, t.file, t.decl, strings.Join(s.names, ",\n\t"))
		if s.next == nil {
			continue
		}
		var rows []string
		for _, from := range s.names {
			var tos []string
			for _, to := range s.next[from] {
				tos = append(tos, "(to) == "+to)
			}
			if len(tos) > 0 {
				rows = append(rows, fmt.Sprintf("(from) == %s && (%s)", from, strings.Join(tos, " || ")))
			}
		}
		fmt.Fprintf(&b, "#define %sAllow(from, to) ( \\\n\t%s )\n", t.name, strings.Join(rows, " || \\\n\t"))
	}
	b.WriteString(wordOfModel)
	return b.String(), nil
}

// wordOfModel lets a model follow the records of the code.
const wordOfModel = `
/* A record of the code says what happens: see record.go in internal/models. */
#ifdef RECORD
byte events;
short latest;
#define EVENT(life, state) ((life) * 64 + (state))
inline event(life, state) { d_step { events++; latest = EVENT(life, state) } }
#else
inline event(life, state) { skip }
#endif
`
