// Package bench has only the measurements in its folders: this project and
// its peers, with the same work, in the same run.
//
//	probes    health planes: one prober, fifty probers on a slow check
//	units     starting and stopping units
//	serving   the cost of tracking per request
//	stop      the effect of a stop on clients
//	clients   what clients and proxies lose when a server stops
//	rest      the cost of a service that has nothing to do
//	rollout   what a rollout of thousands of pods loses, simulated
//	workers   supervision trees, restarts and process workers
//	procpool  work in a pool's processes
//	host      hosted workers
//	workflow  durable entities and their transitions
//
// "make bench" runs all of it several times over, peers in turn, and
// cmd/benchdoc writes docs/reference/benchmarks.md from the results.
package bench
