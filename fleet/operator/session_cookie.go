package operator

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// sessions are the logins of browsers. A browser sends no bearer token by itself, so the
// dashboard has a login form and a session cookie. A session is the caller's token, encrypted, in a
// cookie: every replica with the same key reads it, and no server stores it. The token
// is checked with every request, so revoking it ends the session too. The session of a
// caller who signed in with OpenID Connect has the caller instead of a token; the grants
// are looked up with every request.
type sessions struct {
	seal cipher.AEAD

	https bool        // people sign in at the provider over TLS
	ends  SessionEnds // of all replicas; nil when only this server knows
	log   *slog.Logger
	lost  repeatLog

	mu    sync.Mutex // guards ended
	ended map[string]endedSession
}

const (
	cookieName = "lifecycle-session"
	sessionAge = 12 * time.Hour
	maxEnded   = 4096 // sessions of one person that logged out and are remembered
)

type session struct {
	ID    string    `json:"id"`
	Token string    `json:"token,omitempty"`
	Who   *person   `json:"who,omitempty"`
	Until time.Time `json:"until"`
}

// person is a caller as its provider knows it.
type person struct {
	Issuer string   `json:"iss"`
	Name   string   `json:"name"`
	Groups []string `json:"groups,omitempty"` // those that have a grant
}

// newSessions returns the sessions of a server; without a key theirs is a random one.
func newSessions(cfg Config, signIn *oidcAuth) (*sessions, error) {
	key := cfg.SessionKey
	switch {
	case len(key) == 0:
		key = make([]byte, 32)
		rand.Read(key)
	case len(key) < 32:
		return nil, fmt.Errorf("operator: SessionKey has %d bytes: want 32 random ones or more", len(key))
	}
	sum := sha256.Sum256(append([]byte("lifecycle-go session "), key...))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return nil, fmt.Errorf("operator: SessionKey: %w", err)
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("operator: SessionKey: %w", err)
	}
	return &sessions{
		seal:  seal,
		https: signIn != nil && strings.HasPrefix(signIn.cfg.RedirectURL, "https://"),
		ends:  cfg.SessionEnds,
		log:   cfg.Log,
		ended: map[string]endedSession{},
	}, nil
}

// begin returns the cookie's value for a token.
func (l *sessions) begin(token string) (string, error) {
	return l.sealed(cookieName, session{ID: rand.Text(), Token: token, Until: time.Now().Add(sessionAge)})
}

// sealed returns the value of a cookie that only servers with the same key can make and
// read. The name is sealed with it: the value of one cookie is no value of another.
func (l *sessions) sealed(name string, content any) (string, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(l.seal.Seal(nil, nil, text, []byte(name))), nil
}

// unseal reads the cookie of a request into content: the one that only a page over TLS can
// have set when secure, and otherwise the one of any page.
func (l *sessions) unseal(r *http.Request, name string, secure bool, content any) bool {
	c, err := r.Cookie(prefixed(name, secure))
	if err != nil {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err == nil {
		text, err = l.seal.Open(nil, nil, text, []byte(name))
	}
	return err == nil && json.Unmarshal(text, content) == nil
}

// open reads the session of a request's cookie. A proxy may not say that a page came over
// TLS, so the cookie with the prefix is always read. The one without it could be of another
// site's page, and is not read when the browser uses TLS, or when the caller signed in over
// TLS.
func (l *sessions) open(r *http.Request) (s session, ok bool) {
	if !l.unseal(r, cookieName, true, &s) {
		s = session{}
		if overTLS(r) || !l.unseal(r, cookieName, false, &s) || s.Who != nil && l.https {
			return session{}, false
		}
	}
	if time.Now().After(s.Until) {
		return session{}, false
	}
	return s, !l.over(r.Context(), s)
}

// end ends a session here and, with SessionEnds, on every replica; everywhere is false when
// SessionEnds has failed. Then, and without SessionEnds, another replica accepts its
// cookie until it expires, but the browser has deleted it.
func (l *sessions) end(r *http.Request) (s session, everywhere bool) {
	s, ok := l.open(r)
	if !ok {
		return s, true
	}
	l.forget(s)
	if l.ends != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storeTime)
		defer cancel()
		if err := l.ends.End(ctx, s.ID); err != nil {
			l.log.Error("operator: a session has ended on this replica only",
				"until", s.Until, "remote", r.RemoteAddr, "error", err)
			return s, false
		}
	}
	return s, true
}

// overTLS reports whether the browser reached this server through TLS, also when a
// proxy in front terminates it. The answer only decides whether a cookie is Secure, so
// a caller that lies harms itself.
func overTLS(r *http.Request) bool {
	return r.TLS != nil ||
		strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") ||
		strings.Contains(strings.ToLower(r.Header.Get("Forwarded")), "proto=https") ||
		strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// prefixed returns the name of a cookie: with the prefix "__Host-" when it is Secure
// (RFC 6265bis, section 4.1.3). A browser takes such a cookie only from this host, over TLS.
// Pages of sibling domains and without TLS cannot replace it.
func prefixed(name string, secure bool) string {
	if secure {
		return "__Host-" + name
	}
	return name
}

// cookie returns a cookie with this value; "" deletes it. A Secure one is for all paths, as
// its prefix demands; the server reads it only where it is for.
func cookie(name, value, path string, secure bool, age time.Duration, site http.SameSite) *http.Cookie {
	c := &http.Cookie{
		Name:     prefixed(name, secure),
		Value:    value,
		Path:     path,
		MaxAge:   int(age / time.Second),
		HttpOnly: true,
		SameSite: site,
		Secure:   secure,
	}
	if secure {
		c.Path = "/"
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// sessionCookie returns the session's cookie with this value; "" deletes it.
func sessionCookie(value string, secure bool, age time.Duration) *http.Cookie {
	return cookie(cookieName, value, "/ui/", secure, age, http.SameSiteStrictMode)
}
