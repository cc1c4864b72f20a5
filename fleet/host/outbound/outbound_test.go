package outbound_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, p outbound.Policy, networks ...string) *outbound.Client {
	t.Helper()
	c, err := outbound.New(p, networks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func scope(t *testing.T, patterns ...string) *outbound.Scope {
	t.Helper()
	s := &outbound.Scope{Secrets: make(map[string]outbound.Secret)}
	for _, text := range patterns {
		p, err := outbound.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Allow = append(s.Allow, p)
	}
	s.Secrets["TOKEN"] = outbound.Secret{Value: "hunter2", Header: "Authorization", URLs: s.Allow[:1]}
	s.Secrets["LINES"] = outbound.Secret{Value: "a\r\nB: c", Header: "Authorization", URLs: s.Allow[:1]}
	return s
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

const loopback = "127.0.0.0/8"

// A request arrives as the code made it, with the secrets of its headers. Every status is
// a response.
func TestARequestIsSent(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer hunter2" {
			t.Errorf("the server gets %q", got)
		}
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		w.Header().Set("Answer", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %s %s %s", r.Method, r.URL, r.Header["Authorization"], r.Header["User-Agent"], body.String())
	})
	c := newClient(t, outbound.Policy{}, loopback)
	got, err := c.Do(t.Context(), scope(t, s.URL+"/v1/*"), &engine.Request{Method: "post", URL: s.URL + "/v1/x?q=1#f", Header: map[string][]string{"authorization": {"Bearer ${TOKEN}"}}, Body: []byte("hello")})
	if err != nil || got.Status != http.StatusTeapot || got.Header["Answer"][0] != "yes" || string(got.Body) != "POST /v1/x?q=1 [Bearer *******] [lifecycle-host] hello" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A redirect beyond the URLs of a secret does not take it along, also on the same server.
func TestSecretsStayAtTheirURLs(t *testing.T) {
	var seen http.Header
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		}
	})
	c := newClient(t, outbound.Policy{}, loopback)
	allow := scope(t, s.URL+"/own/*", s.URL+"/*")
	for to, want := range map[string]string{"/own/x": "hunter2", "/log": ""} {
		header := map[string][]string{"Authorization": {"${TOKEN}"}}
		_, err := c.Do(t.Context(), allow, &engine.Request{URL: s.URL + "/own/?to=" + to, Header: header})
		if err != nil || seen.Get("Authorization") != want {
			t.Errorf("redirected to %s: %v, %v", to, seen, err)
		}
	}
}

// A server that sends a secret back does not show it to the code.
func TestSecretsAreCovered(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Echo", r.Header.Get("Authorization"))
		fmt.Fprintf(w, "%s and %s", r.Header.Get("Authorization"), r.Header.Get("Authorization"))
	})
	c := newClient(t, outbound.Policy{}, loopback)
	got, err := c.Do(t.Context(), scope(t, s.URL+"/*"), &engine.Request{URL: s.URL + "/", Header: map[string][]string{"Authorization": {"Bearer ${TOKEN}"}}})
	if err != nil || string(got.Body) != "Bearer ******* and Bearer *******" || got.Header["Echo"][0] != "Bearer *******" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Of secrets that overlap none is shown in part, but for what is not in both.
func TestSecretsThatOverlapAreCovered(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hunter2LONGER") })
	to := scope(t, s.URL+"/*")
	to.Secrets["OTHER"] = outbound.Secret{Value: "er2LONGER", Header: "Authorization", URLs: to.Allow[:1]}
	request := &engine.Request{URL: s.URL + "/", Header: map[string][]string{"Authorization": {"${TOKEN}"}}}
	got, err := newClient(t, outbound.Policy{}, loopback).Do(t.Context(), to, request)
	if err != nil || string(got.Body) != "hunt*********" {
		t.Errorf("%s, %v", got.Body, err)
	}
}

// What a spec, the grants or the form of HTTP do not allow is not sent.
func TestAttacksAreRefused(t *testing.T) {
	reached := 0
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { reached++ })
	port := strings.TrimPrefix(s.URL, "http://127.0.0.1:")
	open := newClient(t, outbound.Policy{}, loopback)
	closed := newClient(t, outbound.Policy{})
	everything := scope(t, s.URL+"/v1/*", "http://localhost:"+port+"/*", "http://169.254.169.254/*", "http://[::1]:"+port+"/*", "http://[::ffff:127.0.0.1]:"+port+"/*", "http://2130706433:"+port+"/*")
	for name, tc := range map[string]struct {
		client  *outbound.Client
		request engine.Request
		want    string
	}{
		"loopback":              {closed, engine.Request{URL: s.URL + "/v1/"}, "its address is not allowed"},
		"a name of loopback":    {closed, engine.Request{URL: "http://localhost:" + port + "/"}, "its address is not allowed"},
		"loopback of IPv6":      {open, engine.Request{URL: "http://[::1]:" + port + "/"}, "its address is not allowed"},
		"mapped loopback":       {closed, engine.Request{URL: "http://[::ffff:127.0.0.1]:" + port + "/"}, "its address is not allowed"},
		"metadata":              {open, engine.Request{URL: "http://169.254.169.254/latest"}, "its address is not allowed"},
		"another path":          {open, engine.Request{URL: s.URL + "/v2/"}, "not allowed by the worker's spec"},
		"dots":                  {open, engine.Request{URL: s.URL + "/v1/../v2"}, "segment of dots"},
		"dots and parameters":   {open, engine.Request{URL: s.URL + "/v1/..;x=1/v2"}, "segment of dots"},
		"a secret many times":   {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"authorization": {strings.Repeat("${TOKEN}", 100_000)}}}, "32 KiB"},
		"encoded dots":          {open, engine.Request{URL: s.URL + "/v1/%2e%2e/v2"}, "%2e"},
		"an encoded slash":      {open, engine.Request{URL: s.URL + "/v1/..%2Fv2"}, "%2f"},
		"a backslash":           {open, engine.Request{URL: s.URL + `/v1/..\v2`}, "not allowed"},
		"another scheme":        {open, engine.Request{URL: "https://127.0.0.1:" + port + "/v1/"}, "not allowed by"},
		"a file":                {open, engine.Request{URL: "file:///etc/passwd"}, "not allowed by"},
		"another port":          {open, engine.Request{URL: "http://127.0.0.1:1/v1/"}, "not allowed by"},
		"a user":                {open, engine.Request{URL: strings.Replace(s.URL, "//", "//a@", 1) + "/v1/"}, "user name"},
		"a user that is a host": {open, engine.Request{URL: s.URL + "/v1/@evil.example"}, ""},
		"no URL":                {open, engine.Request{}, "not allowed by"},
		"CONNECT":               {open, engine.Request{Method: "CONNECT", URL: s.URL + "/v1/"}, "method"},
		"a method with lines":   {open, engine.Request{Method: "GET / HTTP/1.1\r\nX: y", URL: s.URL + "/v1/"}, "method"},
		"a line in a path":      {open, engine.Request{URL: s.URL + "/v1/\r\nX: y"}, "not valid"},
		"a line in a header":    {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"A": {"b\r\nC: d"}}}, "invalid header field value"},
		"a line in a name":      {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"A\r\nC": {"b"}}}, "invalid header field name"},
		"a line in a secret":    {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"Authorization": {"${LINES}"}}}, "invalid header field value"},
		"another secret":        {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"A": {"${OTHER}"}}}, "http.secrets"},
		"another header":        {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"A": {"${TOKEN}"}}}, "one header, Authorization"},
		"a secret elsewhere":    {open, engine.Request{URL: "http://localhost:" + port + "/x", Header: map[string][]string{"Authorization": {"${TOKEN}"}}}, "some URLs"},
		"a secret without end":  {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"A": {"${TOKEN"}}}, "http.secrets"},
		"Host":                  {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"host": {"internal"}}}, "header Host"},
		"smuggling":             {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"transfer-encoding": {"chunked"}}}, "header Transfer-Encoding"},
		"a proxy":               {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"Proxy-Authorization": {"x"}}}, "header Proxy-"},
		"a large header":        {open, engine.Request{URL: s.URL + "/v1/", Header: map[string][]string{"A": {strings.Repeat("x", 33<<10)}}}, "32 KiB"},
		"a large body":          {open, engine.Request{URL: s.URL + "/v1/", Body: make([]byte, 1<<20+1)}, "more than 1048576 bytes"},
		"a large URL":           {open, engine.Request{URL: s.URL + "/v1/" + strings.Repeat("x", 9<<10)}, "8 KiB"},
	} {
		reached = 0
		_, err := tc.client.Do(t.Context(), everything, &tc.request)
		if tc.want == "" {
			if err != nil || reached != 1 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || reached > 0 || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q; it reached the server %d times", name, err, tc.want, reached)
		}
	}
}

// Each redirect is checked like the first request, and another server gets no header of
// the code.
func TestRedirectsAreChecked(t *testing.T) {
	var seen http.Header
	other := serve(t, func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Clone() })
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusTemporaryRedirect)
	})
	c := newClient(t, outbound.Policy{}, loopback)
	allow := scope(t, s.URL+"/*", other.URL+"/ok", "http://169.254.169.254/*", "http://localhost.invalid/*")
	ask := func(to string) error {
		seen = nil
		_, err := c.Do(t.Context(), allow, &engine.Request{URL: s.URL + "/?to=" + url.QueryEscape(to), Header: map[string][]string{"X-Key": {"mine"}, "Authorization": {"${TOKEN}"}}})
		return err
	}
	if err := ask(other.URL + "/ok"); err != nil || seen == nil || seen.Get("X-Key") != "" || seen.Get("Authorization") != "" || seen.Get("Referer") != "" {
		t.Errorf("to another server that is allowed: %v, %v", seen, err)
	}
	for to, want := range map[string]string{
		other.URL + "/other": "by the worker's spec", "http://169.254.169.254/latest/meta-data": "its address is not allowed",
		"file:///etc/passwd": "not allowed", s.URL + "/?to=" + url.QueryEscape(s.URL+"/?to="+url.QueryEscape(s.URL+"/?to="+url.QueryEscape(s.URL+"/?to=/"))): "more than 3 redirects",
	} {
		if err := ask(to); err == nil || !strings.Contains(err.Error(), want) || seen != nil {
			t.Errorf("to %s: %v, want %q", to, err, want)
		}
	}
}

// An answer that is too large or never ends costs a bounded time and memory.
func TestAnswersAreBounded(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/endless":
			for line := bytes.Repeat([]byte("x"), 1<<16); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 64 {
				_, _ = z.Write(make([]byte, 1<<20))
			}
			_ = z.Close()
		case "/headers":
			w.Header().Set("A", strings.Repeat("x", 1<<20))
		case "/silent":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	c := newClient(t, outbound.Policy{}, loopback)
	for path, want := range map[string]string{"/endless": "more than 1048576 bytes", "/bomb": "more than 1048576 bytes", "/headers": "server response headers exceeded"} {
		if _, err := c.Do(t.Context(), scope(t, s.URL+"/*"), &engine.Request{URL: s.URL + path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	short := newClient(t, outbound.Policy{Timeout: 10 * time.Millisecond}, loopback)
	if _, err := short.Do(t.Context(), scope(t, s.URL+"/*"), &engine.Request{URL: s.URL + "/silent"}); err == nil || !strings.Contains(err.Error(), "longer than 10ms") {
		t.Errorf("a silent server: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the message is another host's")
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	if _, err := c.Do(ctx, scope(t, s.URL+"/*"), &engine.Request{URL: s.URL + "/silent"}); !errors.Is(err, why) {
		t.Errorf("a message that ended: %v", err)
	}
}

// A tenant sends a bounded number of requests at once.
func TestRequestsWaitForAPlace(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	s := serve(t, func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-leave })
	c := newClient(t, outbound.Policy{MaxConcurrent: 1, Timeout: time.Minute}, loopback)
	results := make(chan error, 1)
	go func() {
		_, err := c.Do(context.Background(), scope(t, s.URL+"/*"), &engine.Request{URL: s.URL + "/"})
		results <- err
	}()
	<-arrived
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, scope(t, s.URL+"/*"), &engine.Request{URL: s.URL + "/"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second request: %v", err)
	}
	leave <- struct{}{}
	if err := <-results; err != nil {
		t.Error(err)
	}
}

func TestPatterns(t *testing.T) {
	for _, text := range []string{"", "x", "ftp://a/", "https://", "https://a", "https:///x", "https://*/", "https://a.*/", "https://a/*/b", "https://a/**", "https://u@a/", "https://a/?q", "https://a/#f",
		"https://a/../b", "https://a/%2e/", "https://a./", "https://ä/", "https://a b/", "https://a:x/", "//a/", "https://a\\b/", "https://*a/"} {
		if p, err := outbound.Parse(text); err == nil {
			t.Errorf("%q is the pattern %+v", text, p)
		}
	}
	parse := func(text string) outbound.Pattern {
		t.Helper()
		p, err := outbound.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		pattern, in string
		want        bool // of Matches; and of Covers when in is a pattern
	}{
		{"https://a.example/v1/*", "https://a.example/v1/x?y=z", true},
		{"https://a.example/v1/*", "https://A.EXAMPLE:443/v1/", true},
		{"https://a.example/v1/*", "https://a.example/v1", false},
		{"https://a.example/v1/*", "https://a.example:444/v1/", false},
		{"https://a.example/v1/*", "http://a.example/v1/", false},
		{"https://a.example/v1", "https://a.example/v1", true},
		{"https://a.example/v1", "https://a.example/v1/", false},
		{"https://a.example/*", "https://a.example", true},
		{"https://*.example/*", "https://b.a.example/x", true},
		{"https://*.example/*", "https://example/x", false},
		{"https://*.example/*", "https://.example/x", false},
		{"https://*.example/*", "https://badexample/x", false},
		{"https://a.example/a%20b/*", "https://a.example/a%20b/c", true},
	} {
		u, err := url.Parse(tc.in)
		if err != nil {
			t.Fatal(err)
		}
		if got := parse(tc.pattern).Matches(u); got != tc.want {
			t.Errorf("%s matches %s: %v", tc.pattern, tc.in, got)
		}
	}
	for _, tc := range []struct {
		pattern, in string
		want        bool
	}{
		{"https://a.example/v1/*", "https://a.example/v1/x", true}, {"https://a.example/v1/*", "https://a.example/v1/x/*", true},
		{"https://a.example/v1/*", "https://a.example/*", false}, {"https://a.example/v1", "https://a.example/v1*", false},
		{"https://a.example/v1", "https://a.example/v1", true}, {"https://a.example/*", "https://*.example/*", false},
		{"https://*.example/*", "https://a.example/*", true}, {"https://*.example/*", "https://*.a.example/*", true},
		{"https://*.a.example/*", "https://*.example/*", false}, {"https://*.example/*", "https://*.example/*", true},
		{"https://a/*", "http://a/*", false}, {"https://a/*", "https://a:8443/*", false},
	} {
		if got := parse(tc.pattern).Covers(parse(tc.in)); got != tc.want {
			t.Errorf("%s covers %s: %v", tc.pattern, tc.in, got)
		}
	}
	for _, network := range []string{"x", "10.0.0.1", ""} {
		if _, err := outbound.New(outbound.Policy{}, []string{network}); err == nil {
			t.Errorf("%q is a network", network)
		}
	}
	if (outbound.Policy{MaxRequests: -1}).Validate() == nil || (outbound.Policy{}).Validate() != nil {
		t.Error("Validate")
	}
}
