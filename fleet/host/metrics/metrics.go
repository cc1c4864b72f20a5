// Package metrics shows a host of hosted workers to Prometheus:
//
//	prometheus.MustRegister(metrics.New(h))
//
// The counters cover this host since it started:
//
//	lifecycle_hosted_messages_total{worker, generation, result}  result is succeeded, failed or dead
//	lifecycle_hosted_dropped_total{worker, generation, what}     what is output (without a topic) or letter (one too many)
//	lifecycle_hosted_backlog{worker, group}                      messages that wait for a worker of this host
//	lifecycle_hosted_dead_letters{worker}                        dead letters that have not been redriven
//	lifecycle_hosted_workers                                     workers that are loaded here
//	lifecycle_hosted_children                                    child processes that run code
//	lifecycle_hosted_children_started_total                      children until now
//	lifecycle_hosted_children_killed_total                       those that their code ended, or that were ended to end their code
//	lifecycle_hosted_floor_missing                               parts of the children's containment that this system does not have
//
// Each worker belongs to one host, so the sum of its backlog over all hosts counts each
// message once. The workers of a group have the group's backlog, each: take the maximum by
// group. A server that does not answer leaves both out.
//
// failed counts attempts, so a message that became a dead letter counts as failed
// and as dead.
//
// Begin with [New]. It asks the host at each scrape and keeps nothing.
package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector reads a host at every scrape. It stores nothing itself.
type Collector struct {
	host *host.Host
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lifecycle_hosted_"+name, help, labels, nil)
}

var (
	messages = desc("messages_total", "Results of the messages of a hosted worker on this host, by version of its code.",
		"worker", "generation", "result")
	dropped = desc("dropped_total", "Outputs without a topic, and dead letters beyond the limit, that this host dropped.",
		"worker", "generation", "what")
	children = desc("children", "Child processes that run the code of hosted workers.")
	started  = desc("children_started_total", "Child processes that were started for the code of hosted workers.")
	killed   = desc("children_killed_total", "Child processes that their code ended, or that were ended to end their code.")
	missing  = desc("floor_missing", "Parts of the containment of hosted code that this system does not have.")
	memory   = desc("memory_bytes", "Memory of the host for what workers produce and what waits for them: the budget, and what is taken of it.", "what")
	waiting  = desc("waiting", "Messages, and loads of code, that wait for a place or for memory of this host.", "for")
	waits    = desc("waits_total", "Messages, and loads of code, that had to wait for a place or for memory of this host.", "for")
	backlog  = desc("backlog", "Messages that wait for a hosted worker of this host, or for its group.", "worker", "group")
	letters  = desc("dead_letters", "Dead letters of a hosted worker of this host that have not been redriven.", "worker")
	workers  = desc("workers", "Hosted workers that are loaded on this host.")
)

// New returns a collector for h.
func New(h *host.Host) *Collector { return &Collector{host: h} }

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{messages, dropped, workers, children, started, killed, missing, memory, waiting, waits, backlog, letters} {
		ch <- d
	}
}

// askFor bounds the requests of a scrape.
const askFor = 5 * time.Second

// Collect sends the present values.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	i := c.host.Isolation()
	gauge(workers, len(c.host.Local()))
	gauge(children, i.Running)
	gauge(missing, len(i.Missing))
	counter(started, i.Started)
	counter(killed, i.Killed)
	w := c.host.Waits()
	gauge(memory, int(w.Memory), "budget")
	gauge(memory, int(w.UsedMemory), "taken")
	gauge(waiting, w.ForPlace, "place")
	gauge(waiting, w.ForMemory, "memory")
	counter(waits, w.ForPlaces, "place")
	counter(waits, w.ForMemories, "memory")
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	rows, _ := c.host.Backlogs(ctx) // there are none without an answer
	for _, b := range rows {
		gauge(backlog, b.Backlog, b.Worker, b.Group)
		gauge(letters, b.DeadLetters, b.Worker)
	}
	for _, t := range c.host.Tallies() {
		generation := strconv.Itoa(t.Generation)
		counter(messages, t.Succeeded, t.Worker, generation, "succeeded")
		counter(messages, t.Failed, t.Worker, generation, "failed")
		counter(messages, t.DeadLetters, t.Worker, generation, "dead")
		counter(dropped, t.Discarded, t.Worker, generation, "output")
		counter(dropped, t.Evicted, t.Worker, generation, "letter")
	}
}
