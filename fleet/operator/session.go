package operator

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
)

// sessions are the logins of browsers. A browser sends no bearer token by itself, so the
// dashboard has a login form and a session cookie. A session is the caller's token, encrypted, in a
// cookie: every replica with the same key reads it, and no server stores it. The token
// is checked with every request, so revoking it ends the session too. The session of a
// caller who signed in with OpenID Connect has the caller instead of a token; the grants
// are looked up with every request.
type sessions struct {
	seal cipher.AEAD

	https   bool        // callers sign in at the provider over TLS
	ends    SessionEnds // of all replicas; nil when only this server knows which sessions have ended
	log     *slog.Logger
	unknown repeatLog // of failures to ask ends

	mu    sync.Mutex           // guards ended
	ended map[string]time.Time // by session: when it would expire
}

const (
	cookieName = "lifecycle-session"
	sessionAge = 12 * time.Hour
	maxCookie  = 4000 // bytes of a value; browsers drop larger cookies without a word
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
	Groups []string `json:"groups,omitempty"` // groups that have a grant
}

// newSessions returns the sessions of a server. Without a SessionKey it makes a random key.
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
		log:   cfg.Logger,
		ended: map[string]time.Time{},
	}, nil
}

// begin returns the cookie's value for a token.
func (l *sessions) begin(token string) (string, error) {
	return l.sealed(cookieName, session{ID: rand.Text(), Token: token, Until: time.Now().Add(sessionAge)})
}

// sealed returns the value of a cookie that only servers with the same key can make and
// read. The name is sealed with it: the value of one cookie is not valid in another. A value that
// is too large for a browser is an error.
func (l *sessions) sealed(name string, content any) (string, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return "", err
	}
	value := base64.RawURLEncoding.EncodeToString(l.seal.Seal(nil, nil, text, []byte(name)))
	if len(value) > maxCookie {
		return "", fmt.Errorf("the cookie %s has %d bytes, and a browser takes %d", name, len(value), maxCookie)
	}
	return value, nil
}

// unseal reads the cookie of a request into content. With secure it reads the cookie that only a
// page over TLS can have set, and otherwise the one that any page can have set.
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

// open reads the session of a request's cookie. It always reads the cookie with the prefix,
// because a proxy may not say that a page came over TLS. A page of another site could have set
// the cookie without the prefix: open ignores that one when the browser uses TLS, or when the
// caller signed in over TLS.
func (l *sessions) open(r *http.Request) (s session, ok bool) {
	if !l.unseal(r, cookieName, true, &s) {
		s = session{}
		if overTLS(r) || !l.unseal(r, cookieName, false, &s) {
			return session{}, false
		}
		if signedInOverTLS := s.Who != nil && l.https; signedInOverTLS {
			return session{}, false
		}
	}
	if time.Now().After(s.Until) {
		return session{}, false
	}
	return s, !l.hasEnded(r.Context(), s)
}

// end ends a session here and, with SessionEnds, on every replica. everywhere is false when
// SessionEnds has failed. In that case, and without SessionEnds, another replica accepts the
// cookie until it expires; but the browser has deleted it.
func (l *sessions) end(r *http.Request) (s session, everywhere bool) {
	s, ok := l.open(r)
	if !ok {
		return s, true
	}
	l.rememberEnd(s)
	if l.ends != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), saveTime)
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
// proxy in front terminates it. The answer decides whether a cookie is Secure, and whether open
// reads the cookie without the prefix, so a caller that lies harms itself.
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

// cookie returns a cookie with this value; "" deletes it. A Secure cookie is sent for all paths,
// as its prefix demands; the server reads it for the given path alone.
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

// SessionEnds remembers which sessions of the dashboard have ended, for all replicas of a
// server. [OpenSessionEnds] returns one.
type SessionEnds interface {
	// End remembers that a session has ended. It may forget it after the longest life of
	// a session, which is 12 hours.
	End(ctx context.Context, id string) error
	// Ended reports whether a session has ended.
	Ended(ctx context.Context, id string) (bool, error)
}

// OpenSessionEnds returns a SessionEnds in a bucket of JetStream, which it creates when it
// is missing; "" is FLEET_SESSIONS.
func OpenSessionEnds(ctx context.Context, js jetstream.JetStream, bucket string) (SessionEnds, error) {
	if bucket == "" {
		bucket = "FLEET_SESSIONS"
	}
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:       bucket,
			Description:  "sessions of the operators' dashboard that have ended",
			TTL:          sessionAge,
			History:      1,
			MaxValueSize: 1 << 10,
			MaxBytes:     256 << 20,
		})
		if errors.Is(err, jetstream.ErrBucketExists) { // another replica was faster
			kv, err = js.KeyValue(ctx, bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("operator: sessions: %w", err)
	}
	return sessionBucket{kv}, nil
}

type sessionBucket struct{ kv jetstream.KeyValue }

func (b sessionBucket) End(ctx context.Context, id string) error {
	_, err := b.kv.PutString(ctx, id, "ended")
	return err
}

func (b sessionBucket) Ended(ctx context.Context, id string) (bool, error) {
	_, err := b.kv.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// endsTime is how long one question to SessionEnds may take.
const endsTime = 500 * time.Millisecond

// hasEnded reports whether a session has ended, here or on another replica. When SessionEnds does
// not answer, only sessions that ended here count: the dashboard must work then, to show what is
// wrong.
func (l *sessions) hasEnded(ctx context.Context, s session) bool {
	l.mu.Lock()
	_, ended := l.ended[s.ID]
	l.mu.Unlock()
	if ended || l.ends == nil {
		return ended
	}
	ctx, cancel := context.WithTimeout(ctx, endsTime)
	defer cancel()
	ended, err := l.ends.Ended(ctx, s.ID)
	if err != nil {
		l.unknown.warn(l.log, "operator: it is not known whether a session has ended on another replica", err)
		return false
	}
	return ended
}

// rememberEnd remembers here that a session has ended, until it would expire.
func (l *sessions) rememberEnd(s session) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.ended, func(_ string, until time.Time) bool { return now.After(until) })
	l.ended[s.ID] = s.Until
}

// withSession adds the token of the cookie's session to a request that has no credentials,
// or returns the caller who has signed in. Only the dashboard's requests have a session.
func (s *Server) withSession(r *http.Request) (*http.Request, *Principal) {
	if !strings.HasPrefix(r.URL.Path, "/ui/") || r.Header.Get("Authorization") != "" {
		return r, nil
	}
	session, ok := s.sessions.open(r)
	switch {
	case !ok:
		return r, nil
	case session.Who != nil:
		return r, s.signIn.principal(session)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+session.Token)
	return r, nil
}

// isPublic reports whether a request needs no credentials: the login form, its style and
// script, and the way to the provider and back.
func (s *Server) isPublic(r *http.Request) bool {
	path := r.URL.Path
	public := path == "/ui/login" || strings.HasPrefix(path, "/ui/login/") || strings.HasPrefix(path, "/ui/static/")
	return s.cfg.Auth != nil && public
}

// toLogin redirects a browser that opens a page to the login form.
func (s *Server) toLogin(w http.ResponseWriter, r *http.Request, err error) bool {
	isPagePath := r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, "/ui/")
	opensPage := r.Method == http.MethodGet && isPagePath && strings.Contains(r.Header.Get("Accept"), "text/html")
	var e *Error
	isUnauthenticated := errors.As(err, &e) && e.Code == connect.CodeUnauthenticated
	if s.cfg.Auth == nil || !opensPage || !isUnauthenticated {
		return false
	}
	http.Redirect(w, r, "/ui/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
	return true
}

// pages serves browsers.
func (s *Server) pages(ui *dashboard.Dashboard) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/ui/", ui)
	mux.Handle("GET /{$}", http.RedirectHandler("/ui/", http.StatusSeeOther))
	mux.HandleFunc("GET /ui/login", func(w http.ResponseWriter, r *http.Request) {
		ui.Login(w, safeNext(r.URL.Query().Get("next")), "", http.StatusOK)
	})
	mux.HandleFunc("POST /ui/login", func(w http.ResponseWriter, r *http.Request) { s.login(w, r, ui) })
	mux.HandleFunc("POST /ui/logout", func(w http.ResponseWriter, r *http.Request) {
		ended, everywhere := s.sessions.end(r)
		to := s.signIn.signOut(ended)
		for _, secure := range []bool{true, false} {
			if _, err := r.Cookie(prefixed(cookieName, secure)); err == nil {
				http.SetCookie(w, sessionCookie("", secure, 0))
			}
		}
		if !everywhere {
			ui.SignedOut(w, to, ended.Until)
			return
		}
		http.Redirect(w, r, to, http.StatusSeeOther)
	})
	if s.signIn != nil {
		mux.HandleFunc("GET /ui/login/settings", s.signIn.settings)
		if s.signIn.cfg.RedirectURL != "" {
			mux.HandleFunc("GET /ui/login/start", s.startSignIn)
			mux.HandleFunc("GET "+callbackPath, s.finishSignIn)
		}
	}
	mux.HandleFunc("/ui/login/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such page", http.StatusNotFound)
	})
	return mux
}

// maxLogin is the largest form that the operator reads from a client without a session.
const maxLogin = 32 << 10

func (s *Server) login(w http.ResponseWriter, r *http.Request, ui *dashboard.Dashboard) {
	r.Body = http.MaxBytesReader(w, r.Body, maxLogin)
	if err := r.ParseForm(); err != nil {
		ui.Login(w, "/ui/", "the form cannot be read", http.StatusBadRequest)
		return
	}
	next := safeNext(r.Form.Get("next"))
	token := strings.TrimSpace(r.PostFormValue("token"))
	ask := r.Clone(r.Context())
	ask.Header.Set("Authorization", "Bearer "+token)
	if s.cfg.Auth == nil {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return
	}
	if _, err := s.recognise(ask); err != nil {
		err = wire(r.Context(), s.log, "login", err)
		ui.Login(w, next, client.Message(err), httpcode.Of(connect.CodeOf(err)))
		return
	}
	value, err := s.sessions.begin(token)
	if err != nil {
		ui.Login(w, next, "the token is too long for a session of a browser; programs and lifecyclectl can use it: "+err.Error(),
			http.StatusBadRequest)
		return
	}
	http.SetCookie(w, sessionCookie(value, overTLS(r), sessionAge))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// safeNext returns next if it is a path of the dashboard, and /ui/ otherwise: a login
// must not redirect to another site.
func safeNext(next string) string {
	u, err := url.Parse(next)
	elsewhere := err != nil || u.Scheme != "" || u.Host != "" || strings.ContainsAny(next, "\\\r\n")
	if elsewhere || !strings.HasPrefix(next, "/ui/") {
		return "/ui/"
	}
	return next
}
