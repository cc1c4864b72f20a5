// The tests on a real Kubernetes. Nothing imports them.
module github.com/pleme-io/lifecycle-go/deploy/e2e

go 1.26.0

require (
	github.com/coder/websocket v1.8.15
	github.com/pleme-io/lifecycle-go v0.0.0
	github.com/pleme-io/lifecycle-go/grpcdrain v0.0.0
	github.com/pleme-io/lifecycle-go/kube v0.0.0
	go.uber.org/goleak v1.3.0
	google.golang.org/grpc v1.85.0
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../../

replace github.com/pleme-io/lifecycle-go/grpcdrain => ../../grpcdrain

replace github.com/pleme-io/lifecycle-go/kube => ../../kube
