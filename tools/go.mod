// The generators of this repository. Nothing imports them.
module github.com/pleme-io/lifecycle-go/tools

go 1.26

require (
	github.com/pleme-io/lifecycle-go v0.0.0
	go.uber.org/goleak v1.3.0
)

replace github.com/pleme-io/lifecycle-go => ../
