// Package metrics shows what an operator server finds wrong in a fleet to Prometheus,
// by the rules of its front page and of lifecyclectl doctor:
//
//	prometheus.MustRegister(metrics.New(server))
//
// The metrics cover the whole fleet. Of several replicas of a server scrape one, or use
// max without (instance):
//
//	lifecycle_fleet_findings{rule, severity}  things that are wrong now; 0 when a rule finds nothing
//	lifecycle_fleet_not_looked_at             areas that could not be looked at
//
// Begin with [New]. It asks the server for its diagnosis at each scrape, and keeps nothing.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// Collector asks a server at every scrape. It stores nothing itself.
type Collector struct{ server *operator.Server }

var (
	findings = prometheus.NewDesc("lifecycle_fleet_findings",
		"Things that are wrong in the fleet now, by rule.", []string{"rule", "severity"}, nil)
	unseen = prometheus.NewDesc("lifecycle_fleet_not_looked_at",
		"Areas of the fleet that could not be looked at.", nil, nil)
)

// scrapeTime bounds one scrape.
const scrapeTime = 5 * time.Second

// New returns a collector for s.
func New(s *operator.Server) *Collector { return &Collector{server: s} }

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- findings
	ch <- unseen
}

// Collect sends the present values. It sends none when the server cannot answer in
// time.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	answer, err := c.server.Diagnosis(ctx)
	if err != nil {
		return
	}
	count := map[[2]string]int{}
	for _, rule := range diagnosis.Rules {
		count[[2]string{rule.Name, rule.Severity}] = 0
	}
	for _, f := range answer.GetFindings() {
		count[[2]string{f.GetRule(), f.GetSeverity()}]++
	}
	for key, n := range count {
		ch <- prometheus.MustNewConstMetric(findings, prometheus.GaugeValue, float64(n), key[0], key[1])
	}
	ch <- prometheus.MustNewConstMetric(unseen, prometheus.GaugeValue, float64(len(answer.GetNotLookedAt())))
}
