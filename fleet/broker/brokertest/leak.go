package brokertest

// ServerLeaks are the goroutines that nats-server 2.15.2 leaves running for a while after
// it was shut down: one that flushes a file of a stream which is removed or purged at that
// moment, two of a stream which is created at that moment, and one that waits up to 30
// seconds for the consumer of a mirror which was being set up. A server that was not shut
// down has others, too. Its argument is goleak.IgnoreTopFunction, its result is for
// goleak.VerifyTestMain.
func ServerLeaks[Option any](ignore func(function string) Option) []Option {
	return []Option{
		ignore("github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"),
		ignore("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		ignore("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		ignore("github.com/nats-io/nats-server/v2/server.(*stream).setupMirrorConsumer.func3"),
	}
}
