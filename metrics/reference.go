package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one metric of [With] or [Pool].
type Metric struct {
	Name   string
	Type   string // "gauge", "counter" or "histogram"
	Labels []string
	Help   string
}

// Reference lists every metric: first of the App, then of its units, probes, servers,
// stop and pools ([Pool]). The caller owns the slice.
func Reference() []Metric {
	list := make([]Metric, 0, len(all)+2+len(ofPools))
	for _, m := range all {
		list = append(list, m.Metric)
	}
	list = append(list, stopTook, phasesTook)
	list = append(list, ofPools...)
	for i := range list {
		list[i].Labels = slices.Clone(list[i].Labels)
	}
	return list
}

// metric is a Metric with its description and kind for prometheus.
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
	appInfo   = gauge("lifecycle_app_info", "Always 1; the label is the name of the service.", "app")
	buildInfo = gauge("lifecycle_build_info",
		"Always 1; the labels are the path and version of the program's main module, the revision that it was "+
			"built from, the version of Go, and that of lifecycle-go. A label is empty when the program does not "+
			"know it.",
		"path", "version", "revision", "goversion", "lifecycle")
	phase        = gauge("lifecycle_phase", "1 for the phase that the app is in, 0 for the others.", "phase")
	phaseEntered = gauge("lifecycle_phase_entered_timestamp_seconds",
		"When the app entered the phase, in Unix time. Absent for a phase that it has not entered.",
		"phase")
	phaseTook = gauge("lifecycle_phase_duration_seconds",
		"Time that the app spent in the phase, so far when it is still in it: draining is the drain, stopping "+
			"the shutdown. Absent for a phase that it has not entered.",
		"phase")
	transitions = counter("lifecycle_transitions_total",
		"Changes of state, by kind of component (app, worker, probe, drainer, hook, reload) and by the state "+
			"entered.",
		"kind", "state")
	eventsLost = counter("lifecycle_events_lost_total",
		"Changes of state that lifecycle_transitions_total does not count, because they came too fast.")

	drainInterval = gauge("lifecycle_drain_interval_seconds", "Length of the drain window, as configured.")
	shutdownGrace = gauge("lifecycle_shutdown_grace_seconds",
		"Time for everything after the drain window together, as configured.")
	reportSlice = gauge("lifecycle_report_slice_seconds", "The part of the shutdown grace that is kept for reports, as configured.")
	stopBudget  = gauge("lifecycle_stop_budget_seconds",
		"Longest time that a stop may take: preStop hook, drain window, shutdown grace and margin. The pod's "+
			"grace may not be shorter.")
	declaredGrace = gauge("lifecycle_termination_grace_seconds",
		"The pod's terminationGracePeriodSeconds, as declared in the configuration. Absent when it is not "+
			"declared.")

	unitStatus = gauge("lifecycle_unit_status",
		"1 for the status that the unit is in, 0 for the others.",
		"unit", "status")
	unitRestarts = counter("lifecycle_unit_restarts_total", "Restarts of the unit and of every worker below it.", "unit")
	unitChildren = gauge("lifecycle_unit_children",
		"Workers below the unit that are in the status. Absent for a unit that never had any.",
		"unit", "status")

	probeState = gauge("lifecycle_probe_state",
		"1 for the state that the check is in (up, down, unknown), 0 for the others.",
		"plane", "probe", "state")
	probeTook = gauge("lifecycle_probe_last_duration_seconds",
		"Duration of the last run of the check. Absent before the first run has ended.",
		"plane", "probe")
	probeRuns = counter("lifecycle_probe_runs_total", "Runs of the check that have ended.", "plane", "probe")

	inFlight = gauge("lifecycle_requests_in_flight",
		"Requests that handlers are working on. 0 for gRPC, whose requests the app cannot see.",
		"server")
	conns = gauge("lifecycle_connections_open",
		"Open connections: http (of the server) and hijacked (taken over by a handler, such as websockets).",
		"server", "kind")
	accepted = counter("lifecycle_connections_accepted_total", "Connections accepted.", "server")
	cut      = counter("lifecycle_requests_cut_total",
		"Requests that the app cut because they were still in flight when their time was over.")

	drainerResult = gauge("lifecycle_drainer_result",
		"1 for the result with which the drainer has ended. Absent before.",
		"drainer", "result")
	drainerTook = gauge("lifecycle_drainer_duration_seconds",
		"Duration of the drainer. Absent before it has ended.",
		"drainer")
	hookResult = gauge("lifecycle_hook_result",
		"1 for the result with which the shutdown hook has ended. Absent before.",
		"hook", "result")
	hookTook = gauge("lifecycle_hook_duration_seconds",
		"Duration of the shutdown hook. Absent before it has ended.",
		"hook")
	reloads    = counter("lifecycle_reloads_total", "Reloads that have ended, by result.", "reload", "result")
	lastEnding = gauge("lifecycle_last_stop_ending",
		"1 for how the last stop ended, 0 for the other ways. The last stop is this process's own once it is "+
			"over, and until then that of the process before it, from last_stop_file. All lifecycle_last_stop_ "+
			"metrics are absent when neither is known. By the primary cause: clean, failed, cut (requests were "+
			"cut), abandoned (a part did not return); killed (by the watchdog or a further signal), interrupted "+
			"(the process ended during its stop, as by SIGKILL), crashed (it ended without a stop).",
		"ending")
	lastEnd = gauge("lifecycle_last_stop_timestamp_seconds",
		"When the last stop was over, in Unix time. After interrupted and crashed, when the process entered "+
			"its last phase.")
	lastTold = gauge("lifecycle_last_stop_told_timestamp_seconds",
		"Since when this process has reported the last stop, in Unix time: since the stop was over or, when it "+
			"was that of the process before, since this process began.")
	lastTook = gauge("lifecycle_last_stop_duration_seconds",
		"Duration of the last stop, from the request to the return of the last shutdown hook. Absent after "+
			"interrupted and crashed.")
	lastBudget = gauge("lifecycle_last_stop_budget_seconds",
		"The longest that the last stop might have taken, without preStop.")
	lastCut       = gauge("lifecycle_last_stop_requests_cut", "Requests that the last stop cut.")
	lastAbandoned = gauge("lifecycle_last_stop_abandoned", "Units, drainers and hooks that the last stop abandoned.")
	lastExit      = gauge("lifecycle_last_stop_exit_status",
		"Exit status of the last stop, as lifecycle.ExitCode gives it: 0 clean, 70 abandoned or the watchdog, "+
			"75 cut, 128+n by signal n, or 1. Absent after interrupted and crashed.")
	abandoned = gauge("lifecycle_abandoned_goroutines",
		"Units, drainers, hooks and reloads that did not return in time and were abandoned, each with its "+
			"goroutine.")
)

// The histograms.
var (
	stopTook = Metric{
		Name: "lifecycle_stop_duration_seconds",
		Type: "histogram",
		Help: "Duration of the stop of this process, from the request to the return of the last shutdown hook: one " +
			"observation, once it is over, which a scrape sees with report_slice. Also a native histogram.",
	}
	phasesTook = Metric{
		Name:   "lifecycle_phase_completed_duration_seconds",
		Type:   "histogram",
		Labels: []string{"phase"},
		Help: "Durations of the phases that have ended: starting, running, draining, stopping. Also a native " +
			"histogram.",
	}
)
