package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
	"github.com/pleme-io/lifecycle-go/internal/statusz"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/internal/token"
)

// The most used names of the package health. That package has the other options of a
// check, and works without an App.
type (
	// Registry holds the checks of a process: [health.Registry].
	Registry = health.Registry
	// Probe checks one dependency of the process: [health.Probe].
	Probe = health.Probe
	// ProbeFunc makes a function a Probe: [health.ProbeFunc].
	ProbeFunc = health.ProbeFunc
)

// The states of a check.
const (
	StateUp      = health.Up
	StateDown    = health.Down
	StateUnknown = health.Unknown
)

// ErrUnknown is the error of a [Probe] that cannot tell whether its dependency is up
// or down: [health.ErrUnknown].
var ErrUnknown = health.ErrUnknown

// NewRegistry returns a registry without checks: [health.NewRegistry].
func NewRegistry(opts ...health.RegistryOption) *Registry { return health.NewRegistry(opts...) }

// WithCache answers from the check's last result for ttl: [health.WithCache].
func WithCache(ttl time.Duration) health.Option { return health.WithCache(ttl) }

// WithPeriodic runs the check in the background: [health.WithPeriodic].
func WithPeriodic(interval time.Duration) health.Option { return health.WithPeriodic(interval) }

type ownHealth struct {
	reg   *Registry
	owner *health.Owner // the condition "lifecycle": starting, suspended, draining

	server *httpdrain.HealthServer // guarded by App.mu; nil before start and when it is off
	ended  chan struct{}           // closed when the server's Serve has returned
}

// Registry returns the App's health registry. Use it for liveness and startup
// checks, which [App.Probe] does not register.
func (a *App) Registry() *Registry { return a.health.reg }

// Probe registers a readiness probe for a dependency without which the App cannot
// serve. Register a check of the process itself with Registry().RegisterLiveness, and
// never a check of a dependency. Run returns an error for a refused registration.
func (a *App) Probe(name string, p Probe, opts ...health.Option) *App {
	if a.parts.isLate("probe", name) {
		return a
	}
	_ = a.health.reg.RegisterReadiness(name, p, opts...) // the registry keeps the error, and Run returns it
	return a
}

// maxReason is the number of bytes kept of an operator's reason.
const maxReason = 256

// Suspension says why readiness is suspended and since when.
type Suspension struct {
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// Suspend makes readiness fail with the reason until [App.Resume]. The cluster then
// sends no new work to this process. Present work goes on, nothing stops, and liveness
// is not affected. A second call replaces the reason. The App keeps 256 bytes of it.
// Suspend may be called at any time, also before Run.
func (a *App) Suspend(reason string) {
	reason = text.Clip(reason, maxReason)
	a.health.owner.Suspend(reason)
	a.log.Warn("suspended: readiness is down", "reason", reason)
}

// Resume ends the effect of [App.Suspend]: readiness is again the result of the
// checks. On an App that is not suspended it does nothing. It does not undo a drain.
func (a *App) Resume() {
	a.health.owner.Resume()
	a.log.Info("resumed: the checks decide readiness")
}

// Suspended reports whether [App.Suspend] or /admin/suspend has suspended the App,
// with the reason. Since is the time of the first call after the last [App.Resume].
func (a *App) Suspended() (s Suspension, suspended bool) {
	s.Reason, s.Since = a.health.owner.Suspended()
	return s, !s.Since.IsZero()
}

// Ready returns nil when /readyz passes, and otherwise an error with a line for
// each critical check that fails it, as "db: connection refused", or "orders:
// caused by db" for a check that depends on another. The check "lifecycle" is the
// App itself: starting, suspended or draining. Ready runs no check; it reads the last
// result of each and returns at once.
func (a *App) Ready() error { return a.health.reg.NotReady() }

// Handler returns the handler of the health address: the planes of
// [Registry.Handler], /metrics with [WithMetrics], /statusz unless it is off, and with
// an admin token the endpoints for operators:
//
//	GET, POST /admin/prestop         begin the drain, answer when its window is over
//	POST /admin/suspend?reason=TEXT  [App.Suspend]
//	POST /admin/resume               [App.Resume]
//	POST /admin/upgrade              [App.Upgrade], answered when the new process serves
//
// They need the header "Authorization: Bearer TOKEN". Without it, or with
// another token, they answer 401 and do nothing. When no token is configured, they
// answer 404.
//
// /admin/prestop is for a pod's preStop hook. It stops the App as a signal does. When
// the kubelet then sends SIGTERM, the stop has begun: the signal adds no second wait
// and shortens nothing. The drain goes on when the caller disconnects. A kubelet can
// only send GET:
//
//	lifecycle:
//	  preStop:
//	    httpGet:
//	      port: 8081
//	      path: /admin/prestop
//	      httpHeaders: [{name: Authorization, value: Bearer TOKEN}]
//
// The hook takes as long as the drain window, so Config.PreStop stays 0.
//
// Use Handler when Config.HealthAddr is off and another server serves the planes.
func (a *App) Handler() http.Handler { return httpdrain.Route(a.health.reg.Handler(), a.extra) }

// Secret is a text that no log, dump or document shows: fmt with any verb, slog
// and encoding/json write "[secret]" for it, or nothing when it is empty. There is
// one exception: fmt calls no method of a value in an unexported field, so do not
// print a struct that keeps a Config in such a field. It is a string: string(s) is the text.
type Secret = token.Secret

// mount adds /statusz and the operators' endpoints to the handlers of the health
// server. /statusz is on by default: it shows little more than /readyz?verbose, and
// an operator cannot restart a process in trouble to turn it on.
func (a *App) mount() {
	if !a.cfg.StatuszOff {
		a.extra["/statusz"] = statusz.Handler(func() statusz.Forms {
			s := a.Status()
			return statusz.Forms{HTML: s.page, Tree: s.tree, Document: s}
		})
	}
	if a.token != nil {
		maps.Copy(a.extra, statusz.Admin{Log: a.log, Token: a.token, PreStop: a.preStop, Suspend: a.Suspend, Resume: a.Resume, Upgrade: a.upgradeNow}.Handlers())
	}
}

// preStop requests the stop and waits for the end of the drain window or of ctx.
func (a *App) preStop(ctx context.Context) error {
	// The reason is the signal that the kubelet sends after the hook: a Job whose
	// pod is deleted while it works must not count as complete.
	a.requestStop(stopRequest{reason: "the preStop hook was called", signal: &SignalError{syscall.SIGTERM}})
	select {
	case <-a.stop.windowOver.Signaled():
	case <-a.Reached(PhaseStopping): // the App was starting, so there is no window
	case <-a.Reached(PhaseFailed): // the App has started nothing
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// HealthAddr returns the address of the health server. It is nil before the server
// listens and when Config.HealthAddr is off. Use it with port 0.
func (a *App) HealthAddr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.health.server == nil {
		return nil
	}
	return a.health.server.Addr()
}

// startHealth serves the health planes and starts the periodic checks.
func (a *App) startHealth() error {
	if err := a.health.reg.Start(a.unitsCtx); err != nil {
		return err
	}
	if a.cfg.HealthAddr == HealthOff {
		return nil
	}
	a.setWaiting("the health server")
	srv, ended := httpdrain.NewHealthServer(a.cfg.HealthAddr, a.Handler(), a.log, &a.parts.sockets), make(chan struct{})
	ctx, cancel := a.untilStop() // a name server may be slow
	defer cancel()
	if err := srv.Bind(ctx); err != nil {
		return fmt.Errorf("%w: set HealthAddr (health_addr) to another address, or to %q "+
			"for none; each App of a process needs an address of its own", err, HealthOff)
	}
	a.mu.Lock()
	a.health.server, a.health.ended = srv, ended
	a.mu.Unlock()
	a.log.Info("health planes are served", "addr", srv.Addr().String())
	go func() {
		defer close(ended)
		if err := srv.Serve(); err != nil {
			a.fail(err)
		}
	}()
	return nil
}

// closeHealth stops the health server and the periodic checks, as the last step of a
// stop. It waits for a client that still reads and a check that hangs for one second,
// or until end if that is sooner.
func (a *App) closeHealth(end time.Time) {
	if soon := time.Now().Add(time.Second); soon.Before(end) {
		end = soon
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	if a.health.server != nil {
		a.noteAbandoned(a.health.server.Close(ctx))
		<-a.health.ended
	}
	a.noteAbandoned(a.health.reg.Close(ctx))
}

// noteAbandoned records the checks and clients that the stop abandoned at its end. They are
// not a failure, because every step of the stop is done.
func (a *App) noteAbandoned(err error) {
	if err == nil {
		return
	}
	a.log.Warn("abandoned at the end", "error", err)
	a.stop.mu.Lock()
	defer a.stop.mu.Unlock()
	a.stop.abandoned = append(a.stop.abandoned, strings.Split(err.Error(), "\n")...) // a joined error has a line for each
}

// probeReadinessOnce runs the readiness probes once: even when no client has asked /readyz,
// the App then knows whether it was ever ready.
func (a *App) probeReadinessOnce() {
	ctx, cancel := a.untilStop()
	defer cancel()
	a.health.reg.Ready(ctx)
}

// everReady reports whether clients may send requests to the App: readiness has
// passed once, or a client has connected.
func (a *App) everReady() bool {
	for _, s := range a.parts.servers {
		if s.Stats().Accepted > 0 {
			return true
		}
	}
	select {
	case <-a.health.reg.FirstReady():
		return true
	default:
		return false
	}
}
