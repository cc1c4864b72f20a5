// HTTP/3 as a unit of an App. A module of its own, so that the other examples carry no QUIC.
module github.com/pleme-io/lifecycle-go/examples/http3

go 1.26.0

require (
	github.com/pleme-io/lifecycle-go v0.0.0
	github.com/quic-go/quic-go v0.65.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/quic-go/qpack v0.6.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../..
