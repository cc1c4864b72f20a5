package main

// disagreements says what the simulation does not give, and why.
func disagreements(p *page) {
	p.list(
		"**Kept connections of bench/stop.** Its clients begin half a second before the stop, with a pause that begins then. They are not in the equilibrium that the simulation begins with. For pauses that begin half a second before, renewal theory gives 150 requests in the 0.7 s.",
		"**New connections to a pod that has exited.** The simulation has many clients that open one connection each. The test has three. When the address of a pod is gone nothing answers, not even with a refusal: in a third run, 5 of 218 connections were refused at once, and 3 got no answer for 30 s. Each of these took its client out for the rest of the run. The simulation counts such a connection as lost and does not let its client wait. This concerns pods that have exited, and none that still drains.",
		"**The spread on one node.** From T0 to the last new connection it took 0 to 954 ms in 40 stops, 383 ms in the median, 907 ms at 90 %. kube-proxy's minSyncPeriod of 1 s alone would give 500 ms and 900 ms. The median is lower, because kube-proxy does not wait when it has been idle for that long. In a large rollout it never is.",
		"**T0.** The process got its signal 179 ms after the request to delete in the median, and 1.55 s in the slowest of 40 stops. The EndpointSlice said so 14 ms after the signal in the median, and 1.4 s before it in that slowest stop. The simulation counts from the signal and lets the news start then, which is the worse case.",
		"**Nothing beyond one node is checked.** The published P99 and the shape of the tail are taken as they are. One-node runs say nothing about stragglers.",
	)
}

// model lists what is simulated, and where its numbers come from.
func model(p *page) {
	p.text("## The model",
		"Pods are replaced as a Deployment replaces them: surge and unavailable pods, a rate of the control plane, a time to become ready. A new connection goes to a random pod that its source still knows. A stopping pod behaves as in [contract.md](contract.md), R13 to R18: it serves everything in the window, HTTP/1.1 answers say goodbye from T0, HTTP/2 gets GOAWAY after GoAwayAfter, the listener closes after AcceptQuiet, open connections linger, requests that run may end. Each client has a gap between two requests, and a lifetime of its connections; clients that are sent away open a connection to a pod that their source knows, which may stop as well. One way through the network takes 0.5 ms. A request is lost when it gets no answer; no client sends one twice.",
		"Not simulated: streams and websockets (a goodbye is not a lost request), retries, clients that hang, DNS, pods that cannot be scheduled, a lack of CPU during the rollout, the microseconds between the last look into the kernel's queue and the close of the listener. Readiness and deletion are known at T0 together; a stop without a deletion adds the period of the readiness probe times its failures to every row.",
		"The numbers of the first column come from these sources:")
	p.list(
		"*One node, as measured*: `TestPropagation` in deploy/e2e, one node with two busy cores.",
		"*kube-proxy's defaults*: minSyncPeriod is [1 s](https://github.com/kubernetes/kubernetes/pull/92836) and counts [from start to start](https://github.com/kubernetes/kubernetes/issues/138073), so that a change waits for up to 1 s; 0.5 s for the sync and up to 0.2 s for the EndpointSlice are assumed. That report shows syncs of 2.8 s with 138,792 endpoints. GCE sets minSyncPeriod to [10 s](https://github.com/kubernetes-sigs/kind/issues/1707). The EndpointSlice controller [does not batch](https://github.com/kubernetes/kubernetes/pull/80509) by default; the tests with 5,000 nodes let it wait for [500 ms](https://github.com/kubernetes/test-infra/pull/22446).",
		"*P99 of 10.5, 22.5 and 30 s*: SIG Scalability's tests with 5,000 nodes show a P99 of 10 to 11 s on AWS and 20 to 25 s on GCE, and [fail at 30 s](https://github.com/kubernetes/perf-tests/issues/2407). The [definition of that SLO](https://github.com/kubernetes/community/blob/master/sig-scalability/slos/network_programming_latency.md) is in progress and names no number.",
		"*One node in a thousand 5 min late*: in a stress test a few kube-proxies [reached 5 min](https://github.com/kubernetes/kubernetes/pull/132834).",
		"*Load balancers*: the interval and number of failed checks are theirs; 30 s and 2 are the [defaults of AWS' Application Load Balancer](https://docs.aws.amazon.com/elasticloadbalancing/latest/application/target-group-health-checks.html). Users of AWS' Network Load Balancer [report](https://github.com/aws/containers-roadmap/issues/470) new connections for 30 to 40 s after a target is unhealthy, and for [2 min](https://github.com/kubernetes-sigs/aws-load-balancer-controller/issues/2366) after it was deregistered, with any setting.",
	)
	p.text("kube-proxy exports what you need: `histogram_quantile(0.99, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket[5m])))`. It [leaves out deletions](https://github.com/kubernetes/kubernetes/pull/74294) and knows readiness, which changes at T0 too.")
}
