// Package metrics shows the life of a [lifecycle.App] to Prometheus:
//
//	app, err := lifecycle.New(cfg.Lifecycle, metrics.With(prometheus.DefaultRegisterer))
//
// A scrape reads [lifecycle.App.Status] and the events since the scrape before it.
// Between two scrapes nothing runs. A scrape costs the App no more than a request for
// /statusz and starts no probe.
//
// Label values are names from the program's text (units, probes, hooks) and words
// of the tables of states. So the number of series depends only on the parts of the
// program. The children of a supervisor come and go, so a metric counts them by
// status and not by name. There are no exemplars. The durations of a stop, of phases and of
// a pool's queries are histograms.
//
// A pool of worker processes is one of the App's units. [Pool] has its metrics:
//
//	prometheus.MustRegister(metrics.Pool(pool))
//
// [Reference] lists the metrics; docs/reference/metrics.md is made from it.
package metrics

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// With registers the metrics of an App with reg. When reg is also a
// [prometheus.Gatherer], as a [prometheus.Registry] and
// prometheus.DefaultRegisterer are, the App serves everything in it at /metrics
// on the health address. For a registerer that is not a Gatherer, such as one of
// prometheus.WrapRegistererWith, add lifecycle.WithMetrics([Handler](gatherer)).
// An option WithMetrics after With replaces the handler.
//
// [lifecycle.New] fails when reg is nil or already has the metrics of an App: give
// each App a registry of its own, or wrap a shared one with a different label for
// each. The metrics stay registered after the App has ended. When New fails, they
// stay registered only if the setup of an option after With failed.
func With(reg prometheus.Registerer) lifecycle.Option {
	return func(a *lifecycle.App) {
		if gatherer, ok := reg.(prometheus.Gatherer); ok {
			lifecycle.WithMetrics(Handler(gatherer))(a)
		}
		lifecycle.WithSetup(func(a *lifecycle.App) error { return register(reg, a) })(a)
	}
}

func register(reg prometheus.Registerer, a *lifecycle.App) error {
	if call.IsNil(reg) {
		return errors.New("metrics: the registerer is nil: give it prometheus.DefaultRegisterer or a registry of your own")
	}
	err := reg.Register(newCollector(a))
	var twice prometheus.AlreadyRegisteredError
	switch {
	case errors.As(err, &twice):
		return fmt.Errorf("metrics: the registry has the metrics of an App already: give each App a registry of its own, "+
			"or wrap it with prometheus.WrapRegistererWith and a label: %w", err)
	case err != nil:
		return fmt.Errorf("metrics: register: %w", err)
	}
	return nil
}

// Handler serves the metrics of a gatherer in the formats of Prometheus and
// OpenMetrics. When a collector fails, Handler leaves out its metrics and serves
// all others, because the App's metrics matter most when something is broken.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError})
}
