package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
	"github.com/pleme-io/lifecycle-go/internal/safe"
	"github.com/pleme-io/lifecycle-go/worker"
	"golang.org/x/sync/errgroup"
)

// start brings everything up, in order: the health server, so that the kubelet
// is answered from the beginning; the listeners, so that an address in use
// shows before any work is begun; the units. It reports false when something
// failed or somebody asked for a stop meanwhile.
func (a *App) start(group *errgroup.Group) bool {
	if a.isStopping() {
		a.enter(PhaseStarting, nil)
		return false
	}
	a.enter(PhaseStarting, nil)
	cgroup.LimitMemory(a.log, os.DirFS("/"), a.cfg.MemoryLimitRatio)
	a.reg.setGate(StateUnknown, "starting")
	err := a.startHealth()
	for i := 0; err == nil && i < len(a.servers) && !a.isStopping(); i++ {
		err = a.bind(a.servers[i])
	}
	for i := 0; err == nil && i < len(a.units) && !a.isStopping(); i++ {
		err = a.launch(a.units[i], group)
	}
	for i := 0; err == nil && i < len(a.units) && !a.isStopping(); i++ {
		a.awaitStarted(a.units[i])
	}
	if err != nil {
		err = fmt.Errorf("start: %w", err)
		if a.isStopping() && errors.Is(err, context.Canceled) {
			return false // that is what the stop does to whoever was looking up a name
		}
		a.fail(err)
		<-a.stopping // somebody else may have been first, and not be through yet
	}
	return !a.isStopping()
}

func (a *App) isStopping() bool {
	select {
	case <-a.stopping:
		return true
	default:
		return false
	}
}

func (a *App) bind(s *server) error {
	a.nowDoing("listener " + s.Name())
	ctx, cancel := a.untilStop()
	defer cancel()
	if err := s.Bind(ctx); err != nil {
		return err
	}
	a.log.Info("listening", "server", s.Name(), "addr", s.drainingServer.Addr().String())
	return nil
}

// startHealth serves the health planes and starts the periodic checks.
func (a *App) startHealth() error {
	if err := a.reg.Start(a.unitsCtx); err != nil {
		return err
	}
	if a.cfg.HealthAddr == HealthOff {
		return nil
	}
	a.nowDoing("the health server")
	h := newHealthServer(a.cfg.HealthAddr, a.reg.Handler(), a.extra, a.log)
	ctx, cancel := a.untilStop() // a name server may take its time
	defer cancel()
	if err := h.bind(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	a.health, a.healthEnded = h, make(chan struct{})
	a.mu.Unlock()
	a.log.Info("health planes are served", "addr", h.addr().String())
	go func() {
		defer close(a.healthEnded)
		if err := h.serve(); err != nil {
			a.fail(err)
		}
	}()
	return nil
}

// closeHealth ends the health server and the periodic checks, as the last of
// all, by end.
func (a *App) closeHealth(end time.Time) {
	// Whoever still reads from it, and a check that hangs, is not worth the rest
	// of the grace.
	if soon := time.Now().Add(time.Second); soon.Before(end) {
		end = soon
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	if a.health != nil {
		a.leave(a.health.close(ctx))
		<-a.healthEnded
	}
	a.leave(a.reg.Close(ctx))
}

// leave notes what the end does not wait for. The stop has not failed for that:
// nobody has asked for anything that was not done.
func (a *App) leave(err error) {
	if err == nil {
		return
	}
	a.log.Warn("left behind at the end", "error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = append(a.left, strings.Split(err.Error(), "\n")...) // of joined errors, each
}

// HealthAddr returns the address on which the health planes are served, nil
// before they are and when they are off. It is for a port 0.
func (a *App) HealthAddr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.health == nil {
		return nil
	}
	return a.health.addr()
}

// lookOnce runs the readiness probes, so that it is known at T0 whether the App
// was ever ready, also when nobody has asked.
func (a *App) lookOnce() {
	ctx, cancel := a.untilStop()
	defer cancel()
	a.reg.ready(ctx)
}

// everReady reports whether anybody may count on the App: readiness was found up
// once, or somebody has connected, whatever the probes say.
func (a *App) everReady() bool {
	for _, s := range a.servers {
		if s.Stats().Accepted > 0 {
			return true
		}
	}
	select {
	case <-a.reg.firstReady:
		return true
	default:
		return false
	}
}

// fail stops the App with err, which is told even when it is stopping already.
func (a *App) fail(err error) {
	if !a.requestStop(stopRequest{reason: err.Error(), cause: err, err: err}) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.further = append(a.further, err)
	}
}

// untilStop returns a context that ends when somebody asks for a stop.
func (a *App) untilStop() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a.unitsCtx)
	go func() {
		select {
		case <-a.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// launch starts one unit. A Start that hangs does not keep a stop from coming
// through: the teardown finds the unit as it finds all others.
func (a *App) launch(u *unit, group *errgroup.Group) error {
	a.nowDoing("start of unit " + u.name)
	u.mu.Lock()
	u.began = time.Now()
	u.mu.Unlock()
	u.launched.Store(true)
	if u.isFunction() {
		if err := u.Start(a.unitsCtx); err != nil { // ours, and returns at once
			return u.finish(err)
		}
	} else {
		u.begun = make(chan struct{})
		result := make(chan error, 1) // the one send finds room, whether or not anybody still waits
		safe.Go(u.name, func() error { return u.Start(a.unitsCtx) }, nil, func(err error) {
			if err != nil {
				err = u.finish(err) // here, because it may come beside a stop, or long after
			}
			result <- err
			close(u.begun)
		})
		select {
		case err := <-result:
			if err != nil {
				return err
			}
		case <-a.stopping:
		}
	}
	group.Go(func() error {
		a.watch(u)
		return nil
	})
	return nil
}

// awaitStarted waits until the unit has met its start condition, or has ended,
// or a stop is asked for.
func (a *App) awaitStarted(u *unit) {
	begun := func(s worker.Status) bool {
		return s != worker.StatusCreated && s != worker.StatusPending && s != worker.StatusStarting
	}
	waiting := "unit " + u.name + " to start"
	a.nowDoing(waiting)
	defer func() {
		s := u.state().Status
		if s == worker.StatusFailed || s == worker.StatusKilled || u.endsApp && s.Terminal() {
			<-a.stopping // its watch is about to ask for that
		}
	}()
	if begun(u.state().Status) {
		return
	}
	a.reg.setGate(StateUnknown, "starting: waiting for "+waiting)
	ctx, cancel := a.untilStop()
	defer cancel()
	if w, ok := u.Worker.(interface {
		Await(context.Context, func(worker.Status) bool) (worker.Status, error)
	}); ok {
		a.awaitBegun(ctx, u, func() error {
			_, err := w.Await(ctx, begun)
			return err
		})
		return
	}
	// A worker that keeps its own account can only be asked.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !begun(u.state().Status) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// awaitBegun calls the Await of a worker, which may be anybody's: one that does
// not mind its context does not keep a stop out, and one that panics is a start
// that failed.
func (a *App) awaitBegun(ctx context.Context, u *unit, await func() error) {
	if u.isFunction() {
		_ = await() // an error says that a stop was asked for
		return
	}
	result := make(chan error, 1) // the one send finds room, whether or not anybody still waits
	safe.Go(u.name+": Await", await, nil, func(err error) { result <- err })
	select {
	case err := <-result:
		var panicked *PanicError
		if errors.As(err, &panicked) {
			a.fail(about("unit", u.name, err))
			<-a.stopping // somebody else may have been first, and not be through yet
		}
	case <-ctx.Done():
	}
}

// watch waits for the end of a unit and says what it means.
func (a *App) watch(u *unit) {
	done, err := u.awaitDone()
	select {
	case <-done:
	case <-u.over: // it was given up
		return
	}
	if u.begun != nil {
		late := time.NewTimer(settle) // a Start that fails beside a stop may be about to say so
		select {
		case <-u.begun:
		case <-late.C:
		}
		late.Stop()
	}
	status := u.state().Status
	failed := err != nil || status == worker.StatusFailed || status == worker.StatusKilled
	if !failed {
		_ = u.finish(nil)
		a.log.Info("unit ended", "unit", u.name, "status", string(status))
		if u.endsApp {
			a.requestStop(stopRequest{reason: "actor " + u.name + " returned"})
		}
		return
	}
	if err == nil {
		err = u.lastErr()
	}
	named := u.finish(err)
	a.log.Error("unit failed", "unit", u.name, "status", string(status), "error", unnamed(u.name, err))
	a.requestStop(stopRequest{reason: named.Error(), cause: named, err: named})
}

// retireServers takes every server out of service, all at once.
func (a *App) retireServers(base context.Context, end time.Time, hurried bool) {
	if len(a.servers) == 0 {
		return
	}
	a.nowDoing("requests in flight")
	ctx, cancel := context.WithDeadline(base, end)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range a.servers {
		wg.Go(func() {
			began := time.Now()
			// Its listener, or what is behind a gRPC server's shape, may hang or
			// panic: that must not cost the units and hooks their time.
			var cutNow atomic.Int64
			out := awaitFor(s.Name()+": shutdown", began, ctx.Done(), serverPatience(a.cfg)+settle, func() error {
				// With DrainReadiness serving it is ready until here, and no longer.
				cut, err := s.retire(ctx, hurried, func() { a.reg.setDraining(true) })
				cutNow.Store(int64(cut))
				return err
			})
			cut, err := int(cutNow.Load()), out.err
			if out.Result == ResultAbandoned && cut == 0 {
				cut = int(s.Stats().InFlight)
			}
			if err != nil {
				a.log.Error("server retired with an error", "server", s.Name(), "took", time.Since(began), "cut", cut, "error", err)
			} else {
				a.log.Info("server retired", "server", s.Name(), "took", time.Since(began))
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.cut += cut
			if err != nil {
				a.further = append(a.further, err)
			}
		})
	}
	wg.Wait()
}

// stopUnits cancels the units' context and waits until each unit has returned,
// until end. What has not is abandoned.
func (a *App) stopUnits(base context.Context, end time.Time) {
	a.cancelled.Store(true) // those that have not ended are what is waited for
	a.nowDoing("")
	cause := a.request.cause
	if cause == nil {
		cause = ErrStopRequested
	}
	for _, u := range a.units {
		if f, ok := u.Worker.(interface{ RequestStop(error) bool }); ok && u.launched.Load() && u.isFunction() {
			f.RequestStop(cause) // what its context would tell it, in a goroutine each
		}
	}
	a.cancelUnits(cause)
	ctx, cancel := context.WithDeadline(base, end)
	defer cancel()
	var wg sync.WaitGroup
	for _, u := range a.units {
		if u.launched.Load() && !u.isFunction() {
			wg.Go(func() {
				a.stopUnit(ctx, u)
				a.terminationLog() // names those that are left
			})
		}
	}
	// For functions the context is all that a stop is. Only those that have not
	// minded it are stopped, in goroutines of their own like all others.
	// Those behind one that is stuck end meanwhile, and the last words are to
	// name the one.
	look := time.NewTicker(settle)
	defer look.Stop()
	for _, u := range a.units {
		if !u.launched.Load() || !u.isFunction() || u.ended.Load() {
			continue
		}
		a.terminationLog() // without those that have ended by now
		for waiting := true; waiting; {
			select {
			case <-u.over:
				waiting = false
			case <-ctx.Done():
				waiting = false
				wg.Go(func() { a.stopUnit(ctx, u) })
			case <-look.C:
				a.terminationLog()
			}
		}
	}
	wg.Wait()
}

func (a *App) stopUnit(ctx context.Context, u *unit) {
	// A worker bounds its own Stop; twice the time that it gets for that is
	// for one that does not keep its contract.
	out := awaitFor(u.name+": Stop", time.Now(), ctx.Done(), 3*settle, func() error { return u.Stop(ctx) })
	if err := u.hasEnded(ctx); err != nil {
		if out.err != nil {
			err = out.err
		}
		_ = u.finish(err)
		return
	}
	<-u.over // its watch has seen it
	if out.err == nil {
		return
	}
	u.mu.Lock()
	err := u.err
	u.mu.Unlock() // before the App's lock: a report takes them the other way round
	if !errors.Is(err, out.err) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.further = append(a.further, about("unit", u.name, out.err))
	}
}
