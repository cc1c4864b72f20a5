// Package metrics shows the views of a workflow.Manager to Prometheus:
//
//	prometheus.MustRegister(metrics.New(mgr))
//
// Those of a view have the label bucket, and those of a hook the labels workflow and hook:
//
//	lifecycle_workflow_view_ready        1 for a view that has read its bucket, else 0
//	lifecycle_workflow_view_entities     entities in the view
//	lifecycle_workflow_view_age_seconds  how long ago the bucket was as the view has it; absent before the view is ready
//	lifecycle_workflow_view_writes_waiting  writes of this process that wait for the journal
//	lifecycle_workflow_hook_waiting       writes of the bucket that the hook has not looked at or not reacted to with success
//	lifecycle_workflow_hook_dead_letters  reactions that the hook has given up
//
// The age of a view that follows its bucket stays below a few seconds. It grows while
// the server or the bucket is away.
//
// Every process that registers a hook shows the same figures of it: take the maximum. A server
// that does not answer leaves them out.
//
// Begin with [New]. It asks the Manager at each scrape, and keeps nothing.
package metrics

import (
	"context"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector reads a Manager at every scrape. It stores nothing itself.
type Collector struct {
	m *workflow.Manager
}

var (
	ready    = describe("view_ready", "1 for a view that has read its bucket, else 0.", "bucket")
	entities = describe("view_entities", "Entities in the view of a bucket.", "bucket")
	age      = describe("view_age_seconds", "How long ago the bucket was as the view has it.", "bucket")
	writes   = describe("view_writes_waiting",
		"Writes of this process that wait until the journal has an earlier change of phase.", "bucket")
	waiting = describe("hook_waiting",
		"Writes that a hook has not looked at, or not reacted to with success.", "workflow", "hook")
	letters = describe("hook_dead_letters", "Reactions that a hook has given up.", "workflow", "hook")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lifecycle_workflow_"+name, help, labels, nil)
}

const askFor = 5 * time.Second

// New returns a collector for m.
func New(m *workflow.Manager) *Collector { return &Collector{m: m} }

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, of := range []*prometheus.Desc{ready, entities, age, writes, waiting, letters} {
		ch <- of
	}
}

// Collect sends the present values.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	send := func(of *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, value, labels...)
	}
	for _, def := range c.m.ListWorkflows() {
		hooks, _ := c.m.HookStatuses(ctx, def.Workflow) // there are none without an answer
		for _, h := range hooks {
			send(waiting, float64(h.Waiting), h.Workflow, h.Hook)
			send(letters, float64(h.DeadLetters), h.Workflow, h.Hook)
		}
	}
	for _, v := range c.m.Views() {
		is := 0.0
		if v.Ready {
			is = 1
		}
		send(ready, is, v.Bucket)
		send(entities, float64(v.Entities), v.Bucket)
		send(writes, float64(v.Waiting), v.Bucket)
		if !v.AsOf.IsZero() {
			send(age, time.Since(v.AsOf).Seconds(), v.Bucket)
		}
	}
}
