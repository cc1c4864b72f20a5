package lifecycle

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// Secret is a text that no log, dump or document shows: fmt with any verb, slog
// and encoding/json write "[secret]" for it, or nothing when it is empty. One
// thing can see through it: fmt asks no method of what lies in an unexported
// field, so do not print a struct that keeps a Config in one.
type Secret string

// String returns "[secret]", and "" for an empty one.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString is String quoted, for %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format writes what String does, whatever the verb, and quoted for %q and %#v:
// a verb that does not fit a text must not show it either.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		text = s.GoString()
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText returns what String does.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what String does.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// What an operator may ask for on the health address once Config.AdminToken or
// Config.AdminTokenFile is set.
const (
	pathPreStop = "/admin/prestop"
	pathSuspend = "/admin/suspend"
	pathResume  = "/admin/resume"
)

// Limits of a token. Below the lower one it can be guessed; a longer one than
// the upper would not fit into the header of a request.
const (
	minToken = 16
	maxToken = 1024
)

// Suspend makes readiness fail, with the reason given, until [App.Resume]: the
// cluster sends no new work here, and everything that there is goes on. Nothing
// stops, and liveness does not see it. A second call replaces the reason. It may
// be called at any time, also before Run.
func (a *App) Suspend(reason string) {
	a.reg.setSuspended(true, clip(reason, 256))
	a.log.Warn("suspended: readiness is down", "reason", reason)
}

// Resume ends what [App.Suspend] began: readiness is what the checks say. On an
// App that is not suspended it does nothing. It does not undo a drain.
func (a *App) Resume() {
	a.reg.setSuspended(false, "")
	a.log.Info("resumed: readiness is what the checks say")
}

// Handler returns what the health address serves: the planes of
// [Registry.Handler], /metrics when there are any ([WithMetrics]), /statusz
// unless it is off, and with an admin token the endpoints of operators:
//
//	GET, POST /admin/prestop         begin the drain, answer when its window is over
//	POST /admin/suspend?reason=TEXT  [App.Suspend]
//	POST /admin/resume               [App.Resume]
//
// The three ask for the header "Authorization: Bearer TOKEN"; without it, or
// with another token, the answer is 401 and nothing happens. When no token is
// configured they do not exist: 404.
//
// /admin/prestop is for a pod's preStop hook. It stops the App as a signal does,
// and the SIGTERM that the kubelet sends after the hook finds the stop begun: it
// adds no second wait and shortens nothing. The drain goes on when the caller
// hangs up. GET does it too because a kubelet has nothing else:
//
//	lifecycle:
//	  preStop:
//	    httpGet:
//	      port: 8081
//	      path: /admin/prestop
//	      httpHeaders: [{name: Authorization, value: Bearer TOKEN}]
//
// The time of the hook is the drain window itself, so Config.PreStop stays 0.
//
// It is for an App whose HealthAddr is off, which serves this somewhere else.
func (a *App) Handler() http.Handler { return route(a.reg.Handler(), a.extra) }

// mountAdmin puts the operators' endpoints among the health server's handlers,
// if they are wanted.
func (a *App) mountAdmin() error {
	switch token, file := string(a.cfg.AdminToken), a.cfg.AdminTokenFile; {
	case token != "":
		// In a function, where nothing that prints the App finds it.
		a.token = func() (string, error) { return token, nil }
		a.cfg.AdminToken = ""
	case file != "":
		// The token of this moment: a file that Kubernetes mounts changes when
		// its Secret does.
		a.token = func() (string, error) { return readToken(file) }
		if _, err := a.token(); err != nil {
			return fmt.Errorf("config: AdminTokenFile: %w", err)
		}
	default:
		return nil
	}
	a.extra[pathPreStop] = a.guarded(a.servePreStop, http.MethodGet, http.MethodPost)
	a.extra[pathSuspend] = a.guarded(a.serveSuspend, http.MethodPost)
	a.extra[pathResume] = a.guarded(a.serveResume, http.MethodPost)
	return nil
}

// checkToken says what is wrong with a token, never the token itself.
func checkToken(token string) error {
	switch n := len(token); {
	case n < minToken:
		return fmt.Errorf("the token has %d characters, want %d or more", n, minToken)
	case n > maxToken:
		return fmt.Errorf("the token has %d characters, want %d or fewer", n, maxToken)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return fmt.Errorf("the token cannot stand in a header: byte %d is not a visible ASCII character", i)
		}
	}
	return nil
}

// readToken reads a token from a file, in which space around it means nothing.
func readToken(name string) (string, error) {
	// To open a pipe could take for ever.
	if info, err := os.Stat(name); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file: %v", name, info.Mode().Type())
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 4*maxToken))
	if err != nil {
		return "", err
	}
	token := string(bytes.TrimSpace(b))
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return token, nil
}

// guarded lets a request through to h that has the token and one of the methods.
func (a *App) guarded(h http.HandlerFunc, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		token, err := a.token()
		if err != nil {
			a.log.Error("admin request refused: the token cannot be read", "error", err)
			refuse(http.StatusServiceUnavailable, "the admin token cannot be read, see the log").write(w, req)
			return
		}
		if !authorized(req.Header.Get("Authorization"), token) {
			w.Header()["Www-Authenticate"] = []string{`Bearer realm="lifecycle"`}
			refuse(http.StatusUnauthorized, "unauthorized: want the header Authorization: Bearer TOKEN").write(w, req)
			return
		}
		for _, m := range methods {
			if req.Method == m {
				h(w, req)
				return
			}
		}
		w.Header()["Allow"] = []string{strings.Join(methods, ", ")}
		refuse(http.StatusMethodNotAllowed, "method not allowed: use "+strings.Join(methods, " or ")).write(w, req)
	})
}

// authorized compares in a time that says nothing about the token: the hashes
// have one length, whatever was sent (RFC 6750, section 2.1, is the header).
func authorized(header, token string) bool {
	scheme, given, _ := strings.Cut(header, " ")
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(strings.TrimLeft(given, " ")))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

func (a *App) servePreStop(w http.ResponseWriter, req *http.Request) {
	// The hook says what the signal after it will say: a Job whose pod is
	// deleted while it works must not count as complete.
	a.requestStop(stopRequest{reason: "the preStop hook was called", signal: &SignalError{syscall.SIGTERM}})
	// The window may be longer than the server grants an ordinary answer.
	rc := http.NewResponseController(w)
	if err := rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.log.Warn("preStop: the answer may not get through", "error", err)
	}
	select {
	case <-a.windowOver:
	case <-a.Reached(PhaseStopping): // it was starting, and has no window
	case <-a.Reached(PhaseFailed): // nothing was ever started
	case <-req.Context().Done():
		return // the drain goes on
	}
	newAnswer(http.StatusOK, typeText, []byte("the drain window is over\n")).write(w, req)
	_ = rc.Flush() // now: the health server may close as soon as this returns
}

func (a *App) serveSuspend(w http.ResponseWriter, req *http.Request) {
	if n := len(req.URL.RawQuery); n > maxQuery {
		refuse(http.StatusBadRequest, fmt.Sprintf("the query has %d bytes, at most %d are read", n, maxQuery)).write(w, req)
		return
	}
	reason := oneLine(strings.ToValidUTF8(req.URL.Query().Get("reason"), "\uFFFD"))
	if reason == "" {
		reason = "by an operator"
	}
	a.Suspend(reason)
	newAnswer(http.StatusOK, typeText, []byte("suspended\n")).write(w, req)
}

func (a *App) serveResume(w http.ResponseWriter, req *http.Request) {
	a.Resume()
	newAnswer(http.StatusOK, typeText, []byte("resumed\n")).write(w, req)
}
