package vet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says how bad a finding is.
type Severity int

const (
	// Info is worth knowing and may be intended.
	Info Severity = iota
	// Warning costs requests or capacity under some circumstances.
	Warning
	// Error contradicts the configuration: the drain does not happen as configured.
	Error
)

var severities = [...]string{Info: "info", Warning: "warning", Error: "error"}

// String returns "info", "warning" or "error".
func (s Severity) String() string {
	if s < Info || s > Error {
		return fmt.Sprintf("Severity(%d)", int(s))
	}
	return severities[s]
}

// MarshalText returns the same text as String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (s *Severity) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSeverity(string(text))
	return err
}

// ParseSeverity reads "info", "warning" or "error". Anything else is an error
// that names the three.
func ParseSeverity(text string) (Severity, error) {
	if i := slices.Index(severities[:], text); i >= 0 {
		return Severity(i), nil
	}
	return 0, fmt.Errorf("severity is %q, want info, warning or error", text)
}

// Finding is one contradiction, with its place, its reason and its fix.
type Finding struct {
	// Rule is the stable id of the rule, one of [Rules].
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`

	// File is the Name of the [File]. Line and Column count from 1. For a missing
	// field they point to the object that should hold it. Source is the chart's
	// template when the file is a rendered chart.
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Source string `json:"source,omitempty"`

	// Object is "Deployment/web", or "Deployment/shop/web" in a namespace.
	// Container is the container's name and Field the path of the field. They are
	// empty when the finding is about the whole file.
	Object    string `json:"object,omitempty"`
	Container string `json:"container,omitempty"`
	Field     string `json:"field,omitempty"`

	// Reason names the two values that contradict each other. Fix says which one to
	// change, and to which value.
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

// Report is what [Checker.Check] found.
type Report struct {
	// Findings are sorted by file, line, column and rule.
	Findings []Finding `json:"findings"`
	// Objects is the number of checked workloads: objects with pods.
	Objects int `json:"objects"`
}

// AtLeast returns how many findings are of this severity or worse.
func (r Report) AtLeast(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity >= s {
			n++
		}
	}
	return n
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			strings.Compare(a.Rule, b.Rule), strings.Compare(a.Field, b.Field))
	})
	// Two Services or budgets may have led to the same place.
	r.Findings = slices.Compact(r.Findings)
}
