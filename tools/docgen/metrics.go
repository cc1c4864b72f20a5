package main

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/metrics"
)

// metricsPage returns the reference of all metrics.
func metricsPage() ([]byte, error) {
	var b strings.Builder
	b.WriteString(`# Every metric

This page is made from the package metrics by "make docs". ` + "`metrics.With(registerer)`" + ` registers those of an App with a registry and serves it at /metrics on the health address. Those with pool in their names are of a pool of worker processes: register ` + "`metrics.Pool(pool)`" + ` with the same registry. A stateset, such as lifecycle_phase, has a series for each state, of which one is 1. Times are in seconds. No metric has exemplars, and label values are names from the program text or words of its tables of states.

| metric | type | labels | what it says |
| --- | --- | --- | --- |
`)
	for _, m := range metrics.Reference() {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, m.Help)
	}
	return []byte(b.String()), nil
}
