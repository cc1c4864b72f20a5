package answer

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnswerIsWritten(t *testing.T) {
	a := Line(http.StatusTeapot, "short and %s", "stout")
	for method, want := range map[string]string{"GET": "short and stout\n", "HEAD": ""} {
		w := httptest.NewRecorder()
		a.Write(w, httptest.NewRequest(method, "/", nil))
		if w.Code != http.StatusTeapot || w.Body.String() != want {
			t.Errorf("%s: %d %q, want 418 %q", method, w.Code, w.Body, want)
		}
		header := http.Header{
			"Content-Type": {"text/plain; charset=utf-8"}, "Content-Length": {"16"},
			"Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"},
		}
		if !maps.EqualFunc(w.Header(), header, slices.Equal) {
			t.Errorf("%s: header %v, want %v", method, w.Header(), header)
		}
	}
}

func TestMethodsAreNamed(t *testing.T) {
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "get": 405} {
		w := httptest.NewRecorder()
		req := httptest.NewRequest("GET", "/", nil)
		req.Method = method
		if ok := Allow(w, req, "GET", "HEAD"); ok != (want == 200) || w.Code != want {
			t.Errorf("%s: %v with status %d, want %d", method, ok, w.Code, want)
		}
		if want == 405 && (w.Header().Get("Allow") != "GET, HEAD" || w.Body.String() != "method not allowed: use GET or HEAD\n") {
			t.Errorf("%s: %q, %q", method, w.Header(), w.Body)
		}
	}
}

func TestLongQueryIsRefused(t *testing.T) {
	for n, refused := range map[int]bool{0: false, 4096: false, 4097: true} {
		a := QueryTooLong(httptest.NewRequest("GET", "/?"+strings.Repeat("x", n), nil))
		if (a != nil) != refused || refused && a.status != http.StatusBadRequest {
			t.Errorf("a query of %d bytes: %+v", n, a)
		}
	}
}
