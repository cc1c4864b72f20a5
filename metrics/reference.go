package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one of the metrics that [With] registers or [Pool] makes.
type Metric struct {
	Name   string
	Type   string // "gauge", "counter" or "histogram"
	Labels []string
	Help   string
}

// Reference lists every metric, in the order in which they are about the app, its
// units, its probes, its servers, its stop, and its pools ([Pool]). The caller
// owns it.
func Reference() []Metric {
	list := make([]Metric, 0, len(all)+len(ofPools))
	for _, m := range all {
		list = append(list, m.Metric)
	}
	list = append(list, ofPools...)
	for i := range list {
		list[i].Labels = slices.Clone(list[i].Labels)
	}
	return list
}

// metric is one with what prometheus needs of it.
type metric struct {
	Metric
	desc *prometheus.Desc
	kind prometheus.ValueType
}

var all []*metric

func gauge(name, help string, labels ...string) *metric {
	return define(name, "gauge", prometheus.GaugeValue, help, labels)
}

func counter(name, help string, labels ...string) *metric {
	return define(name, "counter", prometheus.CounterValue, help, labels)
}

func define(name, typ string, kind prometheus.ValueType, help string, labels []string) *metric {
	m := &metric{Metric{name, typ, labels, help}, prometheus.NewDesc(name, help, labels, nil), kind}
	all = append(all, m)
	return m
}

var (
	appInfo      = gauge("lifecycle_app_info", "Always 1; the label is the name of the service.", "app")
	phase        = gauge("lifecycle_phase", "1 for the phase that the app is in, 0 for the others.", "phase")
	phaseEntered = gauge("lifecycle_phase_entered_timestamp_seconds", "When the app entered the phase, in Unix time; absent for those that it has not.", "phase")
	phaseTook    = gauge("lifecycle_phase_duration_seconds", "How long the app was in the phase, or has been by now: draining is the drain, stopping the shutdown. Absent for those that it has not entered.", "phase")
	transitions  = counter("lifecycle_transitions_total", "Changes of state, by the kind of what lives (app, worker, probe, drainer, hook, reload) and the state entered.", "kind", "state")
	eventsLost   = counter("lifecycle_events_lost_total", "Changes of state that came too fast to be counted in lifecycle_transitions_total.")

	drainInterval = gauge("lifecycle_drain_interval_seconds", "Length of the drain window, as configured.")
	shutdownGrace = gauge("lifecycle_shutdown_grace_seconds", "What everything after the drain window may take, as configured.")
	stopBudget    = gauge("lifecycle_stop_budget_seconds", "What a stop may take in all: preStop hook, drain window, shutdown grace and margin. The grace of the pod has to be longer.")
	declaredGrace = gauge("lifecycle_termination_grace_seconds", "The pod's terminationGracePeriodSeconds, as declared in the configuration; absent when it is not.")

	unitStatus   = gauge("lifecycle_unit_status", "1 for the status that the unit is in, 0 for the others.", "unit", "status")
	unitRestarts = counter("lifecycle_unit_restarts_total", "Restarts of the unit and of everything below it.", "unit")
	unitChildren = gauge("lifecycle_unit_children", "Workers below the unit that are in the status; absent for a unit that never had any.", "unit", "status")

	probeState = gauge("lifecycle_probe_state", "1 for the state that the check is in (up, down, unknown), 0 for the others.", "plane", "probe", "state")
	probeTook  = gauge("lifecycle_probe_last_duration_seconds", "How long the last run of the check took; absent before the first has ended.", "plane", "probe")
	probeRuns  = counter("lifecycle_probe_runs_total", "Runs of the check that have ended.", "plane", "probe")

	inFlight = gauge("lifecycle_requests_in_flight", "Requests that are being handled. 0 for gRPC, where they cannot be seen.", "server")
	conns    = gauge("lifecycle_connections_open", "Open connections: http are those that are the server's, hijacked those that a handler has taken over, such as websockets.", "server", "kind")
	accepted = counter("lifecycle_connections_accepted_total", "Connections accepted.", "server")
	cut      = counter("lifecycle_requests_cut_total", "Requests that were still in flight when their time was over, and were cut.")

	drainerResult = gauge("lifecycle_drainer_result", "1 for how the drainer has ended; absent before.", "drainer", "result")
	drainerTook   = gauge("lifecycle_drainer_duration_seconds", "How long the drainer took; absent before it has ended.", "drainer")
	hookResult    = gauge("lifecycle_hook_result", "1 for how the shutdown hook has ended; absent before.", "hook", "result")
	hookTook      = gauge("lifecycle_hook_duration_seconds", "How long the shutdown hook took; absent before it has ended.", "hook")
	reloads       = counter("lifecycle_reloads_total", "Reloads that have ended, by how.", "reload", "result")
	abandoned     = gauge("lifecycle_abandoned_goroutines", "Units, drainers, hooks and reloads that did not return in time and were abandoned, each with its goroutine.")
)
