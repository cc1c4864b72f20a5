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

This page is made from the package metrics by "make docs". ` + "`metrics.With(registerer)`" + ` registers the metrics of an App with a registry and serves it at /metrics on the health address. Metrics with pool in their names describe a pool of worker processes: register ` + "`metrics.Pool(pool)`" + ` with the same registry. A stateset, such as lifecycle_phase, has a series for each state; exactly one of them is 1. Times are in seconds. No metric has exemplars. Label values are names that the program gave (units, probes, hooks) and names of states, so the number of series depends only on the parts of the program.

| metric | type | labels | meaning |
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
