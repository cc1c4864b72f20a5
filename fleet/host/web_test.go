package host_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
)

// Code sends the HTTP requests that its spec asks for and its tenant is granted, through
// the host, and no others. It does not see the secrets that it puts into headers.
func TestCodeFetches(t *testing.T) {
	t.Setenv("HOST_TEST_TOKEN", "hunter2-4711")
	var reached atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		fmt.Fprintf(w, "%s %s %v", r.Method, r.URL.Path, r.Header.Get("Authorization") == "Bearer hunter2-4711")
	}))
	defer srv.Close()
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MaxRetries = host.NoRetry
		c.HTTP = outbound.Policy{MaxRequests: 2}
		c.Grants = map[string]host.Grant{
			"acme": {Secrets: map[string]string{"TOKEN": "env:HOST_TEST_TOKEN"}, HTTP: host.HTTPGrant{
				Allow:    []string{srv.URL + "/v1/*"},
				Networks: []string{"127.0.0.0/8"},
				Secrets:  map[string]host.HTTPSecret{"TOKEN": {Header: "authorization", URL: srv.URL + "/v1/s*"}},
			}},
			"inner": {HTTP: host.HTTPGrant{Allow: []string{srv.URL + "/*"}}},
		}
	}
	h := r.start("a")
	code := []byte(`
def handle(m):
    out = []
    for path in m.text.split(" "):
        r = fetch("` + srv.URL + `" + path, headers = {"Authorization": "Bearer ${TOKEN}"} if path.startswith("/v1/s") else {})
        out.append(r.text)
    return ", ".join(out)
`)
	spec := host.Spec{ID: "w", Tenant: "acme", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Code: code,
		HTTP: host.HTTP{Allow: []string{srv.URL + "/v1/*"}, Secrets: []string{"TOKEN"}}}
	_, err := h.Apply(t.Context(), spec)
	must(t, err)
	if p, err := h.Diff(t.Context(), spec); err != nil || len(p.Differences) > 0 {
		t.Errorf("a second time: %+v, %v", p, err)
	}
	fails := func(what, data, want string) {
		t.Helper()
		before := reached.Load()
		trial, err := h.Test(t.Context(), "w", host.TestRequest{Data: []byte(data), HTTP: what != "no flag"})
		must(t, err)
		if trial.Err == nil || !strings.Contains(trial.Err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, trial.Err, want)
		}
		if n := reached.Load() - before; n > 0 && what != "too many" {
			t.Errorf("%s: %d requests were sent", what, n)
		}
	}
	r.publish("work.w", "/v1/a /v1/secret")
	r.wantOutputs("out.w", "GET /v1/a false, GET /v1/secret true")
	r.publish("work.w", "/v2/a")
	if l := r.letters(h, "w", 1); !strings.Contains(l[0].Reason, "not allowed by the worker's spec") {
		t.Errorf("the dead letter: %+v", l[0])
	}
	fails("another path", "/v1x", "not allowed by the worker's spec")
	fails("too many", "/v1/a /v1/b /v1/c", "a message may send 2 requests")
	fails("no flag", "/v1/a", "workers test --http")
	trial, err := h.Test(t.Context(), "w", host.TestRequest{Data: []byte("/v1/s"), HTTP: true})
	if err != nil || trial.Err != nil || string(trial.Outputs[0].Data) != "GET /v1/s true" {
		t.Errorf("a test: %+v, %v", trial, err)
	}

	for what, tc := range map[string]struct {
		tenant string
		web    host.HTTP
		is     error
		want   string
	}{
		"more than is granted": {"acme", host.HTTP{Allow: []string{srv.URL + "/*"}}, host.ErrNotGranted, "HTTP to " + srv.URL + "/*: not granted to the tenant acme by the host's configuration: it has " + srv.URL + "/v1/*"},
		"another tenant":       {"other", host.HTTP{Allow: []string{srv.URL + "/v1/*"}}, host.ErrNotGranted, "it has none"},
		"another secret":       {"acme", host.HTTP{Allow: []string{srv.URL + "/v1/*"}, Secrets: []string{"KEY"}}, host.ErrNotGranted, "secret KEY"},
		"no pattern":           {"acme", host.HTTP{Allow: []string{"example.com"}}, host.ErrInvalid, "http.allow"},
	} {
		other := spec
		other.ID, other.Tenant, other.HTTP = "o", tc.tenant, tc.web
		if _, err := h.Diff(t.Context(), other); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
	// A grant of URLs is none of private addresses.
	inner := spec
	inner.ID, inner.Tenant, inner.Topic, inner.HTTP = "inner", "inner", "work.inner", host.HTTP{Allow: []string{srv.URL + "/*"}}
	_, err = h.Apply(t.Context(), inner)
	must(t, err)
	before := reached.Load()
	trial, err = h.Test(t.Context(), "inner", host.TestRequest{Data: []byte("/v1/a"), HTTP: true})
	if err != nil || trial.Err == nil || !strings.Contains(trial.Err.Error(), "its address is not allowed") || reached.Load() != before {
		t.Errorf("a private address: %+v, %v", trial, err)
	}
	// Code without http.allow sends nothing.
	none := spec
	none.HTTP = host.HTTP{}
	_, err = h.Apply(t.Context(), none)
	must(t, err)
	fails("no allow", "/v1/a", "the worker's spec has no http.allow")

	// A secret that the grants bind to no header goes into no request.
	nowhere := spec
	nowhere.HTTP.Secrets = []string{"TOKEN"}
	free := r.tune
	r.tune = func(c *host.Config) {
		free(c)
		g := c.Grants["acme"]
		g.HTTP.Secrets = nil
		c.Grants["acme"] = g
	}
	if _, err := r.start("b").Diff(t.Context(), nowhere); !errors.Is(err, host.ErrNotGranted) || !strings.Contains(err.Error(), "a header with the secret TOKEN") {
		t.Errorf("a secret without a header: %v", err)
	}

	bad := host.Config{Grants: map[string]host.Grant{"acme": {HTTP: host.HTTPGrant{Allow: []string{"example.com"}, Networks: []string{"10.0.0.1"}}}}}
	if _, err := host.New(r.js, bad); err == nil || !strings.Contains(err.Error(), "grants.acme.http: ") || !strings.Contains(err.Error(), "is not a network") {
		t.Errorf("New: %v", err)
	}
}
