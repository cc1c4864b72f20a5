package operator_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// issuer is an OpenID provider with faults on demand. It asks no user: every
// authorization is granted. [TestBrowserSignsInAtARealProvider] has a real one.
type issuer struct {
	*httptest.Server

	mu     sync.Mutex // guards the fields below
	keys   []jose.JSONWebKey
	sign   int                        // the key that signs
	away   bool                       // it answers 503
	hang   chan struct{}              // it answers when the channel is closed
	claims map[string]any             // of the next ID token, over the usual ones
	header map[string]any             // of the next ID token
	forge  func(claims []byte) string // makes the next ID token
	codes  map[string]code
}

type code struct {
	challenge, nonce, redirect, client string
}

var (
	rsaKeys = sync.OnceValue(func() []*rsa.PrivateKey {
		list := make([]*rsa.PrivateKey, 2)
		for i := range list {
			list[i], _ = rsa.GenerateKey(rand.Reader, 2048)
		}
		return list
	})
)

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	p := &issuer{codes: map[string]code{}}
	for i, k := range rsaKeys() {
		p.keys = append(p.keys, jose.JSONWebKey{Key: k, KeyID: string(rune('a' + i)), Algorithm: "RS256", Use: "sig"})
	}
	p.keys = p.keys[:1]
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/jwks",
			"end_session_endpoint": p.URL + "/end", "device_authorization_endpoint": p.URL + "/device",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		})
	})
	mux.HandleFunc("GET /jwks", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		set := jose.JSONWebKeySet{}
		for _, k := range p.keys {
			set.Keys = append(set.Keys, k.Public())
		}
		p.mu.Unlock()
		json.NewEncoder(w).Encode(set)
	})
	mux.HandleFunc("GET /auth", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("nonce") == "" || !slices.Contains(strings.Fields(q.Get("scope")), "openid") {
			http.Error(w, "the request is not the right one", http.StatusBadRequest)
			return
		}
		id := rand.Text()
		p.mu.Lock()
		p.codes[id] = code{q.Get("code_challenge"), q.Get("nonce"), q.Get("redirect_uri"), q.Get("client_id")}
		p.mu.Unlock()
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {id}, "state": {q.Get("state")}, "iss": {p.URL}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		c, ok := p.codes[r.PostFormValue("code")]
		delete(p.codes, r.PostFormValue("code")) // a code is good once
		p.mu.Unlock()
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if !ok || r.Header.Get("Authorization") != "" || base64.RawURLEncoding.EncodeToString(sum[:]) != c.challenge || r.PostFormValue("redirect_uri") != c.redirect {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			w.Write([]byte(`{"error":"invalid_grant"}`))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"access_token": "opaque", "token_type": "Bearer", "id_token": p.token(t, map[string]any{"aud": c.client, "nonce": c.nonce})})
	})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		away, hang := p.away, p.hang
		p.mu.Unlock()
		if hang != nil {
			select {
			case <-hang:
			case <-r.Context().Done():
				return
			}
		}
		if away {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Server.Close)
	return p
}

// set changes the issuer.
func (p *issuer) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// token returns an ID token of ada, of the group ops, for the client "dashboard".
func (p *issuer) token(t testing.TB, more map[string]any) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	claims := map[string]any{
		"iss": p.URL, "sub": "u-1", "aud": "dashboard", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"email": "ada@example.com", "email_verified": true, "groups": []string{"ops", "others"},
	}
	maps.Copy(claims, more)
	maps.Copy(claims, p.claims)
	text, err := json.Marshal(claims)
	if err != nil {
		t.Error(err)
	}
	if p.forge != nil {
		return p.forge(text)
	}
	opts := (&jose.SignerOptions{}).WithType("JWT")
	for name, value := range p.header {
		opts = opts.WithHeader(jose.HeaderKey(name), value)
	}
	return signed(t, jose.SigningKey{Algorithm: jose.RS256, Key: p.keys[p.sign]}, opts, text)
}

func signed(t testing.TB, key jose.SigningKey, opts *jose.SignerOptions, claims []byte) string {
	t.Helper()
	signer, err := jose.NewSigner(key, opts)
	if err != nil {
		t.Error(err)
		return ""
	}
	jws, err := signer.Sign(claims)
	if err != nil {
		t.Error(err)
		return ""
	}
	text, _ := jws.CompactSerialize()
	return text
}

// unsigned is a JWT with the algorithm none.
func unsigned(claims []byte) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims) + "."
}

// config returns the configuration for this issuer, of a server at base.
func (p *issuer) config(base string) operator.OIDCConfig {
	return operator.OIDCConfig{
		Issuer: p.URL, ClientID: "dashboard", RedirectURL: base + "/ui/login/callback", LogoutURL: base + "/ui/login", CommandLineID: "cli", NameClaim: "email", Name: "Example ID",
		Audiences: []string{"https://ops.example.com"},
		Grants: []operator.Grant{
			{Subject: "group:ops", Role: operator.RoleOperator}, {Subject: "group:readers", Role: operator.RoleViewer, Services: []string{"payments-*"}},
			{Subject: "user:ada@example.com", Role: operator.RoleViewer},
		},
	}
}

// jar is the browser of these tests: it has cookies, and follows no redirect.
type jar struct {
	t       testing.TB
	cookies map[string]*http.Cookie
}

func newJar(t testing.TB) *jar { return &jar{t, map[string]*http.Cookie{}} }

func (j *jar) get(target string, header ...string) (int, http.Header, string) {
	return j.send("GET", target, header...)
}

func (j *jar) send(method, target string, header ...string) (int, http.Header, string) {
	j.t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		j.t.Fatal(err)
	}
	var list []string
	for _, c := range j.cookies {
		if strings.HasPrefix(u.Path, c.Path) {
			list = append(list, c.Name+"="+c.Value)
		}
	}
	code, h, text := request(j.t, method, target, "", append([]string{"Accept", "text/html", "Cookie", strings.Join(list, "; ")}, header...)...)
	for _, c := range (&http.Response{Header: h}).Cookies() {
		if j.cookies[c.Name] = c; c.MaxAge < 0 {
			delete(j.cookies, c.Name)
		}
	}
	return code, h, text
}

// begin opens the way to the provider and returns the address of the callback.
func (j *jar) begin(base, next string) (callback string) {
	j.t.Helper()
	code, h, text := j.get(base + "/ui/login/start?next=" + url.QueryEscape(next))
	if code != http.StatusSeeOther {
		j.t.Fatalf("start: %d %s", code, text)
	}
	code, h, text = request(j.t, "GET", h.Get("Location"), "")
	if code != http.StatusFound {
		j.t.Fatalf("the provider: %d %s", code, text)
	}
	return h.Get("Location")
}
