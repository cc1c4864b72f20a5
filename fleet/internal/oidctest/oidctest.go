// Package oidctest starts a real OpenID provider for tests: npm's oidc-provider, which
// testdata/server.mjs runs with node. Begin with [Start]; [SignIn] does what a person does in
// a browser.
package oidctest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Start starts a provider with these clients, and returns its issuer. Every user is in the
// groups. The provider ends with the test. Start skips the test without node 20 and npm, and
// where npm's registry cannot be reached: the other tests of a sign-in have their own provider.
func Start(tb testing.TB, clients []map[string]any, groups ...string) (issuer string) {
	tb.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			tb.Skipf("no %s on this machine: the provider of this test needs it", program)
		}
	}
	version, err := exec.Command("node", "--version").Output()
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, _ := strconv.Atoi(major); err != nil || n < 20 {
		tb.Skipf("node here is %s (%v): the provider of this test needs 20 or later", bytes.TrimSpace(version), err)
	}
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "testdata")
	install(tb, dir)
	config, err := json.Marshal(map[string]any{"clients": clients, "groups": groups})
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command("node", "server.mjs", string(config))
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	said := new(strings.Builder)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	stop := func() { _ = in.Close(); _ = cmd.Wait() }
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		stop()
		tb.Fatalf("the provider does not start: %s", said)
	}
	tb.Cleanup(stop)
	return lines.Text()
}

// away matches what npm says when it does not reach the registry.
var away = regexp.MustCompile(`ECONN|ENOTFOUND|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|network`)

// install installs the provider once. Several tests may install it at the same time.
func install(tb testing.TB, dir string) {
	tb.Helper()
	done := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(done); err == nil {
		return
	}
	own, err := os.MkdirTemp(dir, "install-")
	if err != nil {
		tb.Fatal(err)
	}
	defer os.RemoveAll(own)
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(own, name), text, 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	var said []byte
	for range 3 { // it comes from the network
		cmd := exec.Command("npm", "ci", "--no-audit", "--no-fund")
		cmd.Dir = own
		if said, err = cmd.CombinedOutput(); err == nil {
			break
		}
	}
	if err != nil && away.Match(said) {
		tb.Skipf("npm's registry cannot be reached: %v\n%s", err, said)
	}
	if err != nil {
		tb.Fatalf("npm ci: %v\n%s", err, said)
	}
	if err := os.Rename(filepath.Join(own, "node_modules"), done); err != nil {
		if _, there := os.Stat(done); there != nil { // another test was not faster
			tb.Fatal(err)
		}
	}
}

// SignIn does what a user does in a browser who opens an address of the provider and signs
// in, until the provider has sent the browser back. It returns the status of the
// last answer, and may be called on any goroutine.
func SignIn(tb testing.TB, address, user string) (status int) {
	tb.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		tb.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	c := &http.Client{Jar: jar, Transport: tr}
	page, err := c.Get(address)
	if err != nil {
		tb.Error(err)
		return 0
	}
	_ = page.Body.Close()
	if !strings.Contains(page.Request.URL.Path, "/interaction/") {
		tb.Errorf("the provider shows %s (%d)", page.Request.URL, page.StatusCode)
		return 0
	}
	last, err := c.PostForm(page.Request.URL.String(), url.Values{"user": {user}})
	if err != nil {
		tb.Error(err)
		return 0
	}
	_ = last.Body.Close()
	return last.StatusCode
}
