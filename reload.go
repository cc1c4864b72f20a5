package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrReloadRefused is returned by [App.Reload] when the App is not running: it
// has not started yet, or it drains already.
var ErrReloadRefused = errors.New("reload refused: the app is not running")

// OnReload registers fn to be called on SIGHUP and on [App.Reload]. With at
// least one, SIGHUP is caught, unless the process was started with it ignored
// (nohup); without, it keeps its default effect.
//
// Reloads run one at a time, the functions in the order of registration. One
// that fails should have changed nothing: the failure is logged and in the
// report, the App goes on, and the functions behind it still run. None starts
// once the App drains; the context of one that runs ends with the window.
func (a *App) OnReload(name string, fn func(context.Context) error) *App {
	if !a.register("reload", name, fn == nil) {
		return a
	}
	a.reloads = append(a.reloads, hook{name, fn})
	return a
}

// Reload calls what [App.OnReload] registered and returns when that is done,
// with the joined errors. It waits while another reload runs, at most until ctx
// ends. It returns [ErrReloadRefused] when the App is not running.
func (a *App) Reload(ctx context.Context) error {
	select {
	case a.reloading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-a.draining:
		return ErrReloadRefused
	}
	defer func() { <-a.reloading }()
	if a.Phase() != PhaseRunning || a.isDraining() {
		return ErrReloadRefused
	}
	defer a.notifier.Load().reloading()()
	var errs []error
	for _, r := range a.reloads {
		began := time.Now()
		out := await(r.name, began, a.reloadCtx.Done(), func() error { return r.fn(a.reloadCtx) })
		if out.err != nil {
			a.log.Error("reload failed, the old state stays", "reload", r.name, "took", out.Took, "error", out.err)
			errs = append(errs, fmt.Errorf("reload %s: %w", r.name, out.err))
		} else {
			a.log.Info("reloaded", "reload", r.name, "took", out.Took)
		}
		a.mu.Lock()
		a.reloaded = append(a.reloaded, out)
		a.mu.Unlock()
	}
	return errors.Join(errs...)
}

// requestReload asks for a reload and returns at once. Requests that come while
// one waits already are that one.
func (a *App) requestReload() {
	select {
	case a.reloadAsked <- struct{}{}:
	default:
	}
}

// serveReloads runs what requestReload asked for, until the drain.
func (a *App) serveReloads() {
	for {
		select {
		case <-a.draining:
			return
		case <-a.reloadAsked:
			_ = a.Reload(a.reloadCtx) // logged and reported there
		}
	}
}
