package operator_test

import (
	"context"
	"crypto/x509"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// serveSignIn serves a server whose people sign in at p. Ops' token file is known too.
func serveSignIn(t *testing.T, p *issuer, change func(*operator.OIDCConfig), key string) (base string) {
	t.Helper()
	base, ready := listen(t)
	cfg := p.config(base)
	if change != nil {
		change(&cfg)
	}
	auth, err := operator.OIDC(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, tokens := tokenFile(t)
	ready(operator.Config{Workflows: newMemory(1), Auth: operator.Anyone(tokens, auth), Logger: quiet, Rate: 1e6, SessionKey: []byte(key)})
	return base
}

// listen returns the address of a server before there is one: ready starts it.
func listen(t *testing.T) (base string, ready func(operator.Config)) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return "http://" + ln.Addr().String(), func(cfg operator.Config) {
		t.Helper()
		s, err := operator.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		srv := s.HTTPServer()
		go srv.Serve(ln)
		t.Cleanup(func() {
			s.Close(context.Background())
			srv.Close()
			http.DefaultClient.CloseIdleConnections()
		})
	}
}

func TestSignInWithOpenIDConnect(t *testing.T) {
	p := newIssuer(t)
	key := strings.Repeat("k", 32)
	base, replica := serveSignIn(t, p, nil, key), serveSignIn(t, p, nil, key)
	_, _, text := request(t, "GET", base+"/ui/login?next=/ui/workflows", "")
	wantText(t, "the sign-in page", text, "Sign in with Example ID", "/ui/login/start?next=%2fui%2fworkflows")
	for next, want := range map[string]string{"/ui/workflows": "/ui/workflows", "https://evil.example/": "/ui/", "//evil.example": "/ui/", "/ui/\\evil": "/ui/", "/ui/%0d%0aSet-Cookie:a=b": "/ui/%0d%0aSet-Cookie:a=b"} {
		b := newJar(t)
		b.cookies["lifecycle-session"] = &http.Cookie{Name: "lifecycle-session", Value: "planted", Path: "/ui/"} // by an attacker
		callback := b.begin(base, next)
		if c := b.cookies["lifecycle-signin"]; c == nil || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/ui/login/" || c.Secure {
			t.Errorf("the cookie of a sign-in: %v", c)
		}
		code, h, text := b.get(callback, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")
		if code != 200 || h.Get("Refresh") != "0; url="+want {
			t.Fatalf("next %q leads to %d %q: %s", next, code, h.Get("Refresh"), text)
		}
		c := b.cookies["lifecycle-session"]
		if c.Value == "planted" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.MaxAge != 8*60*60 || b.cookies["lifecycle-signin"] != nil {
			t.Errorf("the session's cookie: %v", c)
		}
		if code, _, text := b.get(base + "/ui/workflows"); code != 200 || !strings.Contains(text, "ada@example.com") || !strings.Contains(text, `<span class="role">operator`) {
			t.Errorf("a page: %d %s", code, text)
		}
		if code, _, _ := b.get(replica + "/ui/workflows"); code != 200 {
			t.Errorf("a page of a replica: %d", code)
		}
		if code, _, _ := request(t, "GET", base+"/definitions", "", "Cookie", c.Name+"="+c.Value); code != 401 {
			t.Errorf("the cookie counts outside of the dashboard: %d", code)
		}
		old := maps.Clone(b.cookies)
		_, h, page := b.get(base + "/ui/workflows")
		wantText(t, "the policy", h.Get("Content-Security-Policy"), "form-action 'self' "+p.URL+";")
		wantText(t, "the page", page, "/ui/logout")
		code, h, _ = b.send("POST", base+"/ui/logout", "Sec-Fetch-Site", "same-origin")
		out, _ := url.Parse(h.Get("Location"))
		if code != 303 || out.Path != "/end" || out.Query().Get("client_id") != "dashboard" || out.Query().Get("post_logout_redirect_uri") != base+"/ui/login" {
			t.Errorf("signing out: %d %v", code, h)
		}
		b.cookies = old
		if code, _, _ := b.get(base + "/ui/workflows"); code != 303 {
			t.Errorf("after signing out: %d", code)
		}
	}
	b := newJar(t) // behind a proxy that terminates TLS
	b.get(base+"/ui/login/start", "X-Forwarded-Proto", "https")
	if c := b.cookies["__Host-lifecycle-signin"]; c == nil || !c.Secure {
		t.Error("behind a proxy the cookie of a sign-in is not Secure")
	}
	// A sign-in begun on one replica ends on the other, which has another callback here.
	b = newJar(t)
	callback := b.begin(base, "/ui/")
	if code, _, text := b.get(strings.Replace(callback, base, replica, 1)); code != 403 { // redirect_uri differs: the provider refuses the code
		t.Errorf("the callback of another server: %d %s", code, text)
	}
}

// A caller in no group of a grant, tokens of another kind, another sign-in, another
// client: none of them signs in.
func TestSignInsThatAreRefused(t *testing.T) {
	p := newIssuer(t)
	for what, tc := range map[string]struct {
		claims map[string]any
		header map[string]any
		forge  func([]byte) string
		twist  func(*jar, string) string
		code   int
	}{
		"another nonce":                  {claims: map[string]any{"nonce": "n"}, code: 403},
		"no nonce":                       {claims: map[string]any{"nonce": nil}, code: 403},
		"another audience":               {claims: map[string]any{"aud": "another"}, code: 403},
		"the audience of the API":        {claims: map[string]any{"aud": "https://ops.example.com"}, code: 403},
		"two audiences without a party":  {claims: map[string]any{"aud": []string{"dashboard", "another"}}, code: 403},
		"another party":                  {claims: map[string]any{"aud": []string{"dashboard", "another"}, "azp": "another"}, code: 403},
		"another issuer":                 {claims: map[string]any{"iss": "https://evil.example"}, code: 403},
		"expired":                        {claims: map[string]any{"exp": time.Now().Add(-2 * time.Minute).Unix()}, code: 403},
		"no end":                         {claims: map[string]any{"exp": nil}, code: 403},
		"not yet":                        {claims: map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}, code: 403},
		"an access token":                {header: map[string]any{"typ": "at+jwt"}, code: 403},
		"a logout token":                 {claims: map[string]any{"events": map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}}, code: 403},
		"an email that is not verified":  {claims: map[string]any{"email_verified": false}, code: 403},
		"an email that may be verified":  {claims: map[string]any{"email_verified": nil}, code: 403},
		"a name with control characters": {claims: map[string]any{"email": "ada\x1b[2J"}, code: 403},
		"a name of 300 bytes":            {claims: map[string]any{"email": strings.Repeat("a", 300)}, code: 403},
		"no grant":                       {claims: map[string]any{"email": "eve@example.com", "groups": []string{"others"}}, code: 403},
		"alg none":                       {forge: unsigned, code: 403},
		"signed with the public key": {forge: func(claims []byte) string {
			return signed(t, jose.SigningKey{Algorithm: jose.HS256, Key: x509.MarshalPKCS1PublicKey(&rsaKeys()[0].PublicKey)}, nil, claims)
		}, code: 403},
		"an unknown key": {forge: func(claims []byte) string {
			return signed(t, jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: rsaKeys()[1], KeyID: "a"}}, nil, claims)
		}, code: 403},
		"no ID token": {forge: func([]byte) string { return "" }, code: 403},
		"another state": {twist: func(_ *jar, callback string) string {
			return strings.Replace(callback, "state=", "state=x", 1)
		}, code: 400},
		"no state": {twist: func(_ *jar, callback string) string {
			return strings.Replace(callback, "state=", "estate=", 1)
		}, code: 400},
		"another browser": {twist: func(b *jar, callback string) string {
			clear(b.cookies)
			return callback
		}, code: 400},
		"the sign-in of another tab": {twist: func(b *jar, callback string) string {
			b.get(callback[:strings.Index(callback, "/ui/")] + "/ui/login/start")
			return callback
		}, code: 400},
		"the session as the sign-in": {twist: func(b *jar, callback string) string {
			b.get(callback) // has a session now
			b.cookies["lifecycle-signin"] = &http.Cookie{Name: "lifecycle-signin", Value: b.cookies["lifecycle-session"].Value, Path: "/ui/login/"}
			return callback
		}, code: 400},
		"a code again": {twist: func(b *jar, callback string) string {
			old := maps.Clone(b.cookies)
			b.get(callback)
			b.cookies = old
			return callback
		}, code: 403},
		"refused": {twist: func(_ *jar, callback string) string {
			return strings.Replace(callback, "code=", "error=access_denied<script>&x=", 1)
		}, code: 403},
	} {
		t.Run(what, func(t *testing.T) {
			base := serveSignIn(t, p, nil, "")
			p.set(func() { p.claims, p.header, p.forge = tc.claims, tc.header, tc.forge })
			b := newJar(t)
			callback := b.begin(base, "/ui/")
			if tc.twist != nil {
				callback = tc.twist(b, callback)
			}
			delete(b.cookies, "lifecycle-session")
			code, _, text := b.get(callback)
			if code != tc.code || b.cookies["lifecycle-session"] != nil || strings.Contains(text, "<script>&") || !strings.Contains(text, `role="alert"`) {
				t.Errorf("%d, want %d: %v %s", code, tc.code, b.cookies, text)
			}
			p.set(func() { p.claims, p.header, p.forge = nil, nil, nil })
		})
	}
}

// Sign-ins that the provider refuses lock out no other person behind the same address.
func TestRefusedSignInsLockOutNoOther(t *testing.T) {
	p := newIssuer(t)
	base := serveSignIn(t, p, nil, strings.Repeat("k", 32))
	for range 30 { // from the address of the ingress, behind which all others are too
		b := newJar(t)
		callback, err := url.Parse(b.begin(base, "/ui/"))
		if err != nil {
			t.Fatal(err)
		}
		q := callback.Query()
		q.Set("code", "a guess")
		callback.RawQuery = q.Encode()
		if code, _, text := b.get(callback.String()); code != 403 {
			t.Fatalf("a wrong code: %d %s", code, text)
		}
	}
	b := newJar(t)
	if code, _, text := b.get(b.begin(base, "/ui/")); code != 200 {
		t.Errorf("a sign-in after others were refused: %d %s", code, text)
	}
}

func TestBearerTokensOfAProvider(t *testing.T) {
	p := newIssuer(t)
	base := serveSignIn(t, p, nil, "")
	ask := func(token string) (int, string) {
		code, _, text := request(t, "GET", base+"/whoami", "", bearer(token)...)
		return code, text
	}
	good := func(what string, claims map[string]any, parts ...string) {
		t.Helper()
		code, text := ask(p.token(t, claims))
		if code != 200 {
			t.Errorf("%s: %d %s", what, code, text)
		}
		wantText(t, what, text, parts...)
	}
	bad := func(what, token, reason string) {
		t.Helper()
		if code, text := ask(token); code != 401 && code != 431 || !strings.Contains(text, reason) {
			t.Errorf("%s: %d %.300s", what, code, text)
		}
		ask(adaToken) // keeps the address in good standing
	}
	good("an ID token", nil, `"name":"ada@example.com"`, `"role":"operator"`, `"method":"oidc"`)
	good("of the command line", map[string]any{"aud": "cli"}, `"operator"`)
	good("for the API", map[string]any{"aud": []string{"https://ops.example.com", "x"}, "azp": "robot"}, `"operator"`)
	good("in a part of the fleet", map[string]any{"email": "bob@example.com", "groups": "readers"}, `"grants":[{"role":"viewer"`, `"services":["payments-*"]`)
	good("a clock that is behind", map[string]any{"exp": time.Now().Add(-30 * time.Second).Unix(), "nbf": time.Now().Add(2 * time.Minute).Unix()})
	good("without groups", map[string]any{"groups": nil}, `"role":"viewer"`)
	bad("expired", p.token(t, map[string]any{"exp": time.Now().Add(-2 * time.Minute).Unix()}), operator.ReasonExpired)
	bad("another audience", p.token(t, map[string]any{"aud": "another"}), operator.ReasonUnauthenticated)
	bad("of another client", p.token(t, map[string]any{"aud": []string{"dashboard", "another"}, "azp": "another"}), operator.ReasonUnauthenticated)
	bad("alg none", unsigned([]byte(`{"iss":"`+p.URL+`","aud":"dashboard","email":"ada@example.com","email_verified":true,"exp":4102444800}`)), operator.ReasonUnauthenticated)
	bad("another issuer", p.token(t, map[string]any{"iss": "https://evil.example"}), operator.ReasonUnauthenticated)
	bad("changed", p.token(t, nil)+"AA", operator.ReasonUnauthenticated)
	bad("huge", p.token(t, map[string]any{"more": strings.Repeat("x", 200<<10)}), "")
	p.set(func() { p.header = map[string]any{"typ": "application/at+jwt"} })
	bad("an access token for the dashboard", p.token(t, nil), operator.ReasonUnauthenticated)
	good("an access token for the API", map[string]any{"aud": "https://ops.example.com"})
	// The provider changes its key: the new one is known at once.
	p.set(func() {
		p.header = nil
		p.keys = append(p.keys, jose.JSONWebKey{Key: rsaKeys()[1], KeyID: "b", Algorithm: "RS256", Use: "sig"})
		p.sign = 1
	})
	good("a new key", nil)
	bad("an unknown key", signed(t, jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: rsaKeys()[0], KeyID: "unknown"}}, nil, []byte(`{"iss":"`+p.URL+`"}`)), operator.ReasonUnauthenticated)
	// While the provider is away its keys are still known.
	p.set(func() { p.away = true })
	if code, text := ask(p.token(t, nil)); code != 200 {
		t.Errorf("while the provider is away: %d %s", code, text)
	}
	if code, text := ask(adaToken); code != 200 {
		t.Errorf("a token of the file: %d %s", code, text)
	}
	_, _, settings := request(t, "GET", base+"/ui/login/settings", "")
	wantText(t, "the settings", settings, `"clientId":"cli"`, `"issuer":"`+p.URL+`"`)
}

// A provider that is away or hangs harms only callers that need it, and is asked again.
func TestProviderIsAwayAtFirst(t *testing.T) {
	for what, fault := range map[string]func(p *issuer, on bool){
		"away": func(p *issuer, on bool) { p.away = on },
	} {
		t.Run(what, func(t *testing.T) {
			p := newIssuer(t)
			p.set(func() { fault(p, true) })
			base := serveSignIn(t, p, nil, "")
			if code, _, text := request(t, "GET", base+"/whoami", "", bearer(p.token(t, nil))...); code != 503 || !strings.Contains(text, operator.ReasonUnavailable) {
				t.Errorf("while it is %s: %d %s", what, code, text)
			}
			if what == "away" {
				b := newJar(t)
				if code, _, text := b.get(base + "/ui/login/start"); code != 503 || !strings.Contains(text, "does not answer") {
					t.Errorf("a sign-in: %d %s", code, text)
				}
			}
			if code, _, _ := request(t, "GET", base+"/whoami", "", bearer(adaToken)...); code != 200 {
				t.Errorf("a token of the file: %d", code)
			}
			p.set(func() { fault(p, false) })
			for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
				code, _, text := request(t, "GET", base+"/whoami", "", bearer(p.token(t, nil))...)
				if code == 200 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("after it is back: %d %s", code, text)
				}
			}
		})
	}
	t.Run("hang", func(t *testing.T) {
		p := newIssuer(t)
		p.set(func() { p.hang = make(chan struct{}) })
		base := serveSignIn(t, p, nil, "")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			req, _ := http.NewRequestWithContext(ctx, "GET", base+"/whoami", nil)
			req.Header.Set("Authorization", "Bearer "+p.token(t, nil))
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		for range 3 {
			if code, _, _ := request(t, "GET", base+"/whoami", "", bearer(adaToken)...); code != 200 {
				t.Errorf("a token of the file: %d", code)
			}
		}
		p.set(func() { close(p.hang) })
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if code, _, _ := request(t, "GET", base+"/whoami", "", bearer(p.token(t, nil))...); code == 200 {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a provider that hung once is not asked again")
			}
		}
		cancel()
		<-done
	})
}

func TestOIDCConfigsThatAreWrong(t *testing.T) {
	good := operator.OIDCConfig{Issuer: "https://id.example.com", ClientID: "x", RedirectURL: "https://ops.example.com/ui/login/callback", Grants: []operator.Grant{{Subject: "group:ops", Role: operator.RoleViewer}}}
	if _, err := operator.OIDC(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*operator.OIDCConfig){
		"want a URL":       func(c *operator.OIDCConfig) { c.Issuer = "id.example.com" },
		"want https":       func(c *operator.OIDCConfig) { c.Issuer = "http://id.example.com" },
		"ClientID":         func(c *operator.OIDCConfig) { c.ClientID = "" },
		"path /ui/login":   func(c *operator.OIDCConfig) { c.RedirectURL = "https://ops.example.com/" },
		"want an https":    func(c *operator.OIDCConfig) { c.RedirectURL = "http://ops.example.com/ui/login/callback" },
		"LogoutURL":        func(c *operator.OIDCConfig) { c.LogoutURL = "javascript:alert(1)" },
		"no user or group": func(c *operator.OIDCConfig) { c.Grants = nil },
		"at most 12h":      func(c *operator.OIDCConfig) { c.SessionAge = 13 * time.Hour },
		"CAFile":           func(c *operator.OIDCConfig) { c.CAFile = filepath.Join(t.TempDir(), "none") },
	} {
		c := good
		change(&c)
		if _, err := operator.OIDC(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	auth, _ := operator.OIDC(good)
	if _, err := operator.New(operator.Config{Auth: operator.Anyone(auth, auth), Logger: quiet}); err == nil {
		t.Error("two providers were accepted")
	}
}
