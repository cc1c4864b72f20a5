// Package host measures hosted workers:
//
//   - a handler that does nothing, in each engine, against a loop that consumes and
//     acknowledges the messages of the same stream;
//   - a group, against a consumer with one message at a time, and against a lock in a
//     key-value bucket;
//   - the recovery of many workers, and what a worker costs that has nothing to do.
package host
