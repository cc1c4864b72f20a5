package lifecycle

import (
	"context"
	"net"
	"strings"
	"time"
)

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
	a.stop.mu.Lock()
	defer a.stop.mu.Unlock()
	a.stop.abandoned = append(a.stop.abandoned, strings.Split(err.Error(), "\n")...) // of joined errors, each
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
	for _, s := range a.parts.servers {
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
