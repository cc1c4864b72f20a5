package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
// report, the App goes on, and the functions behind it still run. A SIGHUP
// before the App is running reloads as soon as it is; one or many that come
// while a reload runs make one more. None starts once the App drains; the
// context of one that runs ends with the window, and one that ignores that is
// abandoned.
func (a *App) OnReload(name string, fn func(context.Context) error) *App {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.registerLocked("reload", name, fn == nil) {
		a.reloads = append(a.reloads, hook{name, fn})
	}
	return a
}

// Reload calls what [App.OnReload] registered and returns when that is done,
// with the joined errors. It waits while another reload runs, at most until ctx
// ends, whose cause it returns then. It returns [ErrReloadRefused] when the App
// is not running, and joined with the other errors when a drain began before
// every function was called. A reload function must not call it.
func (a *App) Reload(ctx context.Context) error {
	select {
	case a.reloading <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for another reload: %w", context.Cause(ctx))
	case <-a.draining:
		return ErrReloadRefused
	}
	defer func() { <-a.reloading }()
	if a.Phase() != PhaseRunning || a.isDraining() {
		return ErrReloadRefused
	}
	a.notifier.Load().Reloading()
	defer func() { a.notifier.Load().Ready(string(PhaseRunning)) }()
	var errs []error
	for i, r := range a.reloads {
		if i > 0 && a.isDraining() {
			errs = append(errs, fmt.Errorf("reload %s: %w", r.name, ErrReloadRefused))
			break
		}
		began := time.Now()
		life := step(KindReload, r.name, &a.events)
		out := await(r.name, began, a.reloadCtx.Done(), func() error { return r.fn(a.reloadCtx) })
		_ = life.To(out.Result, out.err)
		if out.err != nil {
			a.log.Error("reload failed, the old state stays", "reload", r.name, "took", out.Took, "error", unnamed(r.name, out.err))
			errs = append(errs, about("reload", r.name, out.err))
		} else {
			a.log.Info("reloaded", "reload", r.name, "took", out.Took)
		}
		a.noteReload(out)
	}
	return errors.Join(errs...)
}

// noteReload counts a reload that has ended, and keeps its outcome for a while.
func (a *App) noteReload(out Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.reloaded) == KeptReloads {
		a.reloaded = slices.Delete(a.reloaded, 0, 1)
	}
	a.reloaded = append(a.reloaded, out)
	at := slices.IndexFunc(a.reloadsN, func(c ReloadCount) bool { return c.Name == out.Name && c.Result == out.Result })
	if at < 0 {
		at = len(a.reloadsN)
		a.reloadsN = append(a.reloadsN, ReloadCount{Name: out.Name, Result: out.Result})
	}
	a.reloadsN[at].Count++
}

// requestReload asks for a reload and returns at once. Requests that come while
// one waits already are that one.
func (a *App) requestReload() {
	select {
	case a.reloadAsked <- struct{}{}:
	default:
	}
}

// endReloads cancels what still reloads at the window's end, waits for it, and
// lets none begin any more. What ignores it is abandoned, so this is short.
func (a *App) endReloads() {
	a.cancelReload()
	a.reloading <- struct{}{} // and kept
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
