package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/bench/internal/rawhttp"
)

// forEach runs a benchmark of every plane with 1, 10 and 50 checks. Peers are
// innermost, so that compared peers are measured one after the other.
func forEach(b *testing.B, measure func(b *testing.B, h http.Handler)) {
	for _, mode := range []string{"uncached", "cached", "periodic"} {
		for _, n := range []int{1, 10, 50} {
			for _, p := range planes {
				if p.mode != mode && p.mode != "constant" {
					continue
				}
				b.Run(fmt.Sprintf("mode=%s/checks=%d/peer=%s", mode, n, p.peer), func(b *testing.B) {
					var ran atomic.Int64
					h := mounted(p.make(b, n, func(context.Context) error { ran.Add(1); return nil }))
					awaitPassing(b, h)
					before := ran.Load()
					measure(b, h)
					want := int64(0)
					if p.runsChecks() {
						want = int64(b.N * n)
					}
					if got := ran.Load() - before; got != want {
						b.Fatalf("%d probes ran %d checks, want %d", b.N, got, want)
					}
				})
			}
		}
	}
}

// BenchmarkPlane measures the handler alone.
func BenchmarkPlane(b *testing.B) {
	forEach(b, func(b *testing.B, h http.Handler) {
		w, req := newWriter(), newRequest(b)
		w.keep = false
		h.ServeHTTP(w, req)
		b.ReportAllocs()
		b.ResetTimer()
		report := cpu.Measure(b)
		for range b.N - 1 { // the first has warmed up
			w.status = http.StatusOK // net/http's default status
			h.ServeHTTP(w, req)
			if w.status != http.StatusOK {
				b.Fatalf("status %d", w.status)
			}
		}
		b.StopTimer()
		report()
		if w.bytes == 0 {
			b.Fatal("nothing was written")
		}
	})
}

// BenchmarkPlaneTCP measures a probe over one keep-alive connection on the loopback,
// by a client that costs as little as one can and reads the whole answer.
func BenchmarkPlaneTCP(b *testing.B) {
	forEach(b, func(b *testing.B, h http.Handler) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		srv := &http.Server{Handler: h}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ln) }()
		defer func() {
			_ = srv.Close()
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				b.Error(err)
			}
		}()
		rawhttp.Bench(b, ln.Addr(), probeRequest)
	})
}

var probeRequest = []byte("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
