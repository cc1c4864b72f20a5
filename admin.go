package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/statusz"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// maxReason is how many bytes of an operator's reason are kept.
const maxReason = 256

// Suspension says why readiness is suspended and since when.
type Suspension struct {
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// suspension is the one place that knows whether an App is suspended.
type suspension struct {
	mu  sync.Mutex // held while the registry is told, so that the two agree
	now Suspension // Since is zero when the App is not suspended
}

// Suspend makes readiness fail, with the reason given, until [App.Resume]: the
// cluster sends no new work here, and everything that there is goes on. Nothing
// stops, and liveness does not see it. A second call replaces the reason, of
// which 256 bytes are kept. It may be called at any time, also before Run.
func (a *App) Suspend(reason string) {
	reason = text.Clip(reason, maxReason)
	a.suspension.mu.Lock()
	defer a.suspension.mu.Unlock()
	a.suspension.now.Reason = reason
	if a.suspension.now.Since.IsZero() {
		a.suspension.now.Since = time.Now()
	}
	a.reg.setSuspended(true, reason)
	a.log.Warn("suspended: readiness is down", "reason", reason)
}

// Resume ends what [App.Suspend] began: readiness is what the checks say. On an
// App that is not suspended it does nothing. It does not undo a drain.
func (a *App) Resume() {
	a.suspension.mu.Lock()
	defer a.suspension.mu.Unlock()
	a.suspension.now = Suspension{}
	a.reg.setSuspended(false, "")
	a.log.Info("resumed: readiness is what the checks say")
}

// Suspended reports whether [App.Suspend] or /admin/suspend has suspended the
// App, and with what reason. Since is the time of the first call after the last
// [App.Resume].
func (a *App) Suspended() (s Suspension, suspended bool) {
	a.suspension.mu.Lock()
	defer a.suspension.mu.Unlock()
	return a.suspension.now, !a.suspension.now.Since.IsZero()
}

// Ready returns nil when /readyz passes, and otherwise an error with a line for
// each critical check that fails it, as "db: connection refused". The check
// "lifecycle" is the App itself: starting, suspended or draining. Ready runs no
// check; it goes by what each check's last run found, so it returns at once.
func (a *App) Ready() error {
	var errs []error
	for _, c := range a.reg.Snapshot() {
		if c.Plane == readinessPlane.String() && c.Critical && c.State != StateUp {
			errs = append(errs, fmt.Errorf("%s: %s", c.Name, c.Error))
		}
	}
	return errors.Join(errs...)
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

// takeToken takes the operators' token, if there is one, out of the Config.
func (a *App) takeToken() error {
	switch secret, file := string(a.cfg.AdminToken), a.cfg.AdminTokenFile; {
	case secret != "":
		// In a function, where fmt cannot print it with the App.
		a.token = func() (string, error) { return secret, nil }
		a.cfg.AdminToken = ""
	case file != "":
		// Read for every request: Kubernetes changes a mounted file with its Secret.
		a.token = func() (string, error) { return statusz.ReadToken(file) }
		if _, err := a.token(); err != nil {
			return fmt.Errorf("config: AdminTokenFile: %w", err)
		}
	}
	return nil
}

// mount adds /statusz and the operators' endpoints to the handlers of the health
// server. /statusz is on unless StatuszOff: it says little more than
// /readyz?verbose, and a process in trouble is not restarted to turn it on.
func (a *App) mount() {
	if !a.cfg.StatuszOff {
		a.extra["/statusz"] = statusz.Handler(func() (statusz.View, any) {
			s := a.Status()
			return s.view(), s
		})
	}
	if a.token != nil {
		maps.Copy(a.extra, statusz.Admin{Log: a.log, Token: a.token, PreStop: a.preStop, Suspend: a.Suspend, Resume: a.Resume}.Handlers())
	}
}

// preStop is T0, and waits for the end of the drain window or of ctx.
func (a *App) preStop(ctx context.Context) error {
	// The reason is the signal that the kubelet sends after the hook: a Job whose
	// pod is deleted while it works must not count as complete.
	a.requestStop(stopRequest{reason: "the preStop hook was called", signal: &SignalError{syscall.SIGTERM}})
	select {
	case <-a.stop.windowOver.Signaled():
	case <-a.reached[PhaseStopping]: // it was starting, and has no window
	case <-a.reached[PhaseFailed]: // nothing was ever started
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
