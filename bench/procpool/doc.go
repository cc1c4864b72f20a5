// Package procpool measures what it takes to have a worker process do something:
// a round trip, a stream, a cold start, many callers.
package procpool
