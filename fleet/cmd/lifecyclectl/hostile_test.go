package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// The token of a context goes to the server of the context, and to no other that is named
// beside it.
func TestCredentialsOfAContextStayAtItsServer(t *testing.T) {
	var seen atomic.Value
	seen.Store("")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer srv.Close()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": "current: away\ncontexts:\n  away:\n    server: https://ops.example.com\n    token-file: t\n    plaintext-token: \"true\"\n" +
			"  here:\n    server: " + srv.URL + "\n    token-file: t\n  none:\n    token-file: t\n",
		"t": "letmein",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LIFECYCLECTL_CONFIG", filepath.Join(dir, "config.yaml"))
	for args, want := range map[string]string{
		"whoami --server " + srv.URL:                                              "",
		"whoami --context here --server " + srv.URL + "/":                         "Bearer letmein",
		"whoami --context here":                                                   "Bearer letmein",
		"whoami --context none --server " + srv.URL:                               "Bearer letmein",
		"whoami --server " + srv.URL + " --token-file " + filepath.Join(dir, "t"): "Bearer letmein",
	} {
		seen.Store("nothing came")
		if enter(t, strings.Fields(args)...); seen.Load() != want {
			t.Errorf("%s: the server sees %q, want %q", args, seen.Load(), want)
		}
	}
	t.Setenv("LIFECYCLECTL_SERVER", srv.URL)
	if enter(t, "whoami"); seen.Load() != "" {
		t.Errorf("LIFECYCLECTL_SERVER: the server sees %q", seen.Load())
	}
}

// A provider that answers without an end is an error at once.
func TestLoginAtAProviderWithoutAnEnd(t *testing.T) {
	junk := []byte(strings.Repeat(" ", 1<<16))
	var sent atomic.Int64
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	defer srv.Close()
	mux.HandleFunc("/ui/login/settings", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"issuer":"` + srv.URL + `","clientId":"cli"}`))
	})
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		for range 1 << 10 { // 64 MiB
			n, err := w.Write(junk)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	t.Setenv("LIFECYCLECTL_CONFIG", filepath.Join(t.TempDir(), "config.yaml"))
	if status, _, text := enter(t, "login", "--device", "--server", srv.URL); status != exitDenied || !strings.Contains(text, "too large") {
		t.Errorf("login: %d %s", status, text)
	}
	srv.Close() // waits for the handler
	if n := sent.Load(); n >= 64<<20 {
		t.Errorf("the whole answer of %d bytes was read", n)
	}
}

// A configuration file behind a link, such as one of a repository, stays behind it.
func TestContextOfALinkedFile(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real.yaml"), filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(real, []byte("contexts:\n  a:\n    server: http://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real.yaml", link); err != nil {
		t.Skip(err) // not every Windows user may
	}
	t.Setenv("LIFECYCLECTL_CONFIG", link)
	if status, _, text := enter(t, "contexts", "use", "a"); status != exitOK {
		t.Fatal(status, text)
	}
	info, err := os.Lstat(link)
	text, _ := os.ReadFile(real)
	if err != nil || info.Mode()&os.ModeSymlink == 0 || !strings.Contains(string(text), "current: a") {
		t.Errorf("the link is %v, %v, and the file has\n%s", info.Mode(), err, text)
	}
}
