// Package bench has only the measurements in its folders: this project and
// its peers, with the same work, in the same run.
//
//	probes   health planes: one prober, fifty probers on a slow check
//	units    starting and stopping units
//	serving  the cost of tracking per request
//	stop     the effect of a stop on clients
//	rest     the cost of a service that has nothing to do
//	rollout  the same for a rollout of thousands of pods, simulated
//
// "make bench" runs all of it several times over, peers in turn, and
// cmd/benchdoc writes docs/benchmarks.md from the results.
package bench
