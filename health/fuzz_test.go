package health

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzProbe sends any path and query: the answer is one of the answers that are
// documented, complete, and bounded.
func FuzzProbe(f *testing.F) {
	for _, seed := range [][2]string{
		{"/readyz", ""}, {"/readyz", "verbose"}, {"/readyz/db", "verbose&exclude=db"}, {"/livez/../readyz", "exclude=%zz"},
		{"/healthz/", "exclude=a&exclude=b;c"}, {"/startupz/lifecycle", "verbose"}, {"", "\x00"}, {"//", "exclude=lifecycle"},
	} {
		f.Add(seed[0], seed[1])
	}
	r := NewRegistry()
	must(f, r.RegisterReadiness("db", ProbeFunc(passing)))
	must(f, r.RegisterLiveness("self", ProbeFunc(passing)))
	f.Fuzz(func(t *testing.T, path, query string) {
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}})
		switch w.Code {
		case 200, 400, 404:
		default:
			t.Errorf("status %d", w.Code)
		}
		if w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
			t.Errorf("Content-Length %s for %d bytes", w.Header().Get("Content-Length"), w.Body.Len())
		}
		if w.Body.Len() > 8*4096 {
			t.Errorf("a body of %d bytes", w.Body.Len())
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("not JSON: %s", w.Body)
		}
	})
}

// FuzzErrorText puts any text into an answer. The JSON has the same text, and the
// text for people has one line for each check.
func FuzzErrorText(f *testing.F) {
	for _, seed := range []string{"", "refused", "a\nb", "\xff\xfe", "\u2028", `"\`, "\x00\x1f\x7f", strings.Repeat("ä", 600)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, shown := verdict(errors.New(text))
		it := item{name: "db", state: Down, text: shown}
		res := result{plane: readinessPlane, items: []item{it}}
		var got struct{ Checks map[string]string }
		if err := json.Unmarshal(res.json(), &got); err != nil {
			t.Fatalf("not JSON: %v", err)
		}
		want := it.text
		if want == "" {
			want = "down"
		}
		if got.Checks["db"] != want {
			t.Errorf("said %q, want %q", got.Checks["db"], want)
		}
		if !utf8.ValidString(it.text) || len(it.text) > 3*maxErrorText+3 {
			t.Errorf("the text has %d bytes, valid UTF-8 %v", len(it.text), utf8.ValidString(it.text))
		}
		if n := strings.Count(string(res.verbose()), "\n"); n != 2 {
			t.Errorf("%d lines for one check", n-1)
		}
	})
}

// FuzzName accepts no name that a URL would have to escape.
func FuzzName(f *testing.F) {
	for _, seed := range []string{"db", "..", "a/b", "ä", "", "a:b@c~d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if validateName(name) != nil {
			return
		}
		u, err := url.Parse("http://h/readyz/" + name + "?exclude=" + name)
		if err != nil || u.Path != "/readyz/"+name || u.Query().Get("exclude") != name || u.JoinPath(".").Path != "/readyz/"+name {
			t.Errorf("the name %q does not survive a URL: %v, %v", name, u, err)
		}
	})
}
