// What Kubernetes alone knows: a Lease to lead, endpoints, the pod itself.
module github.com/pleme-io/lifecycle-go/kube

go 1.26.0

require (
	github.com/pleme-io/lifecycle-go v0.0.0
	go.uber.org/goleak v1.3.0
)

require golang.org/x/sync v0.24.0 // indirect

replace github.com/pleme-io/lifecycle-go => ../
