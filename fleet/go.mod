// What many processes of a fleet share, on NATS JetStream, and what their
// operators use.
module github.com/pleme-io/lifecycle-go/fleet

go 1.26.0

require github.com/pleme-io/lifecycle-go v0.0.0

require (
	connectrpc.com/connect v1.21.1 // indirect
	connectrpc.com/grpchealth v1.4.0 // indirect
	connectrpc.com/grpcreflect v1.3.1 // indirect
	connectrpc.com/vanguard v0.3.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../
