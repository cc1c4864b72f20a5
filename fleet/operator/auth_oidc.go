package operator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/pleme-io/lifecycle-go/internal/token"
)

// OIDCConfig configures [OIDC].
type OIDCConfig struct {
	// Issuer is the URL of the provider, exactly as in its tokens. It needs https, except on
	// the loopback. The provider must support discovery (/.well-known/openid-configuration).
	Issuer string

	// ClientID and ClientSecret are what the provider knows this server by. ClientSecret is
	// empty for a public client: PKCE protects the sign-in with and without it.
	ClientID     string
	ClientSecret token.Secret

	// RedirectURL is where the provider sends a browser back to: the URL of this server,
	// as browsers see it, with the path /ui/login/callback. The provider must know it.
	// Empty means that people do not sign in at the dashboard by this provider.
	RedirectURL string

	// LogoutURL is where the provider sends a browser after its own sign-out. The provider
	// must know it. Empty means that the provider shows its own page.
	LogoutURL string

	// CommandLineID is the public client of "lifecyclectl login". It needs the redirect URI
	// http://127.0.0.1/callback with any port, or the device flow. Defaults to ClientID when there is no
	// ClientSecret; otherwise empty means that the command line does not sign in.
	CommandLineID string

	// Scopes default to openid, profile and email.
	Scopes []string

	// NameClaim is the claim with the name of a caller, in grants ("user:NAME") and in the
	// audit. Defaults to "sub". With "email" the claim email_verified must be true. Do not
	// use a claim that callers may choose themselves.
	NameClaim string

	// GroupsClaim is the claim with the groups of a caller: a text or a list of texts.
	// "realm_access.roles" is a claim inside of another. Defaults to "groups".
	GroupsClaim string

	// Grants give roles to users and groups. A caller whom no grant names is refused.
	Grants []Grant

	// Audiences are those of access tokens (JWT) for this API. ID tokens for ClientID
	// and CommandLineID are always accepted as bearer tokens.
	Audiences []string

	// SessionAge is how long a sign-in at the dashboard lasts. Until then a caller who was
	// removed at the provider keeps access. Defaults to 8 h; at most 12 h.
	SessionAge time.Duration

	// Name of the provider on the sign-in page. Defaults to the host of Issuer.
	Name string

	// CAFile has the certificates, in PEM, that may sign the provider's. Defaults to the
	// system's.
	CAFile string
}

// Limits of what a provider may answer with, and how long it may take.
const (
	providerBody  = 1 << 20
	providerTime  = 10 * time.Second
	providerRetry = time.Second // pause after a discovery that failed
	clockLeeway   = time.Minute // how far the provider's clock may be behind or before
	maxGroups     = 1000
)

// OIDC authenticates people with an OpenID Connect provider: by signing in at the
// dashboard (authorization code with PKCE), and by bearer tokens, which are JWTs that the
// provider has signed. Give it to [Config.Auth], alone or in [Anyone].
//
// OIDC asks the provider nothing. The first request that needs it does, so a server also
// starts while its provider is away; until the provider is back its callers get
// UNAVAILABLE, and those of other authenticators are served. The keys of the provider are
// read again every ten minutes, and when a token names an unknown one; while the provider
// is away they are used for an hour.
func OIDC(cfg OIDCConfig) (Authenticator, error) {
	fail := func(format string, args ...any) (Authenticator, error) {
		return nil, fmt.Errorf("oidc: "+format, args...)
	}
	issuer, err := url.Parse(cfg.Issuer)
	switch {
	case err != nil || issuer.Host == "" || issuer.RawQuery != "" || issuer.Fragment != "" || issuer.User != nil:
		return fail("Issuer is %q: want a URL such as https://id.example.com", cfg.Issuer)
	case issuer.Scheme != "https" && !(issuer.Scheme == "http" && loopbackName(issuer.Hostname())):
		return fail("Issuer is %q: want https", cfg.Issuer)
	case cfg.ClientID == "":
		return fail("ClientID is missing")
	case cfg.SessionAge < 0 || cfg.SessionAge > sessionAge:
		return fail("SessionAge is %v: want at most %v", cfg.SessionAge, sessionAge)
	}
	for name, text := range map[string]string{"RedirectURL": cfg.RedirectURL, "LogoutURL": cfg.LogoutURL} {
		u, err := url.Parse(text)
		if text == "" {
			continue
		}
		if err != nil || u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && loopbackName(u.Hostname())) {
			return fail("%s is %q: want an https URL", name, text)
		}
		if name == "RedirectURL" && u.Path != callbackPath {
			return fail("RedirectURL is %q: want the path %s", text, callbackPath)
		}
	}
	if err := checkGrants(cfg.Grants); err != nil {
		return fail("%w", err)
	}
	if cfg.CommandLineID == "" && cfg.ClientSecret == "" {
		cfg.CommandLineID = cfg.ClientID
	}
	if len(cfg.Scopes) == 0 {
		cfg.Scopes = []string{oidc.ScopeOpenID, "profile", "email"}
	} else if !slices.Contains(cfg.Scopes, oidc.ScopeOpenID) {
		cfg.Scopes = append([]string{oidc.ScopeOpenID}, cfg.Scopes...)
	}
	for field, standard := range map[*string]string{&cfg.NameClaim: "sub", &cfg.GroupsClaim: "groups", &cfg.Name: issuer.Hostname()} {
		if *field == "" {
			*field = standard
		}
	}
	if cfg.SessionAge == 0 {
		cfg.SessionAge = 8 * time.Hour
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return fail("CAFile: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(pem) {
			return fail("CAFile %s has no certificate in PEM", cfg.CAFile)
		}
	}
	return &oidcAuth{cfg: cfg, sem: make(chan struct{}, 1), client: &http.Client{
		Timeout: providerTime,
		// A redirect would carry the code of a sign-in elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: limited{&http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		}},
	}}, nil
}

// limited bounds the bodies of a provider's answers.
type limited struct{ next http.RoundTripper }

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, providerBody)
	}
	return resp, err
}

type oidcAuth struct {
	cfg    OIDCConfig
	client *http.Client
	sem    chan struct{} // of size 1: held by the request that discovers

	mu     sync.Mutex // guards the fields below
	found  *provider
	failed error // of the last discovery
	again  time.Time
}

// provider is what the discovery found.
type provider struct {
	endpoint   oauth2.Endpoint
	endSession *url.URL // nil when it has none
	keys       *keySet
	verifier   *oidc.IDTokenVerifier
}

// provider returns the provider, which it discovers when that has not succeeded yet.
func (o *oidcAuth) provider(ctx context.Context) (*provider, error) {
	select {
	case o.sem <- struct{}{}:
		defer func() { <-o.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	o.mu.Lock()
	found, failed, again := o.found, o.failed, o.again
	o.mu.Unlock()
	switch {
	case found != nil:
		return found, nil
	case failed != nil && time.Now().Before(again):
		return nil, failed
	}
	found, failed = o.discover(context.WithoutCancel(ctx)) // others wait for it too
	o.mu.Lock()
	o.found, o.failed, o.again = found, failed, time.Now().Add(providerRetry)
	o.mu.Unlock()
	return found, failed
}

func (o *oidcAuth) discover(ctx context.Context) (*provider, error) {
	p, err := oidc.NewProvider(oidc.ClientContext(ctx, o.client), o.cfg.Issuer)
	if err != nil {
		return nil, fmt.Errorf("oidc: discovery: %w", err)
	}
	var doc struct {
		Keys       string   `json:"jwks_uri"`
		EndSession string   `json:"end_session_endpoint"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := p.Claims(&doc); err != nil {
		return nil, fmt.Errorf("oidc: discovery: %w", err)
	}
	algorithms := slices.DeleteFunc(doc.Algorithms, func(a string) bool { return !slices.Contains(signatures, a) })
	if len(algorithms) == 0 {
		algorithms = []string{oidc.RS256}
	}
	found := &provider{endpoint: p.Endpoint(), keys: newKeySet(o.client, doc.Keys)}
	if u, err := url.Parse(doc.EndSession); err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" {
		found.endSession = u
	}
	found.verifier = oidc.NewVerifier(o.cfg.Issuer, found.keys, &oidc.Config{
		SupportedSigningAlgs: algorithms, SkipClientIDCheck: true, // claims checks the audience
		Now: func() time.Time { return time.Now().Add(-clockLeeway) },
	})
	return found, nil
}

// signatures are the algorithms of a provider's signatures: those with a public key.
var signatures = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}

// Authenticate checks a bearer token that is a JWT of this issuer.
func (o *oidcAuth) Authenticate(r *http.Request) (Principal, error) {
	text, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	if !o.issued(text) {
		return Principal{}, ErrBadCredentials
	}
	p, err := o.provider(r.Context())
	if err != nil {
		return Principal{}, err
	}
	t, claims, err := o.claims(r.Context(), p, text)
	if err != nil {
		return Principal{}, err
	}
	party, _ := claims["azp"].(string)
	known := slices.ContainsFunc(t.Audience, func(a string) bool { return slices.Contains(o.cfg.Audiences, a) })
	ours := func(id string) bool { return id == o.cfg.ClientID || id == o.cfg.CommandLineID && id != "" }
	if !known && (isAccessToken(text) || !slices.ContainsFunc(t.Audience, ours) || party != "" && !ours(party)) {
		return Principal{}, ErrBadCredentials
	}
	who, groups, err := o.person(claims)
	if err != nil {
		return Principal{}, err
	}
	return granted(o.cfg.Grants, Principal{Name: who, Method: "oidc", Until: t.Expiry.Add(clockLeeway)}, groups)
}

// part decodes one part of a JWT without a check.
func part(jwt string, n int, into any) bool {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[n])
	return err == nil && json.Unmarshal(text, into) == nil
}

// issued reports whether a token says that it is of this issuer. Others belong to other
// authenticators.
func (o *oidcAuth) issued(jwt string) bool {
	var body struct {
		Issuer string `json:"iss"`
	}
	return part(jwt, 1, &body) && body.Issuer == o.cfg.Issuer
}

// isAccessToken reports whether a JWT says that it is an access token (RFC 9068).
func isAccessToken(jwt string) bool {
	var head struct {
		Type string `json:"typ"`
	}
	return part(jwt, 0, &head) && strings.TrimPrefix(strings.ToLower(head.Type), "application/") == "at+jwt"
}

type faultKey struct{}

// claims checks the signature, the issuer and the times of a token. The caller checks the
// audience.
func (o *oidcAuth) claims(ctx context.Context, p *provider, jwt string) (*oidc.IDToken, map[string]any, error) {
	var away error // why the keys cannot be read
	t, err := p.verifier.Verify(context.WithValue(ctx, faultKey{}, &away), jwt)
	var expired *oidc.TokenExpiredError
	switch {
	case away != nil:
		return nil, nil, fmt.Errorf("oidc: the keys of the provider: %w", away)
	case errors.As(err, &expired):
		return nil, nil, ErrExpired
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	if _, event := claims["events"]; event { // a security event, such as a logout token: not for signing in
		return nil, nil, ErrBadCredentials
	}
	return t, claims, nil
}

// person returns the name and the groups that a token's claims have.
func (o *oidcAuth) person(claims map[string]any) (name string, groups []string, err error) {
	name, _ = claims[o.cfg.NameClaim].(string)
	if verified, _ := claims["email_verified"].(bool); o.cfg.NameClaim == "email" && !verified {
		return "", nil, ErrBadCredentials
	}
	var v violations
	if v.text("name", name, true, maxName); len(v) > 0 || strings.ContainsAny(name, "\n\t") {
		return "", nil, ErrBadCredentials
	}
	value, ok := claims[o.cfg.GroupsClaim]
	if !ok {
		value = any(claims)
		for step := range strings.SplitSeq(o.cfg.GroupsClaim, ".") {
			inner, _ := value.(map[string]any)
			value = inner[step]
		}
	}
	list, _ := value.([]any)
	if one, ok := value.(string); ok {
		list = []any{one}
	}
	if len(list) > maxGroups {
		return "", nil, fmt.Errorf("%w: the token has %d groups, at most %d are allowed", ErrBadCredentials, len(list), maxGroups)
	}
	for _, x := range list {
		if g, ok := x.(string); ok && slices.ContainsFunc(o.cfg.Grants, func(grant Grant) bool { return grant.Subject == "group:"+g }) {
			groups = append(groups, g) // the others give nothing
		}
	}
	return name, groups, nil
}
