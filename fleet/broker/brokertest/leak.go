package brokertest

// ServerLeak is the function of a goroutine that a nats-server sometimes leaves
// behind when it was shut down, for goleak.IgnoreTopFunction.
const ServerLeak = "github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"
