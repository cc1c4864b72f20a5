package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/internal/token"
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
func (a *App) Handler() http.Handler { return a.healthHandler() }

// mountAdmin puts the operators' endpoints among the health server's handlers,
// if they are wanted.
func (a *App) mountAdmin() error {
	switch secret, file := string(a.cfg.AdminToken), a.cfg.AdminTokenFile; {
	case secret != "":
		// In a function, where nothing that prints the App finds it.
		a.token = func() (string, error) { return secret, nil }
		a.cfg.AdminToken = ""
	case file != "":
		// The token of this moment: a file that Kubernetes mounts changes when
		// its Secret does.
		a.token = func() (string, error) { return token.ReadFile(file, minToken, maxToken) }
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

// guarded lets a request through to h that has the token and one of the methods.
func (a *App) guarded(h http.HandlerFunc, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		want, err := a.token()
		if err != nil {
			a.log.Error("admin request refused: the token cannot be read", "error", err)
			answer.Line(http.StatusServiceUnavailable, "the admin token cannot be read, see the log").Write(w, req)
			return
		}
		if given, _ := token.Bearer(req.Header); !token.DigestOf(given).Equal(token.DigestOf(want)) {
			w.Header()["Www-Authenticate"] = []string{`Bearer realm="lifecycle"`}
			answer.Line(http.StatusUnauthorized, "unauthorized: want the header Authorization: Bearer TOKEN").Write(w, req)
			return
		}
		if answer.Allow(w, req, methods...) {
			h(w, req)
		}
	})
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
	case <-a.stop.windowOver.Signaled():
	case <-a.reached[PhaseStopping]: // it was starting, and has no window
	case <-a.reached[PhaseFailed]: // nothing was ever started
	case <-req.Context().Done():
		return // the drain goes on
	}
	answer.Line(http.StatusOK, "the drain window is over").Write(w, req)
	_ = rc.Flush() // now: the health server may close as soon as this returns
}

func (a *App) serveSuspend(w http.ResponseWriter, req *http.Request) {
	if refusal := answer.QueryTooLong(req); refusal != nil {
		refusal.Write(w, req)
		return
	}
	reason := text.OneLine(text.Valid(req.URL.Query().Get("reason")))
	if reason == "" {
		reason = "by an operator"
	}
	a.Suspend(reason)
	answer.Line(http.StatusOK, "suspended").Write(w, req)
}

func (a *App) serveResume(w http.ResponseWriter, req *http.Request) {
	a.Resume()
	answer.Line(http.StatusOK, "resumed").Write(w, req)
}
