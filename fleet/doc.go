// Package fleet has no code. The packages below it are for fleets of processes: what the
// processes share, and what their operators use.
package fleet
