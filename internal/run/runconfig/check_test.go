package runconfig

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// patience bounds waits for things that must happen at some time.
const patience = time.Minute

func TestParseCheck(t *testing.T) {
	for text, says := range map[string]string{
		"http://127.0.0.1:8080/healthz": "",
		"https://[::1]/":                "",
		"tcp://localhost:5432":          "",
		"exec:/bin/true":                "",
		"exec:pg_isready -q":            "",
		"":                              "is not a check: want http://",
		"8080":                          "is not a check",
		"http://":                       "has no host",
		"http:///path":                  "has no host",
		"tcp://localhost":               "is not tcp://HOST:PORT",
		"tcp://localhost:1/path":        "is not tcp://HOST:PORT",
		"exec:":                         "names no program",
		"exec:   ":                      "names no program",
		"ftp://host/":                   "is not a check",
		"http://%zz/":                   "invalid URL escape",
	} {
		check, err := ParseCheck(text)
		switch {
		case says == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%q: %v\ndoes not say %q", text, err, says)
		case says == "" && check.Name() == "":
			t.Errorf("%q has no name", text)
		}
	}
}

func TestPortOfACheck(t *testing.T) {
	for text, port := range map[string]int{
		"http://127.0.0.1:8080/healthz": 8080,
		"http://localhost/":             80,
		"https://[::1]/":                443,
		"tcp://localhost:5432":          5432,
		"exec:/bin/true http://a:80/":   0,
	} {
		check, err := ParseCheck(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := check.Port(); got != port {
			t.Errorf("%s asks port %d, want %d", text, got, port)
		}
	}
}

func FuzzParseCheck(f *testing.F) {
	for _, seed := range []string{"http://127.0.0.1:8080/", "tcp://[::1]:1", "exec:a b", "exec:", ":", "http://\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		check, err := ParseCheck(text)
		if err != nil {
			return
		}
		if again, err := ParseCheck(check.text); err != nil || again.Name() != check.Name() {
			t.Errorf("%q is read as %q and %v", text, again.Name(), err)
		}
		if name := check.Name(); name == "" || len(name) > 128 || strings.ContainsAny(name, "/ \n") {
			t.Errorf("%q has the name %q", text, name)
		}
	})
}

func TestCheckAnswers(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "/sick", http.StatusFound)
		case "/sick":
			http.Error(w, "out of paper", http.StatusServiceUnavailable)
		case "/slow":
			<-r.Context().Done()
		}
	}))
	defer srv.Close()
	for text, says := range map[string]string{
		srv.URL + "/":     "",
		srv.URL + "/away": "", // like the kubelet: a redirect to another host is not followed and counts as success
		srv.URL + "/sick": "503 Service Unavailable: out of paper",
		srv.URL + "/slow": "deadline exceeded",
		"tcp://" + strings.TrimPrefix(srv.URL, "http://"): "",
		"tcp://127.0.0.1:1":            "refused",
		"exec:/bin/sh -c true":         "",
		"exec:/bin/ls /no/such/folder": "exit status",
		"exec:/bin/sleep 600":          "deadline exceeded",
		"exec:/no/such/program":        "no such file",
	} {
		check, err := ParseCheck(text)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if strings.HasSuffix(text, "/slow") || strings.Contains(text, "sleep") {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		err = check.Ask(ctx)
		cancel()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}
