package vet

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// WriteText writes the findings for people, one paragraph each, and a line that
// counts them. Control characters of the manifests become spaces.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s:%d:%d: %s: %s\n", text.OneLine(f.File), f.Line, f.Column, f.Severity, f.Rule)
		if where := f.where(); where != "" {
			fmt.Fprintf(&b, "  %s\n", text.OneLine(where))
		}
		fmt.Fprintf(&b, "  %s\n  fix: %s\n\n", text.OneLine(f.Reason), text.OneLine(f.Fix))
	}
	fmt.Fprintf(&b, "%s looked at: %s, %s, %s\n", count(r.Objects, "workload"),
		count(r.AtLeast(Error), "error"), count(r.AtLeast(Warning)-r.AtLeast(Error), "warning"), count(len(r.Findings)-r.AtLeast(Warning), "note"))
	_, err := io.WriteString(w, b.String())
	return err
}

// where returns the place of the finding on one line.
func (f Finding) where() string {
	var parts []string
	if f.Object != "" {
		parts = append(parts, f.Object)
	}
	if f.Container != "" {
		parts = append(parts, "container "+f.Container)
	}
	if f.Field != "" {
		parts = append(parts, f.Field)
	}
	if f.Source != "" {
		parts = append(parts, "from "+f.Source)
	}
	return strings.Join(parts, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// WriteJSON writes the report as one object, indented: findings, an array that
// may be empty and is never null, and objects, a number.
func (r Report) WriteJSON(w io.Writer) error {
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	return encode(w, r)
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
