package host_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// TestCodeByURL checks that a host gets code from a URL under the policy. A URL whose
// content has changed or is too large, that leads to a forbidden address, or that has no
// code, is an error, and the worker keeps its earlier version.
func TestCodeByURL(t *testing.T) {
	r := newRig(t)
	var body atomic.Value
	body.Store(prefix("1"))
	mux := http.NewServeMux()
	mux.HandleFunc("/code", func(w http.ResponseWriter, _ *http.Request) {
		code, _ := body.Load().([]byte)
		_, _ = w.Write(code)
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, q.URL.Query().Get("url"), http.StatusFound)
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	transport, _ := s.Client().Transport.(*http.Transport)
	client, err := fetch.New(fetch.Policy{AllowHosts: []string{"*"}, AllowNets: []string{"127.0.0.1/32"}, MaxSize: 500, Timeout: bound}, transport)
	must(t, err)
	r.tune = func(c *host.Config) { c.Fetcher = client }
	h := r.start("a")
	one := fetch.Digest(prefix("1"))
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", URL: s.URL + "/to?url=/code", Digest: one})
	r.publish("work.w", "a")
	r.wantOutputs("out.w", "1a")

	for _, bad := range []struct {
		name, url, digest string
		code              []byte
		is                error
	}{
		{"other content", "/code", one, prefix("2"), fetch.ErrDigest},
		{"huge", "/code", "", make([]byte, 501), fetch.ErrTooLarge},
		{"loopback", "/to?url=https://127.0.0.2/", "", nil, fetch.ErrForbidden},
		{"link-local", "/to?url=https://169.254.169.254/latest/meta-data", "", nil, fetch.ErrForbidden},
		{"not https", "/to?url=http://127.0.0.1/", "", nil, fetch.ErrForbidden},
		{"no code", "/code", "", []byte("<html>"), nil},
		{"nothing there", "/nothing", "", nil, nil},
	} {
		if bad.code != nil {
			body.Store(bad.code)
		}
		if err := h.LoadCodeFromURL(t.Context(), "w", s.URL+bad.url, host.Digest(bad.digest)); err == nil || bad.is != nil && !errors.Is(err, bad.is) {
			t.Errorf("%s: %v, want %v", bad.name, err, bad.is)
		}
		if _, err := h.Create(t.Context(), host.Spec{ID: "x", MIMEType: "text/x-starlark", Topic: "work.x", URL: s.URL + bad.url, Digest: bad.digest}); err == nil || bad.is != nil && !errors.Is(err, bad.is) {
			t.Errorf("%s: Create: %v, want %v", bad.name, err, bad.is)
		}
	}
	r.publish("work.w", "b")
	r.wantOutputs("out.w", "1a", "1b")

	body.Store(prefix("2"))
	must(t, h.LoadCodeFromURL(t.Context(), "w", s.URL+"/code", host.By("ann", ""), host.Digest(fetch.Digest(prefix("2")))))
	r.publish("work.w", "c")
	r.wantOutputs("out.w", "1a", "1b", "2c")
	history, err := h.History(t.Context(), "w")
	must(t, err)
	if len(history) != 2 || history[0].Source != s.URL+"/to?url=/code" || history[1].Source != s.URL+"/code" || history[1].By != "ann" {
		t.Errorf("history %+v", history)
	}
	must(t, h.Delete(t.Context(), "w"))
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
