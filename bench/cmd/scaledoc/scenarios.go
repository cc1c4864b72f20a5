package main

import (
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

const (
	ms     = time.Millisecond
	second = time.Second
	minute = time.Minute

	seed  = 1
	nodes = 1000
	pods  = 10_000
)

// trip is the time of one way through the network of a cluster.
const trip = 500 * time.Microsecond

// strategy is the default surge of a Deployment, a quarter of the pods, with no pod
// unavailable. The control plane creates and deletes a hundred pods in a second.
var strategy = rollout.Strategy{Surge: pods / 4, Startup: 10 * second, Jitter: 10 * second, Rate: 100}

// drain returns the stop of this library with its defaults.
func drain() rollout.Stop {
	c := lifecycle.Config{}.WithDefaults()
	return rollout.Stop{
		Drain: true, Window: c.DrainInterval, AcceptQuiet: c.AcceptQuiet, AcceptMax: c.AcceptMax, Linger: c.Linger,
		InFlight: c.ShutdownGrace - c.UnitSlice - c.HookSlice,
	}
}

// draining returns drain with another window and linger. The in-flight slice grows by as much as
// Linger, because an operator has to raise both.
func draining(window, linger time.Duration) rollout.Stop {
	s := drain()
	s.InFlight += max(0, linger-s.Linger)
	s.Window, s.Linger = window, linger
	s.AcceptMax = linger * 3 / 2
	s.AcceptQuiet = min(s.AcceptQuiet, s.AcceptMax)
	return s
}

// shutdown returns the stop that calls http.Server.Shutdown after a preStop hook has
// slept.
func shutdown(sleep time.Duration) rollout.Stop {
	return rollout.Stop{Sleep: sleep, InFlight: 30 * second}
}

// scenario returns a rollout of the whole size.
func scenario(s rollout.Spread, stop rollout.Stop, crowds ...rollout.Crowd) rollout.Scenario {
	return rollout.Scenario{
		Seed: seed, Nodes: nodes, Pods: pods, Trip: trip,
		Strategy: strategy, Spread: s, Stop: stop, Crowds: crowds,
	}
}

// spread is a Spread with its name.
type spread struct {
	key, name string
	fresh     float64 // new connections a second that each pod gets while it runs
	rollout.Spread
}

func through(p99 time.Duration) rollout.Spread {
	return rollout.Spread{Slice: rollout.Always(0), Node: rollout.Through(0, p99)}
}

// polled returns the Spread of a load balancer of eight parts. Each part takes a pod out
// after this many failed health checks, and needs the delay act to do so.
func polled(interval time.Duration, checks int, act rollout.Delay) rollout.Spread {
	return rollout.Spread{
		Slice:   act,
		Node:    rollout.Uniform(time.Duration(checks-1)*interval, time.Duration(checks)*interval),
		Sources: 8,
	}
}

// published are the P99 of kube-proxies in large clusters.
var published = map[string]time.Duration{"aws-5000": 10500 * ms, "gce-5000": 22500 * ms, "limit": 30 * second}

var aws5000 = through(published["aws-5000"])

// spreads returns how a cluster learns of a stop, the fastest first.
func spreads() []spread {
	late := aws5000
	late.Late, late.LateBy = 0.001, 5*minute
	return []spread{
		{"one-node", "one node, as measured", 2, oneNode},
		{"kube-proxy", "kube-proxy's defaults, no overload", 2, rollout.Spread{
			Slice: rollout.Uniform(20*ms, 200*ms), Node: rollout.Uniform(50*ms, 1500*ms),
		}},
		{"aws-5000", "P99 of 10.5 s", 2, aws5000},
		{"gce-5000", "P99 of 22.5 s", 2, through(published["gce-5000"])},
		{"limit", "P99 of 30 s", 2, through(published["limit"])},
		{"straggler", "P99 of 10.5 s, and one node in a thousand 5 min late", 2, late},
		{"lb-fast", "load balancer, health check 5 s × 2", 0.25, polled(5*second, 2, rollout.Always(0))},
		{"lb-medium", "load balancer, health check 10 s × 3", 0.25, polled(10*second, 3, rollout.Always(0))},
		{"lb-alb", "load balancer, health check 30 s × 2", 0.25, polled(30*second, 2, rollout.Always(0))},
		{"nlb-health", "AWS NLB, health check 10 s × 2, as reported", 0.25, polled(10*second, 2, rollout.Uniform(30*second, 40*second))},
	}
}

func spreadOf(key string) spread {
	for _, s := range spreads() {
		if s.key == key {
			return s
		}
	}
	panic("no spread " + key)
}

// instant is the Spread of a cluster in which everything knows of a stop at once.
func instant() rollout.Spread {
	return rollout.Spread{Slice: rollout.Always(0), Node: rollout.Always(0)}
}

// oneNode has the times that TestPropagation of deploy/e2e has measured, from T0 until the last
// new connection to the pod: over a nodePort, on a cluster of one node with two busy cores,
// Kubernetes 1.35, kube-proxy with iptables and a minSyncPeriod of 1 s. In the 40 stops 51,205
// connections were made, and 1,678 of them reached a pod that stopped.
var oneNode = rollout.Spread{Slice: rollout.Always(0), Node: rollout.Delay{
	At:     []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 1},
	Times:  milliseconds(0, 51, 200, 383, 762, 907, 954),
	Linear: true,
}}

// pausedNode is the same for 20 stops with kube-proxy paused for 1.5 s, as in the rolling
// restarts of deploy/e2e.
var pausedNode = rollout.Delay{
	At:     []float64{0, 0.1, 0.5, 0.6, 0.65, 1},
	Times:  milliseconds(5, 1478, 1555, 1603, 2415, 2698),
	Linear: true,
}

func milliseconds(all ...int) (times []time.Duration) {
	for _, n := range all {
		times = append(times, time.Duration(n)*ms)
	}
	return times
}

// fresh clients open a connection for each request.
func fresh(rate float64) rollout.Crowd {
	return rollout.Crowd{Name: "a new connection for each request", Fresh: rate, Service: 20 * ms}
}

// keptConnections returns clients that keep their connections, by how long they are idle.
func keptConnections() []rollout.Crowd {
	return []rollout.Crowd{
		{Name: "careless, idle 0 to 4 s", Conns: 4, Gap: rollout.Gap{Max: 4 * second}, Service: 20 * ms, Careless: true},
		{Name: "careless, idle 0 to 9 s", Conns: 4, Gap: rollout.Gap{Max: 9 * second}, Service: 20 * ms, Careless: true},
		{Name: "careless, idle 10 s on average, 60 s at most", Conns: 4, Gap: rollout.Gap{Mean: 10 * second, Max: minute}, Service: 20 * ms, Careless: true},
		{Name: "careful, idle 10 s on average, 90 s at most", Conns: 4, Gap: rollout.Gap{Mean: 10 * second, Max: 90 * second}, Service: 20 * ms},
	}
}

// mixedLoad returns the clients of the comparison of ways to stop.
func mixedLoad() []rollout.Crowd {
	return []rollout.Crowd{
		fresh(1),
		{Name: "HTTP/1.1, careful", Conns: 2, Lifetime: 5 * minute, Gap: rollout.Gap{Mean: second, Max: 90 * second}, Service: 20 * ms},
		{Name: "HTTP/1.1, careless", Conns: 1, Lifetime: 5 * minute, Gap: rollout.Gap{Max: 4 * second}, Service: 20 * ms, Careless: true},
		{Name: "HTTP/2, cannot replay", HTTP2: true, Conns: 1, Lifetime: 30 * minute, Gap: rollout.Gap{Mean: 500 * ms, Max: minute}, Service: 20 * ms},
	}
}

// namedStop is a way to stop, with its name.
type namedStop struct {
	name string
	rollout.Stop
}

func stops() []namedStop {
	two := func(s rollout.Stop) rollout.Stop { s.TwoSteps = true; return s }
	d := drain()
	return []namedStop{
		{"Shutdown at SIGTERM", shutdown(0)},
		{"preStop sleeps 5 s, then Shutdown", shutdown(5 * second)},
		{"preStop sleeps 15 s, then Shutdown", shutdown(15 * second)},
		{"this library, defaults", two(d)},
		{"this library, DrainInterval 25 s", two(draining(25*second, d.Linger))},
		{"this library, defaults, with one GOAWAY for HTTP/2", d},
	}
}

// namedStrategy is a strategy for replacing pods, with its name.
type namedStrategy struct {
	name string
	pods int
	rollout.Strategy
}

func strategies() []namedStrategy {
	full := strategy
	full.Room = pods + strategy.Surge
	fixed := rollout.Strategy{Unavailable: pods / 10, Startup: strategy.Startup, Jitter: strategy.Jitter, Rate: strategy.Rate, Room: pods}
	ordered := rollout.Strategy{Unavailable: 1, Startup: strategy.Startup, Jitter: strategy.Jitter, Room: 100}
	return []namedStrategy{
		{"Deployment, surge 25 %, room for terminating pods", pods, strategy},
		{"the same, room for the surge and nothing else", pods, full},
		{"no surge, 10 % unavailable, a pod starts when another is gone, as in a DaemonSet", pods, fixed},
		{"StatefulSet of 100 pods, one after the other", 100, ordered},
	}
}
