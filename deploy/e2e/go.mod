// The tests on a real Kubernetes. Nothing imports them.
module github.com/pleme-io/lifecycle-go/deploy/e2e

go 1.26.0

require (
	github.com/coder/websocket v1.8.15
	github.com/pleme-io/lifecycle-go v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../../
