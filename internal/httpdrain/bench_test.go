package httpdrain

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

// BenchmarkTracking is what a request costs beyond its handler: "bare" calls
// the handler, "tracked" calls it in the way of the server.
func BenchmarkTracking(b *testing.B) {
	served := 0
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	s := New("bench", &http.Server{Handler: next}, Config{})
	s.wrap()
	c := s.tracker.admit(nil)
	c.server = s
	for name, h := range map[string]http.Handler{"bare": next, "tracked": s.srv.Handler} {
		b.Run(name, func(b *testing.B) {
			// As net/http nests it: the connection's, then the request's own.
			ctx, cancel := context.WithCancel(context.WithValue(b.Context(), key{}, c))
			defer cancel()
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(ctx)
			served = 0
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
			if served < b.N {
				b.Fatalf("%d requests were served, want %d", served, b.N)
			}
		})
	}
}
