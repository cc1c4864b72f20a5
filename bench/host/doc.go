// Package host measures hosted workers: the messages that a no-op handler handles
// in each engine against a raw consume-and-ack of the same stream, a group
// against a raw consumer with one message at a time and against a lock in a
// key-value bucket, and the recovery of many workers.
package host
