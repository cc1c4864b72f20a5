// The container engine adapter for worker.Container.
module github.com/pleme-io/lifecycle-go/worker/docker

go 1.26.0

require github.com/pleme-io/lifecycle-go v0.0.0

replace github.com/pleme-io/lifecycle-go => ../../
