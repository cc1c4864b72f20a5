// Package presence lets every process of a fleet announce itself and its units.
// Operators see all processes, and can ask one to drain or to suspend its
// readiness.
//
// A process needs one line:
//
//	presence.Announce(app, b.JetStream(), presence.Config{Version: version})
//
// and an operator uses a [Fleet]:
//
//	f, err := presence.Open(ctx, js, presence.Config{})
//	processes, err := f.List(ctx)
//	phase, err := f.Drain(ctx, processes[0].ID, "new node", "ada")
//
// Announcements are entries of a key-value bucket that expire: a process that is
// killed disappears after [Config.TTL], and one that ends removes its entry at
// once, after its shutdown hooks. The journal, a stream, keeps every phase, restart,
// change of a probe, reload, command and end for days. Commands are requests to the
// process itself (NATS request-reply), so the operator learns whether the process got
// them.
//
// The bus is not trusted. Each process signs its announcements and its answers with a
// key that it makes at its start, and a Fleet shows an entry that does not fit as
// suspect ([Process.Suspect]). Each Fleet signs its commands ([Config.KeyFile]), and a
// process obeys the operators that it knows ([Config.OperatorsFile]). docs/guides/operating.md in the
// repository says what this withstands, and which permissions NATS needs.
//
// presence keeps no state of the process: it asks the App.
//
// Begin with announce.go for the side of the process: entry.go and signature.go make its
// announcements, command.go answers commands, and journal_writer.go passes events to the
// journal. On the side of the operators fleet.go and watch.go read the bucket, registry.go
// decides which announcements count, and command_send.go sends commands.
package presence
