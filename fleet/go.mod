// What many processes of a fleet share, on NATS JetStream, and what their
// operators use.
module github.com/pleme-io/lifecycle-go/fleet

go 1.26.0

require github.com/pleme-io/lifecycle-go v0.0.0

require (
	github.com/dlclark/regexp2/v2 v2.5.2 // indirect
	github.com/dop251/goja v0.0.0-20260917113740-793a2a65c13b // indirect
	github.com/go-sourcemap/sourcemap v2.1.3+incompatible // indirect
	github.com/google/pprof v0.0.0-20230207041349-798e818bf904 // indirect
	github.com/tetratelabs/wazero v1.12.0 // indirect
	go.starlark.net v0.0.0-20260908191801-89a6a09411d5 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.44.0 // indirect
	golang.org/x/text v0.3.8 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../
