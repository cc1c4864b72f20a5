//go:build unix

package procpool_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// BenchmarkDo measures a round trip to a worker in Go, which answers at once.
func BenchmarkDo(b *testing.B) {
	for _, size := range []int{100, 4 << 10} {
		b.Run(fmt.Sprint("size=", size), func(b *testing.B) {
			p := start(b, "serve", nil)
			payload := json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				got, err := p.Do(b.Context(), payload)
				if err != nil || len(got) != size {
					b.Fatal(len(got), err)
				}
			}
		})
	}
}
