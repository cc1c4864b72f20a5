package brokertest

// ServerLeak is the function of a goroutine that nats-server sometimes leaves running
// after it was shut down, for goleak.IgnoreTopFunction.
const ServerLeak = "github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"
