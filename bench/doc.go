// Package bench holds nothing but the measurements beside it: this project and
// its peers, with the same work, in the same run.
//
//	probes   health planes: one prober, fifty probers on a slow check
//	units    to start units and to take them down
//	serving  what tracking costs a request
//	stop     what a stop costs clients
//
// "make bench" runs all of it several times over, peers in turn, and
// cmd/benchdoc writes docs/benchmarks.md from what came out.
package bench
