//go:build linux && !amd64 && !arm64

package isolate

const (
	arch           = 0 // there is no filter
	foreignNumbers = 1 << 30
)

var deniedHere []uint32
