// Package metrics shows a host of hosted workers to Prometheus:
//
//	prometheus.MustRegister(metrics.New(h))
//
// The counters cover this host since it started:
//
//	lifecycle_hosted_messages_total{worker, generation, result}  result is succeeded, failed or dead
//	lifecycle_hosted_workers                                     workers that are loaded here
//
// failed counts attempts, so a message that became a dead letter counts as failed
// and as dead.
package metrics

import (
	"strconv"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector reads a host at every scrape. It stores nothing itself.
type Collector struct {
	host *host.Host
}

var (
	messages = prometheus.NewDesc("lifecycle_hosted_messages_total", "Results of the messages of a hosted worker on this host, by version of its code.",
		[]string{"worker", "generation", "result"}, nil)
	workers = prometheus.NewDesc("lifecycle_hosted_workers", "Hosted workers that are loaded on this host.", nil, nil)
)

// New returns a collector for h.
func New(h *host.Host) *Collector { return &Collector{host: h} }

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- messages
	ch <- workers
}

// Collect sends the present values.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(workers, prometheus.GaugeValue, float64(len(c.host.Local())))
	for _, t := range c.host.Tallies() {
		for result, n := range map[string]uint64{"succeeded": t.Succeeded, "failed": t.Failed, "dead": t.DeadLetters} {
			ch <- prometheus.MustNewConstMetric(messages, prometheus.CounterValue, float64(n), t.Worker, strconv.Itoa(t.Generation), result)
		}
	}
}
