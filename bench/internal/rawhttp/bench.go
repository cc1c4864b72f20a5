package rawhttp

import (
	"net"
	"testing"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
)

// Bench measures the wall-clock and the CPU time of b.N requests, one after the
// other over one connection to addr.
func Bench(b *testing.B, addr net.Addr, request []byte) {
	b.Helper()
	nc, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	c := New(nc)
	b.ReportAllocs()
	b.ResetTimer()
	report := cpu.Measure(b)
	for range b.N {
		if err := c.Do(request); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	report()
}
