package health

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// reused is a ResponseWriter that a benchmark can use again.
type reused struct {
	header http.Header
	status int
	bytes  int
}

func (w *reused) Header() http.Header         { return w.header }
func (w *reused) WriteHeader(status int)      { w.status = status }
func (w *reused) Write(b []byte) (int, error) { w.bytes += len(b); return len(b), nil }

// readiness returns a registry with n instant readiness checks.
func readiness(t testing.TB, n int, opts ...Option) *Registry {
	r := NewRegistry()
	for i := range n {
		must(t, r.RegisterReadiness(fmt.Sprintf("check-%d", i), ProbeFunc(passing), opts...))
	}
	return r
}

// An answer is made of results that are still valid.
func TestAnswersFollowTheResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f, WithPeriodic(10*time.Second)))
		must(t, r.RegisterReadiness("cached", ProbeFunc(passing), WithCache(time.Minute)))
		must(t, r.Start(t.Context()))
		synctest.Wait()
		for i := range 20 {
			f.set(nil)
			want := 200
			if i%3 == 2 {
				f.set(errDown)
				want = 503
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			expect(t, r, "/readyz", want, "")
			expect(t, r, "/readyz", want, "")
		}
		must(t, r.Close(t.Context()))
	})
}

func benchmarkPlane(b *testing.B, r *Registry) {
	h, w := r.Handler(), &reused{header: make(http.Header)}
	req := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	h.ServeHTTP(w, req)
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, req)
	}
	if w.status != http.StatusOK {
		b.Fatalf("status %d", w.status)
	}
}

func BenchmarkPlaneUncached(b *testing.B) {
	for _, n := range []int{1, 10, 50} {
		b.Run(fmt.Sprintf("checks=%d", n), func(b *testing.B) { benchmarkPlane(b, readiness(b, n)) })
	}
}

func BenchmarkPlaneCached(b *testing.B) {
	for _, n := range []int{1, 50} {
		b.Run(fmt.Sprintf("checks=%d", n), func(b *testing.B) { benchmarkPlane(b, readiness(b, n, WithCache(time.Hour))) })
	}
}

func BenchmarkPlanePeriodic(b *testing.B) {
	r := readiness(b, 50, WithPeriodic(time.Hour))
	must(b, r.Start(b.Context()))
	benchmarkPlane(b, r)
	must(b, r.Close(b.Context()))
}
