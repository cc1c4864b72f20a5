// Package metrics shows a host of hosted workers to Prometheus:
//
//	prometheus.MustRegister(metrics.New(h))
//
// The counters cover this host since it started:
//
//	lifecycle_hosted_messages_total{worker, generation, result}  result is succeeded, failed or dead
//	lifecycle_hosted_dropped_total{worker, generation, what}     what is output (without a topic) or letter (one too many)
//	lifecycle_hosted_backlog{worker, group}                      messages that wait for a worker of this host, at most two seconds old
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

var (
	messages = prometheus.NewDesc("lifecycle_hosted_messages_total", "Results of the messages of a hosted worker on this host, by version of its code.",
		[]string{"worker", "generation", "result"}, nil)
	dropped = prometheus.NewDesc("lifecycle_hosted_dropped_total", "Outputs without a topic, and dead letters beyond the limit, that this host dropped.",
		[]string{"worker", "generation", "what"}, nil)
	children = prometheus.NewDesc("lifecycle_hosted_children", "Child processes that run the code of hosted workers.", nil, nil)
	started  = prometheus.NewDesc("lifecycle_hosted_children_started_total", "Child processes that were started for the code of hosted workers.", nil, nil)
	killed   = prometheus.NewDesc("lifecycle_hosted_children_killed_total", "Child processes that their code ended, or that were ended to end their code.", nil, nil)
	missing  = prometheus.NewDesc("lifecycle_hosted_floor_missing", "Parts of the containment of hosted code that this system does not have.", nil, nil)
	backlog  = prometheus.NewDesc("lifecycle_hosted_backlog", "Messages that wait for a hosted worker of this host, or for its group.", []string{"worker", "group"}, nil)
	letters  = prometheus.NewDesc("lifecycle_hosted_dead_letters", "Dead letters of a hosted worker of this host that have not been redriven.", []string{"worker"}, nil)
	workers  = prometheus.NewDesc("lifecycle_hosted_workers", "Hosted workers that are loaded on this host.", nil, nil)
)

// New returns a collector for h.
func New(h *host.Host) *Collector { return &Collector{host: h} }

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- messages
	ch <- dropped
	ch <- workers
	ch <- children
	ch <- started
	ch <- killed
	ch <- missing
	ch <- backlog
	ch <- letters
}

// askFor bounds the requests of a scrape.
const askFor = 5 * time.Second

// Collect sends the present values.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(workers, prometheus.GaugeValue, float64(len(c.host.Local())))
	i := c.host.Isolation()
	ch <- prometheus.MustNewConstMetric(children, prometheus.GaugeValue, float64(i.Running))
	ch <- prometheus.MustNewConstMetric(started, prometheus.CounterValue, float64(i.Started))
	ch <- prometheus.MustNewConstMetric(killed, prometheus.CounterValue, float64(i.Killed))
	ch <- prometheus.MustNewConstMetric(missing, prometheus.GaugeValue, float64(len(i.Missing)))
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	rows, _ := c.host.Backlogs(ctx) // without an answer there are no rows
	for _, b := range rows {
		ch <- prometheus.MustNewConstMetric(backlog, prometheus.GaugeValue, float64(b.Backlog), b.Worker, b.Group)
		ch <- prometheus.MustNewConstMetric(letters, prometheus.GaugeValue, float64(b.DeadLetters), b.Worker)
	}
	for _, t := range c.host.Tallies() {
		for result, n := range map[string]uint64{"succeeded": t.Succeeded, "failed": t.Failed, "dead": t.DeadLetters} {
			ch <- prometheus.MustNewConstMetric(messages, prometheus.CounterValue, float64(n), t.Worker, strconv.Itoa(t.Generation), result)
		}
		for what, n := range map[string]uint64{"output": t.Discarded, "letter": t.Evicted} {
			ch <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(n), t.Worker, strconv.Itoa(t.Generation), what)
		}
	}
}
