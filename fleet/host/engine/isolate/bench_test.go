package isolate_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
)

// BenchmarkHandle measures a message that does nothing, in a child. The engines' own
// packages measure it in this process.
func BenchmarkHandle(b *testing.B) {
	children, err := isolate.New(isolate.Config{Program: program})
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range languages() {
		b.Run(l.name, func(b *testing.B) { enginetest.Bench(b, children.Engine(l.mime, l.engine), l.nothing) })
	}
}
