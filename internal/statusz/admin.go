package statusz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/internal/token"
)

// Limits of an admin token. A shorter token can be guessed; a longer one would
// not fit into the header of a request.
const (
	minToken = 16
	maxToken = 1024
)

// CheckToken returns an error that says what is wrong with an admin token. The
// error never contains the token.
func CheckToken(secret string) error { return token.Check(secret, minToken, maxToken) }

// ReadToken reads the admin token from a file and checks it.
func ReadToken(file string) (string, error) { return token.ReadFile(file, minToken, maxToken) }

// Token returns the function that answers with the admin token of the moment: secret,
// or the content of file, which is read for every request because Kubernetes changes a
// mounted file with its Secret. Without both the function is nil. The error says that
// the file has no token now. A function keeps the secret where fmt cannot print it.
func Token(secret, file string) (func() (string, error), error) {
	switch {
	case secret != "":
		return func() (string, error) { return secret, nil }, nil
	case file == "":
		return nil, nil
	}
	read := func() (string, error) { return ReadToken(file) }
	if _, err := read(); err != nil {
		return read, fmt.Errorf("config: AdminTokenFile: %w", err)
	}
	return read, nil
}

// Admin is what the operators' endpoints do to an App. All fields are needed.
type Admin struct {
	Log *slog.Logger

	// Token returns the current token. When it returns an error, the request is
	// refused.
	Token func() (string, error)

	// PreStop begins the drain and returns nil when the drain's window is over.
	// When ctx ends first, it returns an error and the drain goes on.
	PreStop func(ctx context.Context) error

	// Suspend makes readiness fail until Resume.
	Suspend func(reason string)
	Resume  func()

	// Upgrade replaces the process by a new one, and returns its id when that one serves.
	Upgrade func(ctx context.Context) (pid int, err error)
}

// Handlers returns the endpoints by their paths.
func (a Admin) Handlers() map[string]http.Handler {
	return map[string]http.Handler{
		"/admin/prestop": a.guarded(a.preStop, http.MethodGet, http.MethodPost),
		"/admin/suspend": a.guarded(a.suspend, http.MethodPost),
		"/admin/resume":  a.guarded(a.resume, http.MethodPost),
		"/admin/upgrade": a.guarded(a.upgrade, http.MethodPost),
	}
}

// guarded calls h for a request with the token and one of the methods. It refuses
// any other request.
func (a Admin) guarded(h http.HandlerFunc, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		want, err := a.Token()
		if err != nil {
			a.Log.Error("admin request refused: the token cannot be read", "error", err)
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

// unlimited takes the server's time limit for an ordinary answer away.
func (a Admin) unlimited(w http.ResponseWriter) *http.ResponseController {
	rc := http.NewResponseController(w)
	if err := rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.Log.Warn("the answer to an operator's request may not get through", "error", err)
	}
	return rc
}

// upgrade goes on when the caller disconnects.
func (a Admin) upgrade(w http.ResponseWriter, req *http.Request) {
	rc := a.unlimited(w)
	pid, err := a.Upgrade(context.WithoutCancel(req.Context()))
	if err != nil {
		answer.Line(http.StatusConflict, text.OneLine(err.Error())).Write(w, req)
		return
	}
	answer.Line(http.StatusOK, fmt.Sprintf("upgraded: process %d serves", pid)).Write(w, req)
	_ = rc.Flush() // the health server closes
}

func (a Admin) preStop(w http.ResponseWriter, req *http.Request) {
	rc := a.unlimited(w)
	if a.PreStop(req.Context()) != nil {
		return // the caller has disconnected
	}
	answer.Line(http.StatusOK, "the drain window is over").Write(w, req)
	_ = rc.Flush() // the health server may close as soon as this returns
}

func (a Admin) suspend(w http.ResponseWriter, req *http.Request) {
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

func (a Admin) resume(w http.ResponseWriter, req *http.Request) {
	a.Resume()
	answer.Line(http.StatusOK, "resumed").Write(w, req)
}
