package health

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("connection refused")

// fake is a check whose answer the test sets.
type fake struct {
	err  atomic.Pointer[error]
	runs atomic.Int64
}

func (f *fake) set(err error) { f.err.Store(&err) }

func (f *fake) Check(context.Context) error {
	f.runs.Add(1)
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func passing(context.Context) error { return nil }

// hanging returns a check that ignores its context until release is called.
func hanging() (p ProbeFunc, release func()) {
	ch := make(chan struct{})
	return func(context.Context) error { <-ch; return nil }, sync.OnceFunc(func() { close(ch) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get probes a path and returns the status and the body.
func get(t testing.TB, r *Registry, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if n := w.Header().Get("Content-Length"); n != strconv.Itoa(w.Body.Len()) {
		t.Errorf("GET %s: Content-Length %q for a body of %d bytes", path, n, w.Body.Len())
	}
	return w.Code, strings.TrimSuffix(w.Body.String(), "\n")
}

// expect probes a path and compares. An empty body is not compared.
func expect(t testing.TB, r *Registry, path string, status int, body string) {
	t.Helper()
	gotStatus, gotBody := get(t, r, path)
	if gotStatus != status || body != "" && gotBody != body {
		t.Errorf("GET %s:\n got %d %s\nwant %d %s", path, gotStatus, gotBody, status, body)
	}
}

// ownerOf returns the owner of a registry.
func ownerOf(r *Registry) *Owner { return &Owner{r} }
