// Package procpool measures the cost of work in a worker process:
// a round trip, a stream, a cold start, many callers.
package procpool
