// Package host runs workers whose code arrives at run time.
//
// A worker is code in some language and the topic that feeds it. Operators create,
// start, stop, update, roll back and delete a worker while others run, and it comes
// back when its host does. Any number of hosts on one NATS share the workers; each
// [Host] runs its own share.
//
//	host.EngineMain(starlark.New(), js.New(), wasm.New()) // first in main
//	…
//	engines, err := engine.NewRegistry(starlark.New(), js.New(), wasm.New())
//	if err != nil {
//		return err
//	}
//	h, err := host.New(broker.JetStream(), host.Config{Engines: engines})
//	if err != nil {
//		return err
//	}
//	app.Add(h).Probe("hosted", h).OnDrain("hosted", h)
//
//	id, err := h.Create(ctx, host.Spec{
//		ID:          "shout",
//		MIMEType:    "text/x-starlark",
//		Topic:       "words",
//		OutputTopic: "loud",
//		Code:        []byte("def handle(message): return message.text.upper()"),
//	})
//
// # What is guaranteed
//
// A message is handled at least once, or is in the dead letters with the reason.
// No message is dropped, even when a host or a server dies. A handler may see a
// message again when its host died before the server knew the outcome, or when
// another host replaced a stalled one. What a handler writes and what it returns is
// committed together, once for each message, and published after that. An attempt
// that is not committed has published nothing, and neither has a dead letter. An
// output is published once within the duplicate window of its topic's stream.
//
// The messages of a worker that have the same key are handled in order, and so are
// their outputs published. The key is the header [HeaderKey], or the message's subject.
// A message that waits for its next attempt holds up its key only.
//
// One worker handles one message at a time. The workers of a group handle one
// message at a time among them all, across hosts. Each message goes to one worker
// whose topic matches, in turn.
//
// # How to read it
//
// The package uses JetStream: a durable consumer for each worker, and streams for the
// records, the code, the state, the logs and the dead letters (host.go). serve.go watches the
// records and gives each slot, a worker or a group, to one host (members.go). slot.go loads
// the programs of a slot and starts its runner (runner.go). A message takes this way:
//
//	feed.go       takes it from the consumer and puts it into the queue
//	admit.go      decides whether its handler may be called now
//	run.go        calls the handler, under watch.go, and collects its effects
//	partition.go  stages the effects; commit.go writes them to the slot's log (log.go, chain.go)
//	relay.go      publishes the outputs that the log has
//	ack.go        acknowledges the message, or stores it as a dead letter
//
// state*.go has the values of workers and timers*.go their timers, which are values too.
// spec.go, verbs.go, deletion.go, canary.go, deadletter_verbs.go and timers_verbs.go have what
// operators do. record.go has what is stored of a worker.
package host
