package operator_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// Over TLS the session is in a cookie that no page of a sibling domain and none without TLS
// can set, and one without the prefix counts for nothing. Signing out removes both.
func TestSessionCookieOverTLS(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1)})
	const safe, plain = "__Host-lifecycle-session", "lifecycle-session"
	tls := []string{"X-Forwarded-Proto", "https"}
	login := func(token string, header ...string) *http.Cookie {
		t.Helper()
		code, h, text := request(t, "POST", base+"/ui/login", "token="+token, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
		cookies := (&http.Response{Header: h}).Cookies()
		if code != 303 || len(cookies) != 1 {
			t.Fatalf("login: %d %v %s", code, h, text)
		}
		return cookies[0]
	}
	ada, vic := login(adaToken, tls...), login(vicToken)
	if ada.Name != safe || !ada.Secure || ada.Path != "/" || ada.Domain != "" || !ada.HttpOnly || ada.SameSite != http.SameSiteStrictMode {
		t.Errorf("over TLS the cookie is %v", ada)
	}
	if vic.Name != plain || vic.Secure || vic.Path != "/ui/" {
		t.Errorf("without TLS the cookie is %v", vic)
	}
	for what, tc := range map[string]struct {
		cookies string
		header  []string
		who     string // "" when it is refused
	}{
		"with the prefix": {safe + "=" + ada.Value, tls, "ada"},
		"with the prefix, of a proxy that says less":   {safe + "=" + ada.Value, nil, "ada"},
		"without it and without TLS":                   {plain + "=" + vic.Value, nil, "vic"},
		"without it over TLS":                          {plain + "=" + vic.Value, tls, ""},
		"another's planted before it":                  {plain + "=" + vic.Value + "; " + safe + "=" + ada.Value, tls, "ada"},
		"another's planted before it, nothing is said": {plain + "=" + vic.Value + "; " + safe + "=" + ada.Value, nil, "ada"},
	} {
		code, _, text := request(t, "GET", base+"/ui/workflows", "", append([]string{"Cookie", tc.cookies}, tc.header...)...)
		if tc.who == "" && code != 401 || tc.who != "" && (code != 200 || !strings.Contains(text, ">"+tc.who+"</span>")) {
			t.Errorf("a cookie %s: %d", what, code)
		}
	}
	if code, _, _ := request(t, "GET", base+"/definitions", "", "Cookie", safe+"="+ada.Value); code != 401 {
		t.Errorf("the cookie counts outside of the dashboard: %d", code)
	}
	both := []string{"Cookie", plain + "=" + vic.Value + "; " + safe + "=" + ada.Value}
	code, h, _ := request(t, "POST", base+"/ui/logout", "", append(both, tls...)...)
	gone := map[string]*http.Cookie{}
	for _, c := range (&http.Response{Header: h}).Cookies() {
		gone[c.Name] = c
	}
	if a, b := gone[safe], gone[plain]; code != 303 || a == nil || a.MaxAge != -1 || !a.Secure || a.Path != "/" || b == nil || b.MaxAge != -1 || b.Path != "/ui/" {
		t.Errorf("signing out: %d %v", code, gone)
	}
	if code, _, _ := request(t, "GET", base+"/ui/workflows", "", "Cookie", safe+"="+ada.Value); code != 401 {
		t.Errorf("after signing out: %d", code)
	}
}

// A sign-in at a provider whose RedirectURL is https is over TLS, also when a proxy does not
// say so: neither of its cookies counts without the prefix.
func TestSignInCookiesOverTLS(t *testing.T) {
	p := newIssuer(t)
	base := serveSignIn(t, p, func(c *operator.OIDCConfig) { c.RedirectURL = strings.Replace(c.RedirectURL, "http:", "https:", 1) }, "")
	b := newJar(t)
	begin := func() string { return strings.Replace(b.begin(base, "/ui/"), "https:", "http:", 1) }
	renamed := func(name string) {
		c := b.cookies["__Host-"+name]
		if c == nil || !c.Secure || c.Path != "/" || c.Domain != "" {
			t.Fatalf("the cookie %s is %v", name, c)
		}
		b.cookies[name] = &http.Cookie{Name: name, Value: c.Value, Path: "/"}
		delete(b.cookies, c.Name)
	}
	callback := begin()
	renamed("lifecycle-signin")
	if code, _, _ := b.get(callback); code != 400 {
		t.Errorf("a sign-in whose cookie another page has set: %d", code)
	}
	clear(b.cookies)
	if code, _, text := b.get(begin()); code != 200 {
		t.Fatalf("the sign-in: %d %s", code, text)
	}
	if b.cookies["__Host-lifecycle-signin"] != nil || b.cookies["lifecycle-signin"] != nil {
		t.Errorf("after the sign-in its cookie is there: %v", b.cookies)
	}
	if code, _, _ := b.get(base + "/ui/workflows"); code != 200 {
		t.Errorf("a page: %d", code)
	}
	renamed("lifecycle-session")
	if code, _, _ := b.get(base + "/ui/workflows"); code != 303 {
		t.Errorf("a session whose cookie another page has set: %d", code)
	}
}
