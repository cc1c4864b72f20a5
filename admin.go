package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"syscall"

	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
	"github.com/pleme-io/lifecycle-go/internal/statusz"
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
func (a *App) Handler() http.Handler { return httpdrain.Route(a.health.reg.Handler(), a.extra) }

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
	case <-a.Reached(PhaseStopping): // it was starting, and has no window
	case <-a.Reached(PhaseFailed): // nothing was ever started
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
