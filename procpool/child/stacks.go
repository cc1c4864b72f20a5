package child

import (
	"runtime"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// announce says ready, and what this worker is able to do.
func (s *server) announce(w *wire.Writer) error {
	return w.Ready(wire.Offer{
		Version:      wire.Version,
		Capabilities: []string{wire.CanStacks, wire.CanBytes},
		Concurrency:  s.places,
	})
}

// maxStacks bounds the text of the stacks, in bytes.
const maxStacks = 64 << 10

// showStacks answers a dump with the stacks of all goroutines, cut to what fits.
func (s *server) showStacks() {
	b := make([]byte, maxStacks)
	for text := string(b[:runtime.Stack(b, true)]); text != ""; text = text[:len(text)/2] {
		if err := s.write(func(w *wire.Writer) error { return w.Stacks(text) }); !tooLong(err) {
			return
		}
	}
}
