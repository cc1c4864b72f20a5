package operator

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
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

	// Audiences are the audiences of access tokens (JWT) for this API. ID tokens for ClientID
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

const (
	providerTime = 10 * time.Second // for one answer of a provider
	clockLeeway  = time.Minute      // how far the provider's clock may be behind or before
)

// OIDC authenticates people with an OpenID Connect provider: by signing in at the
// dashboard (authorization code with PKCE), and by bearer tokens, which are JWTs that the
// provider has signed. Give it to [Config.Auth], alone or in [Anyone].
//
// The first request that needs the provider asks it, so a server also starts while its
// provider is away. Until the provider is back its callers get UNAVAILABLE; callers of other
// authenticators are served. The server reads the keys of the provider again when those that it
// has do not verify a token.
func OIDC(cfg OIDCConfig) (Authenticator, error) {
	fail := func(format string, args ...any) (Authenticator, error) {
		return nil, fmt.Errorf("oidc: "+format, args...)
	}
	issuer, err := url.Parse(cfg.Issuer)
	switch {
	case err != nil || issuer.Host == "" || issuer.RawQuery != "" || issuer.Fragment != "" || issuer.User != nil:
		return fail("Issuer is %q: want a URL such as https://id.example.com", cfg.Issuer)
	case issuer.Scheme != "https" && !(issuer.Scheme == "http" && client.IsLoopback(issuer.Hostname())):
		return fail("Issuer is %q: want https", cfg.Issuer)
	case cfg.ClientID == "":
		return fail("ClientID is missing")
	case cfg.SessionAge < 0 || cfg.SessionAge > sessionAge:
		return fail("SessionAge is %v: want at most %v", cfg.SessionAge, sessionAge)
	}
	redirect, err := checkPageURL("RedirectURL", cfg.RedirectURL)
	if err == nil {
		_, err = checkPageURL("LogoutURL", cfg.LogoutURL)
	}
	switch {
	case err != nil:
		return fail("%w", err)
	case cfg.RedirectURL != "" && redirect.Path != callbackPath:
		return fail("RedirectURL is %q: want the path %s", cfg.RedirectURL, callbackPath)
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
	cfg.NameClaim = cmp.Or(cfg.NameClaim, "sub")
	cfg.GroupsClaim = cmp.Or(cfg.GroupsClaim, "groups")
	cfg.Name = cmp.Or(cfg.Name, issuer.Hostname())
	cfg.SessionAge = cmp.Or(cfg.SessionAge, 8*time.Hour)
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		if secure.RootCAs, err = rootsIn(cfg.CAFile); err != nil {
			return fail("CAFile: %w", err)
		}
	}
	return &oidcAuth{
		cfg: cfg,
		client: &http.Client{
			Timeout: providerTime,
			// A redirect would carry the code of a sign-in elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				Proxy:             http.ProxyFromEnvironment,
				TLSClientConfig:   secure,
				DisableKeepAlives: true,
			},
		},
	}, nil
}

// checkPageURL checks the URL of a page that browsers open; "" is none.
func checkPageURL(name, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if text == "" {
		return u, nil
	}
	if err != nil || u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && client.IsLoopback(u.Hostname())) {
		return nil, fmt.Errorf("%s is %q: want an https URL", name, text)
	}
	return u, nil
}

type oidcAuth struct {
	cfg    OIDCConfig
	client *http.Client
	asking singleflight.Group
	found  atomic.Pointer[provider] // nil until the provider has answered
}

// provider is what the provider has said of itself.
type provider struct {
	endpoint   oauth2.Endpoint
	endSession *url.URL // nil when it has none
	verifier   *oidc.IDTokenVerifier
}

// provider returns the provider's own description. Requests that need it for the first time wait for
// one answer together.
func (o *oidcAuth) provider(ctx context.Context) (*provider, error) {
	if p := o.found.Load(); p != nil {
		return p, nil
	}
	select {
	case asked := <-o.asking.DoChan("", o.discover):
		return o.found.Load(), asked.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// discover asks the provider, and keeps what it answers.
func (o *oidcAuth) discover() (any, error) {
	ctx := oidc.ClientContext(context.Background(), o.client)
	p, err := oidc.NewProvider(ctx, o.cfg.Issuer)
	if err != nil {
		return nil, fmt.Errorf("oidc: discovery: %w", err)
	}
	var doc struct {
		EndSession string `json:"end_session_endpoint"`
	}
	if err := p.Claims(&doc); err != nil {
		return nil, fmt.Errorf("oidc: discovery: %w", err)
	}
	found := &provider{endpoint: p.Endpoint()}
	if u, err := url.Parse(doc.EndSession); err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" {
		found.endSession = u
	}
	found.verifier = p.VerifierContext(ctx, &oidc.Config{
		SkipClientIDCheck: true, // the caller of claims checks the audience
		Now:               func() time.Time { return time.Now().Add(-clockLeeway) },
	})
	o.found.Store(found)
	return found, nil
}

// Authenticate checks a bearer token that is a JWT of this issuer.
func (o *oidcAuth) Authenticate(r *http.Request) (Principal, error) {
	text, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	if !o.issued(text) {
		return Principal{}, ErrBadCredentials
	}
	t, claims, err := o.claims(r.Context(), text)
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

// claims checks the signature, the issuer and the times of a token. The caller checks the audience.
func (o *oidcAuth) claims(ctx context.Context, jwt string) (*oidc.IDToken, map[string]any, error) {
	p, err := o.provider(ctx)
	if err != nil {
		return nil, nil, err
	}
	var expired *oidc.TokenExpiredError
	t, err := p.verifier.Verify(ctx, jwt)
	switch {
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
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
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
	for _, x := range list {
		g, _ := x.(string)
		granted := slices.ContainsFunc(o.cfg.Grants, func(grant Grant) bool { return grant.Subject == "group:"+g })
		if granted {
			groups = append(groups, g) // the others give nothing
		}
	}
	return name, groups, nil
}
