package operator

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
)

// callbackPath is where the provider sends a browser back to.
const callbackPath = "/ui/login/callback"

// attempt is a sign-in that has begun, in a cookie: only the browser that began it can
// finish it, on any replica.
type attempt struct {
	State    string    `json:"state"`
	Nonce    string    `json:"nonce"`
	Verifier string    `json:"verifier"` // of PKCE (RFC 7636)
	Next     string    `json:"next"`
	Until    time.Time `json:"until"`
}

const (
	attemptName = "lifecycle-signin"
	attemptAge  = 10 * time.Minute
)

// secure reports whether browsers reach this server over TLS. With https in RedirectURL they
// do, also when no header says so: with a GET a proxy may send none.
func (o *oidcAuth) secure(r *http.Request) bool {
	return overTLS(r) || strings.HasPrefix(o.cfg.RedirectURL, "https://")
}

// attemptCookie is Lax: the browser must send it when the provider leads it back.
func (o *oidcAuth) attemptCookie(r *http.Request, value string) *http.Cookie {
	return cookie(attemptName, value, "/ui/login/", o.secure(r), attemptAge, http.SameSiteLaxMode)
}

// signInOf returns the authenticator by which people sign in, nil when there is none.
func signInOf(a Authenticator) (found *oidcAuth, err error) {
	switch a := a.(type) {
	case *oidcAuth:
		return a, nil
	case anyone:
		for _, one := range a {
			o, err := signInOf(one)
			switch {
			case err != nil:
				return nil, err
			case o != nil && found != nil:
				return nil, errors.New("operator: Auth has two of OIDC: want one")
			case o != nil:
				found = o
			}
		}
	}
	return found, nil
}

// name returns the provider's name for the sign-in page.
func (o *oidcAuth) name() string {
	if o == nil || o.cfg.RedirectURL == "" {
		return ""
	}
	return o.cfg.Name
}

// endSession returns the address at which the provider ends sessions, nil for none.
func (o *oidcAuth) endSession() *url.URL {
	if o == nil || o.cfg.RedirectURL == "" {
		return nil
	}
	if p := o.found.Load(); p != nil {
		return p.endSession
	}
	return nil
}

// signsOutAt returns the origin at which the provider ends sessions, "" for none.
func (o *oidcAuth) signsOutAt() string {
	u := o.endSession()
	if u == nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// signOut returns where a browser goes whose session has ended: to the provider's own
// sign-out (OpenID Connect RP-Initiated Logout) when it signed in there.
func (o *oidcAuth) signOut(s session) string {
	at := o.endSession()
	if s.Who == nil || at == nil {
		return "/ui/login"
	}
	u := *at
	q := u.Query()
	q.Set("client_id", o.cfg.ClientID)
	if o.cfg.LogoutURL != "" {
		q.Set("post_logout_redirect_uri", o.cfg.LogoutURL)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// principal returns the caller of a session, nil when the session or its grants are gone.
func (o *oidcAuth) principal(s session) *Principal {
	if o == nil || s.Who.Issuer != o.cfg.Issuer || o.cfg.RedirectURL == "" {
		return nil
	}
	p, err := granted(o.cfg.Grants, Principal{Name: s.Who.Name, Method: "oidc", Until: s.Until}, s.Who.Groups)
	if err != nil {
		return nil
	}
	return &p
}

// settings serves how the command line signs in. It is not secret.
func (o *oidcAuth) settings(w http.ResponseWriter, _ *http.Request) {
	if o.cfg.CommandLineID == "" {
		http.Error(w, "the command line does not sign in at this server", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(client.SignIn{Issuer: o.cfg.Issuer, ClientID: o.cfg.CommandLineID, Scopes: o.cfg.Scopes})
}

func (o *oidcAuth) exchange(p *provider) *oauth2.Config {
	endpoint := p.endpoint
	if o.cfg.ClientSecret == "" { // otherwise a first try would send a header, and use up the code
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{
		ClientID:     o.cfg.ClientID,
		ClientSecret: string(o.cfg.ClientSecret),
		Endpoint:     endpoint,
		RedirectURL:  o.cfg.RedirectURL,
		Scopes:       o.cfg.Scopes,
	}
}

// startSignIn sends a browser to the provider.
func (s *Server) startSignIn(w http.ResponseWriter, r *http.Request) {
	next := safeNext(r.URL.Query().Get("next"))
	p, err := s.signIn.provider(r.Context())
	if err != nil {
		s.log.Error("operator: the provider of sign-ins does not answer", "error", err)
		s.ui.Login(w, next, s.signIn.cfg.Name+" does not answer: try again in a moment", http.StatusServiceUnavailable)
		return
	}
	one := attempt{
		State:    rand.Text(),
		Nonce:    rand.Text(),
		Verifier: oauth2.GenerateVerifier(),
		Next:     next,
		Until:    time.Now().Add(attemptAge),
	}
	value, err := s.sessions.sealed(attemptName, one)
	if err != nil {
		s.ui.Login(w, "/ui/", "the address of the page is too long to come back to", http.StatusBadRequest)
		return
	}
	http.SetCookie(w, s.signIn.attemptCookie(r, value))
	w.Header().Set("Cache-Control", "no-store")
	to := s.signIn.exchange(p).AuthCodeURL(one.State, oidc.Nonce(one.Nonce), oauth2.S256ChallengeOption(one.Verifier))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// finishSignIn takes a browser back from the provider.
func (s *Server) finishSignIn(w http.ResponseWriter, r *http.Request) {
	var one attempt
	begun := s.sessions.unseal(r, attemptName, s.signIn.secure(r), &one) && time.Now().Before(one.Until)
	http.SetCookie(w, s.signIn.attemptCookie(r, "")) // one attempt, one answer
	next := safeNext(one.Next)
	q := r.URL.Query()
	refuse := func(code int, problem string, err error) {
		s.log.Warn("operator: a sign-in was refused", "remote", r.RemoteAddr, "reason", problem, "error", err)
		s.ui.Login(w, next, problem, code)
	}
	switch {
	case !begun, subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(one.State)) != 1:
		refuse(http.StatusBadRequest, "this sign-in was not begun in this browser, or is too old: begin again", nil)
		return
	case q.Has("error"):
		refuse(http.StatusForbidden, s.signIn.cfg.Name+" has refused the sign-in: "+clip(q.Get("error"), 64), nil)
		return
	}
	who, err := s.signIn.redeem(r.Context(), q.Get("code"), one)
	if err != nil {
		var refused *oauth2.RetrieveError
		refusedByProvider := errors.As(err, &refused) && refused.Response.StatusCode < 500
		if errors.Is(err, ErrBadCredentials) || errors.Is(err, ErrExpired) || refusedByProvider {
			refuse(http.StatusForbidden, "you have no role here, or the answer of "+s.signIn.cfg.Name+
				" is not valid: the server's log says which", err)
		} else {
			refuse(http.StatusServiceUnavailable, s.signIn.cfg.Name+" does not confirm the sign-in: begin again", err)
		}
		return
	}
	until := time.Now().Add(s.signIn.cfg.SessionAge)
	value, err := s.sessions.sealed(cookieName, session{ID: rand.Text(), Who: who, Until: until})
	if err != nil {
		refuse(http.StatusForbidden, "the session is too large for a browser: you have too many groups with a grant", err)
		return
	}
	http.SetCookie(w, sessionCookie(value, s.signIn.secure(r), s.signIn.cfg.SessionAge))
	s.log.Info("operator: signed in", "who", who.Name, "method", "oidc", "remote", r.RemoteAddr)
	s.ui.SignedIn(w, next)
}

// redeem exchanges a code for the caller.
func (o *oidcAuth) redeem(ctx context.Context, code string, one attempt) (*person, error) {
	p, err := o.provider(ctx)
	if err != nil {
		return nil, err
	}
	tokens, err := o.exchange(p).Exchange(oidc.ClientContext(ctx, o.client), code, oauth2.VerifierOption(one.Verifier))
	if err != nil {
		return nil, err
	}
	raw, _ := tokens.Extra("id_token").(string)
	t, claims, err := o.claims(ctx, raw)
	if err != nil {
		return nil, err
	}
	party, _ := claims["azp"].(string)
	forOthers := len(t.Audience) > 1 && party == "" || party != "" && party != o.cfg.ClientID
	switch {
	case isAccessToken(raw):
		err = errors.New("the ID token is an access token")
	case !slices.Contains(t.Audience, o.cfg.ClientID) || forOthers:
		err = errors.New("the ID token is for another client")
	case subtle.ConstantTimeCompare([]byte(t.Nonce), []byte(one.Nonce)) != 1:
		err = errors.New("the ID token is of another sign-in")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	name, groups, err := o.person(claims)
	if err != nil {
		return nil, err
	}
	who := &person{Issuer: o.cfg.Issuer, Name: name, Groups: groups}
	_, err = granted(o.cfg.Grants, Principal{Name: name}, groups)
	return who, err
}
