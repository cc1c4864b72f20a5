package main

import (
	"time"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

// What TestPropagation of deploy/e2e has measured: from T0 until the last new connection
// to the pod, over a nodePort, on a cluster of one node with two busy cores, Kubernetes
// 1.35, kube-proxy with iptables and a minSyncPeriod of 1 s. In the 40 stops 51,205
// connections were made, and 1,678 of them reached a pod that stopped.
var oneNode = rollout.Spread{Slice: rollout.Always(0), Node: rollout.Delay{
	At:     []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 1},
	Times:  milliseconds(0, 51, 200, 383, 762, 907, 954),
	Linear: true,
}}

// The same in 20 stops with kube-proxy paused for 1.5 s, as the rolling restarts of
// deploy/e2e have it.
var pausedNode = rollout.Delay{
	At:     []float64{0, 0.1, 0.5, 0.6, 0.65, 1},
	Times:  milliseconds(5, 1478, 1555, 1603, 2415, 2698),
	Linear: true,
}

// The two runs of TestControlPlainServer, and where they come from.
const (
	onKubernetes       = "deploy/e2e, three pods replaced once, 2 runs"
	controlKept        = 32.5
	controlKeptSpread  = "32 and 33"
	controlFresh       = 13.5
	controlFreshSpread = "11 and 16"
)

func milliseconds(all ...int) (times []time.Duration) {
	for _, n := range all {
		times = append(times, time.Duration(n)*ms)
	}
	return times
}
