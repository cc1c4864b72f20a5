package main

import (
	"time"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

// check is a measurement that the simulation has to give too.
type check struct {
	key      string
	name     string
	where    string // how it was measured
	scenario rollout.Scenario
	runs     int // simulated; the page shows the mean of one
	rows     []comparison
}

// comparison is one number of both.
type comparison struct {
	what      string
	measured  float64 // the mean of one run
	spread    string  // of the measured runs
	tolerance float64 // the fraction by which the simulation may differ; negative: it differs, and the page says why
	simulated func(r record, runs float64) float64
}

func lostOf(crowd int) func(record, float64) float64 {
	return func(r record, runs float64) float64 { return float64(r.Crowds[crowd].Lost.All()) / runs }
}

// replacement returns the scenario of bench/stop. One server is replaced by another,
// which takes new connections 0.7 s later. Two hundred clients keep their connections and
// pause for up to 1.6 s; eight open one for each request and pause for 10 ms.
func replacement(stop rollout.Stop) rollout.Scenario {
	const handler = 5 * ms
	return rollout.Scenario{
		Nodes: 1, Pods: 1, Trip: 50 * time.Microsecond, Stop: stop,
		Strategy: rollout.Strategy{Unavailable: 1, Startup: 700 * ms},
		Spread:   rollout.Spread{Slice: rollout.Always(700 * ms), Node: rollout.Always(0)},
		Crowds: []rollout.Crowd{
			{Name: "fresh", Fresh: 8 / (10 * ms).Seconds(), Service: handler}, // a refused dial takes no time
			{Name: "kept", Conns: 200, Gap: rollout.Gap{Max: 1600 * ms}, Service: handler},
		},
	}
}

// siege returns the scenario of TestHTTP2LosesNothing of internal/httpdrain, whose
// network in memory takes 10 ms each way. Eight HTTP/2 connections have eight callers
// each, which think for up to 20 ms.
func siege(twoSteps bool) rollout.Scenario {
	const callers, cycle = 8, 10*ms + 2*10*ms + 2500*time.Microsecond // thinking, both ways, the work
	stop := rollout.Stop{
		Drain: true, Window: 400 * ms, GoAwayAfter: 100 * ms, AcceptQuiet: 100 * ms, Linger: 10 * second,
		InFlight: minute, TwoSteps: twoSteps,
	}
	return rollout.Scenario{
		Nodes: 1, Pods: 1, Trip: 10 * ms, Stop: stop, Spread: instant(),
		Strategy: rollout.Strategy{Unavailable: 1, Startup: ms},
		Crowds: []rollout.Crowd{{
			Name: "HTTP/2", HTTP2: true, Conns: 8, Gap: rollout.Gap{Mean: cycle / callers, Max: minute}, Service: 2500 * time.Microsecond,
		}},
	}
}

// onCluster returns the scenario of deploy/e2e: a rolling restart of three pods, with
// kube-proxy paused for 1.5 s when a pod stops, under the clients of
// TestControlPlainServer.
func onCluster(stop rollout.Stop) rollout.Scenario {
	const clients, replicas = 24, 3
	return rollout.Scenario{
		Nodes: 1, Pods: replicas, Trip: 100 * time.Microsecond, Stop: stop,
		Strategy: rollout.Strategy{Surge: 1, Startup: 2 * second},
		Spread:   rollout.Spread{Slice: rollout.Always(0), Node: pausedNode},
		Crowds: []rollout.Crowd{
			{Name: "keep-alive", Conns: clients / replicas, Gap: rollout.Gap{Max: 4 * second}, Service: 2 * ms, Careless: true},
			{Name: "fresh", Fresh: 3 / (87 * ms).Seconds() / replicas, Service: 2 * ms},
		},
	}
}

func checks() []check {
	plain := rollout.Stop{InFlight: 20 * second}
	fast := rollout.Stop{
		Drain: true, Window: second, GoAwayAfter: 200 * ms, AcceptQuiet: 200 * ms, Linger: 3200 * ms, InFlight: 10 * second,
	}
	slept := plain
	slept.Sleep = second
	const bench = "bench/stop on a loopback, 6 runs"
	const memory = "net/http on a network in memory, 30 stops"
	took := func(r record, runs float64) float64 { return r.Terminating.Seconds() / runs }
	return []check{
		{"replace/shutdown", "Shutdown at once", bench, replacement(plain), 40, []comparison{
			{"lost, new connections", 516.7, "513 to 520", 0.1, lostOf(0)},
			{"lost, kept connections", 157.8, "153 to 166", -1, lostOf(1)},
		}},
		{"replace/sleep", "a sleep of 1 s, then Shutdown", bench, replacement(slept), 40, []comparison{
			{"lost, new connections", 0, "0", 0, lostOf(0)},
			{"lost, kept connections", 0, "0", 0, lostOf(1)},
		}},
		{"replace/drain", "this library, a window of 1 s", bench, replacement(fast), 40, []comparison{
			{"lost, new connections", 0, "0", 0, lostOf(0)},
			{"lost, kept connections", 0, "0", 0, lostOf(1)},
			{"seconds that the stop takes", 1.502, "1.39 to 1.57", 0.1, took},
		}},
		{"siege/one", "GOAWAY in one step", memory, siege(false), 40, []comparison{
			{"lost streams, for each stop", 39.2, "38.2 to 41", 0.1, lostOf(0)},
		}},
		{"siege/two", "GOAWAY in two steps", "the same, 10 stops", siege(true), 40, []comparison{
			{"lost streams, for each stop", 0, "0", 0, lostOf(0)},
		}},
		{"cluster/plain", "Shutdown at SIGTERM", onKubernetes, onCluster(plain), 40, []comparison{
			{"lost, kept connections", controlKept, controlKeptSpread, 0.25, lostOf(0)},
			{"lost, new connections", controlFresh, controlFreshSpread, -1, lostOf(1)},
		}},
		{"cluster/drain", "this library, defaults", onKubernetes, onCluster(drain()), 40, []comparison{
			{"lost, kept connections", 0, "0", 0, lostOf(0)},
			{"lost, new connections", 0, "0", 0, lostOf(1)},
		}},
	}
}
