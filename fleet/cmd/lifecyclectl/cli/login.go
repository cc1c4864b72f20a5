package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// ProviderClient speaks with a provider of OpenID Connect.
var ProviderClient = &http.Client{
	Timeout:       30 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Login is what is kept of a sign-in at a server.
type Login struct {
	Server       string    `json:"server"`
	Issuer       string    `json:"issuer"`
	ClientID     string    `json:"clientId"`
	TokenURL     string    `json:"tokenUrl"`
	RevokeURL    string    `json:"revokeUrl,omitempty"`
	IDToken      string    `json:"idToken"`
	RefreshToken string    `json:"refreshToken,omitempty"`
	Expiry       time.Time `json:"expiry"`

	mu sync.Mutex // guards the tokens and Expiry while commands run
}

func loginFile(server string) (string, error) {
	path, err := configFile()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(path), "logins", url.QueryEscape(server)+".json"), nil
}

// ReadLogin returns the login at a server, nil when there is none.
func ReadLogin(ctx context.Context, server string) (*Login, error) {
	path, err := loginFile(server)
	if err != nil {
		return nil, nil //nolint:nilerr // a user without a folder of configurations has no login
	}
	l := new(Login)
	text, err := ReadFile(ctx, path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the login at %s: %w", server, err)
	}
	if err := json.Unmarshal(text, l); err != nil || l.Server != server || l.IDToken == "" {
		return nil, fmt.Errorf("the login at %s cannot be read: run lifecyclectl logout, then lifecyclectl login", server)
	}
	return l, nil
}

// Write keeps the login: a reader sees the old one or the new one, and other users none.
func (l *Login) Write() error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path, err := loginFile(l.Server)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return ReplaceFile(path, text, 0o600)
}

// Forget removes the login, and asks the provider to revoke its refresh token (RFC 7009).
func (l *Login) Forget(ctx context.Context) error {
	if l.RefreshToken != "" && l.RevokeURL != "" {
		form := url.Values{
			"token":           {l.RefreshToken},
			"client_id":       {l.ClientID},
			"token_type_hint": {"refresh_token"},
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.RevokeURL, strings.NewReader(form.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if resp, err := ProviderClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}
	}
	path, err := loginFile(l.Server)
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// renewBefore is how long before its end a token is renewed.
const renewBefore = 30 * time.Second

// Token returns the bearer token, which it renews when it is about to expire.
func (l *Login) Token(ctx context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Until(l.Expiry) > renewBefore || l.wasRenewed(ctx) {
		return l.IDToken, nil
	}
	expired := Fail(ExitDenied, "the login at %s has expired", l.Server).Hint("sign in again: lifecyclectl login")
	if l.RefreshToken == "" {
		return "", expired
	}
	endpoint := oauth2.Endpoint{TokenURL: l.TokenURL, AuthStyle: oauth2.AuthStyleInParams}
	c := &oauth2.Config{ClientID: l.ClientID, Endpoint: endpoint}
	tokens, err := c.TokenSource(oidc.ClientContext(ctx, ProviderClient), &oauth2.Token{RefreshToken: l.RefreshToken}).Token()
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.Response.StatusCode < 500:
		if l.wasRenewed(ctx) {
			return l.IDToken, nil
		}
		return "", expired
	case err != nil:
		return "", Fail(ExitUnreachable, "the login cannot be renewed: %w", err)
	}
	raw, _ := tokens.Extra("id_token").(string)
	expiry, ok := expiryOf(raw)
	if !ok {
		return "", expired
	}
	l.IDToken, l.RefreshToken, l.Expiry = raw, tokens.RefreshToken, expiry
	if err := l.Write(); err != nil {
		return "", Fail(ExitUsage, "keep the login: %w", err)
	}
	return l.IDToken, nil
}

// wasRenewed takes the tokens that another command has got meanwhile: a refresh token is
// often good once.
func (l *Login) wasRenewed(ctx context.Context) bool {
	other, err := ReadLogin(ctx, l.Server)
	if err != nil || other == nil || time.Until(other.Expiry) <= renewBefore {
		return false
	}
	l.IDToken, l.RefreshToken, l.Expiry = other.IDToken, other.RefreshToken, other.Expiry
	return true
}

// expiryOf reads the end of a JWT. The server checks the token.
func expiryOf(jwt string) (time.Time, bool) {
	var claims struct {
		Expiry float64 `json:"exp"`
	}
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return time.Time{}, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return time.Time{}, false
	}
	return time.Unix(int64(claims.Expiry), 0), true
}
