// Package metrics shows the views of a workflow.Manager to Prometheus:
//
//	prometheus.MustRegister(metrics.New(mgr))
//
// Each has the label bucket:
//
//	lifecycle_workflow_view_ready        1 for a view that has read its bucket, else 0
//	lifecycle_workflow_view_entities     entities in the view
//	lifecycle_workflow_view_age_seconds  how long ago the bucket was as the view has it; absent before the view is ready
//
// The age of a view that follows its bucket stays below a few seconds. It grows while
// the server or the bucket is away.
//
// Begin with [New]. It asks the Manager at each scrape, and keeps nothing.
package metrics

import (
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector reads a Manager at every scrape. It stores nothing itself.
type Collector struct {
	m *workflow.Manager
}

var (
	ready    = describe("ready", "1 for a view that has read its bucket, else 0.")
	entities = describe("entities", "Entities in the view of a bucket.")
	age      = describe("age_seconds", "How long ago the bucket was as the view has it.")
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("lifecycle_workflow_view_"+name, help, []string{"bucket"}, nil)
}

// New returns a collector for m.
func New(m *workflow.Manager) *Collector { return &Collector{m: m} }

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- ready
	ch <- entities
	ch <- age
}

// Collect sends the present values.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, v := range c.m.Views() {
		is := 0.0
		if v.Ready {
			is = 1
		}
		ch <- prometheus.MustNewConstMetric(ready, prometheus.GaugeValue, is, v.Bucket)
		ch <- prometheus.MustNewConstMetric(entities, prometheus.GaugeValue, float64(v.Entities), v.Bucket)
		if !v.AsOf.IsZero() {
			ch <- prometheus.MustNewConstMetric(age, prometheus.GaugeValue, time.Since(v.AsOf).Seconds(), v.Bucket)
		}
	}
}
