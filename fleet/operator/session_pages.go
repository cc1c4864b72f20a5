package operator

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
)

// withSession adds the token of the cookie's session to a request that has no credentials,
// or returns the caller who has signed in. Only the dashboard's requests have a session.
func (s *Server) withSession(r *http.Request) (*http.Request, *Principal) {
	if !strings.HasPrefix(r.URL.Path, "/ui/") || r.Header.Get("Authorization") != "" {
		return r, nil
	}
	one, ok := s.sessions.open(r)
	switch {
	case !ok:
		return r, nil
	case one.Who != nil:
		return r, s.signIn.principal(one)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+one.Token)
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
	ofPages := r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, "/ui/")
	page := r.Method == http.MethodGet && ofPages && strings.Contains(r.Header.Get("Accept"), "text/html")
	var e *Error
	if s.cfg.Auth == nil || !page || !errors.As(err, &e) || e.Code != connect.CodeUnauthenticated {
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
		ui.Login(w, next, message(err), httpcode.Of(connect.CodeOf(err)))
		return
	}
	value, err := s.sessions.begin(token)
	if err != nil {
		ui.Login(w, next, "the session cannot be made", http.StatusInternalServerError)
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
