package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// reloads is what an App knows about its reloads, which run one at a time.
type reloads struct {
	turn   chan struct{}   // holds a token while a reload runs
	asked  fsm.Wake        // a reload is asked for
	ctx    context.Context // ends with the drain window; set by Run before anything that reads it
	cancel context.CancelFunc

	mu     sync.Mutex    // guards the fields below
	last   []Outcome     // the last ones
	counts []ReloadCount // of all
}

// under makes the context of the reloads a child of parent and returns what ends
// it.
func (r *reloads) under(parent context.Context) (end func()) {
	r.ctx, r.cancel = context.WithCancel(parent)
	return r.cancel
}

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
	a.parts.add("reload", name, fn == nil, func() { a.parts.reloads = append(a.parts.reloads, hook{name, fn}) })
	return a
}

// Reload calls what [App.OnReload] registered and returns when that is done,
// with the joined errors. It waits while another reload runs, at most until ctx
// ends, whose cause it returns then. It returns [ErrReloadRefused] when the App
// is not running, and joined with the other errors when a drain began before
// every function was called. A reload function must not call it.
func (a *App) Reload(ctx context.Context) error {
	select {
	case a.reloads.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for another reload: %w", context.Cause(ctx))
	case <-a.Draining():
		return ErrReloadRefused
	}
	defer func() { <-a.reloads.turn }()
	if a.Phase() != PhaseRunning || a.stop.draining.HasSignaled() {
		return ErrReloadRefused
	}
	a.notifier.Load().Reloading()
	defer func() { a.notifier.Load().Ready(string(PhaseRunning)) }()
	var errs []error
	for i, r := range a.parts.reloads {
		if i > 0 && a.stop.draining.HasSignaled() {
			errs = append(errs, fmt.Errorf("reload %s: %w", r.name, ErrReloadRefused))
			break
		}
		life := step(KindReload, r.name, &a.events)
		out := timed(r.name, a.reloads.ctx.Done(), settle, func() error { return r.fn(a.reloads.ctx) })
		_ = life.To(out.Result, out.err)
		if out.err != nil {
			a.log.Error("reload failed, the old state stays", "reload", r.name, "took", out.Took, "error", unnamed(r.name, out.err))
			errs = append(errs, about("reload", r.name, out.err))
		} else {
			a.log.Info("reloaded", "reload", r.name, "took", out.Took)
		}
		a.reloads.note(out)
	}
	return errors.Join(errs...)
}

// note counts a reload that has ended, and keeps its outcome for a while.
func (r *reloads) note(out Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) == KeptReloads {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, out)
	at := slices.IndexFunc(r.counts, func(c ReloadCount) bool { return c.Name == out.Name && c.Result == out.Result })
	if at < 0 {
		at = len(r.counts)
		r.counts = append(r.counts, ReloadCount{Name: out.Name, Result: out.Result})
	}
	r.counts[at].Count++
}

// outcomes returns the last reloads, and how often each ended in each way.
func (r *reloads) outcomes() ([]Outcome, []ReloadCount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.last), slices.Clone(r.counts)
}

// endReloads cancels a reload that still runs at the window's end, waits for it,
// and lets none begin any more. A function that ignores its context is abandoned,
// so this is short.
func (a *App) endReloads() {
	a.reloads.cancel()
	a.reloads.turn <- struct{}{} // and kept
}

// serveReloads runs the reloads that a SIGHUP asked for, until the drain.
func (a *App) serveReloads() {
	for {
		select {
		case <-a.Draining():
			return
		case <-a.reloads.asked:
			_ = a.Reload(a.reloads.ctx) // logged and reported there
		}
	}
}
