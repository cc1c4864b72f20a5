// Package fleet has no code. The packages below it are for fleets of processes: what the
// processes share, and what their operators use.
//
// It uses the root module and NATS JetStream. Begin with the package for the
// question: broker connects a process to NATS, presence announces it to the fleet, lease
// elects a leader, workflow stores entities with phases, host runs code that arrives at run
// time, and operator serves all of that to people. cmd/lifecyclectl is the operators' command
// line. docs/internals/architecture.md has the table of all packages, and the ways through them.
package fleet
