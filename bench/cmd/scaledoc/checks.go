package main

import (
	"fmt"
	"math"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

// check is a measurement that the simulation has to reproduce.
type check struct {
	name     string
	where    string // how it was measured
	scenario rollout.Scenario
	rows     []comparison
}

// runs is how often a check is simulated; the page shows the mean of one run.
const runs = 40

func (c check) simulate() (results []rollout.Result) {
	for n := range runs {
		c.scenario.Seed = seed + uint64(n)
		results = append(results, rollout.Run(c.scenario))
	}
	return results
}

// comparison is one number, as it was measured and as it is simulated.
type comparison struct {
	what      string
	measured  float64 // the mean of one run
	spread    string  // of the measured runs
	tolerance float64 // the fraction by which the simulation may differ
	differs   bool    // the simulation is known to differ, and the page says why
	simulated func(rollout.Result) float64
}

func (c comparison) mean(results []rollout.Result) (mean float64) {
	for _, r := range results {
		mean += c.simulated(r) / float64(len(results))
	}
	return mean
}

func (c comparison) shown() string {
	if c.measured == 0 {
		return "0"
	}
	return fmt.Sprintf("%.4g (%s)", c.measured, c.spread)
}

// agrees reports whether the simulated number is within the tolerance.
func (c comparison) agrees(got float64) bool {
	return math.Abs(got-c.measured) <= c.tolerance*c.measured
}

func (c comparison) verdict(got float64) string {
	if c.measured == 0 && got == 0 {
		return "agrees"
	}
	off := fmt.Sprintf("%+.0f %%", 100*(got-c.measured)/c.measured)
	if c.agrees(got) {
		return "agrees, " + off
	}
	return "**differs**, " + off
}

func lostOf(crowd int) func(rollout.Result) float64 {
	return func(r rollout.Result) float64 { return float64(r.Crowds[crowd].Lost.All()) }
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

// inMemory returns the scenario of TestHTTP2LosesNothing of internal/httpdrain, whose
// network in memory takes 10 ms each way. Eight HTTP/2 connections have eight callers
// each, which pause for up to 20 ms.
func inMemory(twoSteps bool) rollout.Scenario {
	const callers, cycle = 8, 10*ms + 2*10*ms + 2500*time.Microsecond // the pause, both ways, the work
	stop := rollout.Stop{
		Drain: true, Window: 400 * ms, AcceptQuiet: 100 * ms, AcceptMax: 5 * second, Linger: 10 * second,
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
		Drain:       true,
		Window:      second,
		AcceptQuiet: 200 * ms,
		AcceptMax:   1600 * ms,
		Linger:      3200 * ms,
		InFlight:    10 * second,
	}
	slept := plain
	slept.Sleep = second
	const bench = "bench/stop on a loopback, 6 runs"
	const memory = "net/http on a network in memory, 30 stops"
	const kubernetes = "deploy/e2e, three pods replaced once, 2 runs"
	took := func(r rollout.Result) float64 { return r.Terminating.Seconds() }
	// nothing says that no request was lost, neither in the measurement nor in the simulation.
	nothing := func(what string, crowd int) comparison {
		return comparison{what: what, simulated: lostOf(crowd)}
	}
	return []check{
		{"Shutdown at once", bench, replacement(plain), []comparison{
			{what: "lost, new connections", measured: 516.7, spread: "513 to 520", tolerance: 0.1, simulated: lostOf(0)},
			{what: "lost, kept connections", measured: 157.8, spread: "153 to 166", differs: true, simulated: lostOf(1)},
		}},
		{"a sleep of 1 s, then Shutdown", bench, replacement(slept), []comparison{
			nothing("lost, new connections", 0),
			nothing("lost, kept connections", 1),
		}},
		{"this library, a window of 1 s", bench, replacement(fast), []comparison{
			nothing("lost, new connections", 0),
			nothing("lost, kept connections", 1),
			{what: "seconds that the stop takes", measured: 1.502, spread: "1.39 to 1.57", tolerance: 0.1, simulated: took},
		}},
		{"GOAWAY in one step", memory, inMemory(false), []comparison{
			{what: "lost streams, for each stop", measured: 39.2, spread: "38.2 to 41", tolerance: 0.1, simulated: lostOf(0)},
		}},
		{"GOAWAY in two steps", "the same, 10 stops", inMemory(true), []comparison{
			nothing("lost streams, for each stop", 0),
		}},
		{"Shutdown at SIGTERM", kubernetes, onCluster(plain), []comparison{
			{what: "lost, kept connections", measured: 32.5, spread: "32 and 33", tolerance: 0.25, simulated: lostOf(0)},
			{what: "lost, new connections", measured: 13.5, spread: "11 and 16", differs: true, simulated: lostOf(1)},
		}},
		{"this library, defaults", kubernetes, onCluster(drain()), []comparison{
			nothing("lost, kept connections", 0),
			nothing("lost, new connections", 1),
		}},
	}
}
