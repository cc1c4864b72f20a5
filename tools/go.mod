// The generators of this repository. Nothing imports them.
module github.com/pleme-io/lifecycle-go/tools

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/pleme-io/lifecycle-go v0.0.0
	go.uber.org/goleak v1.3.0
	google.golang.org/genproto/googleapis/api v0.0.0-20260817212433-ac3dfec99bb1
	google.golang.org/protobuf v1.36.12
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../
