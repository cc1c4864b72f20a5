package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
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
	if status, _, text := enter(t, "contexts", "use", "a"); status != cli.ExitOK {
		t.Fatal(status, text)
	}
	info, err := os.Lstat(link)
	text, _ := os.ReadFile(real)
	if err != nil || info.Mode()&os.ModeSymlink == 0 || !strings.Contains(string(text), "current: a") {
		t.Errorf("the link is %v, %v, and the file has\n%s", info.Mode(), err, text)
	}
}
