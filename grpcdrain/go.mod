// Drain signals for the handlers of a gRPC server.
module github.com/pleme-io/lifecycle-go/grpcdrain

go 1.26.0

require (
	github.com/pleme-io/lifecycle-go v0.0.0
	go.uber.org/goleak v1.3.0
	google.golang.org/grpc v1.83.2
)

require (
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../
