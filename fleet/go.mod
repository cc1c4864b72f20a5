// What many processes of a fleet share, on NATS JetStream, and what their
// operators use.
module github.com/pleme-io/lifecycle-go/fleet

go 1.26.0

require github.com/pleme-io/lifecycle-go v0.0.0

replace github.com/pleme-io/lifecycle-go => ../
