package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
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

	mu     sync.Mutex // guards the fields below
	last   []Outcome  // at most keptReloads
	counts map[string]map[Result]uint64
}

// keptReloads bounds the outcomes in [Report.Reloads]: a process may live for a
// year and reload once a minute.
const keptReloads = 32

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
	if len(r.last) == keptReloads {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, out)
	if r.counts[out.Name] == nil {
		if r.counts == nil {
			r.counts = make(map[string]map[Result]uint64)
		}
		r.counts[out.Name] = make(map[Result]uint64)
	}
	r.counts[out.Name][out.Result]++
}

// describe adds the last reloads, and how often each ended in each way.
func (r *reloads) describe(rep *Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep.Reloads, rep.ReloadCounts = slices.Clone(r.last), maps.Clone(r.counts)
	for name, counts := range rep.ReloadCounts {
		rep.ReloadCounts[name] = maps.Clone(counts)
	}
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

// Reconfigure changes a running App to cfg: those fields that have the tag
// reload:"live", which hold the times of a drain and a shutdown. All of them
// change or, on error, none. It returns the names of the fields that have changed,
// and of the fields that differ and stay as they are until the process is started
// again.
//
// The error is that of [Config.Validate], for cfg and for the Config that the App
// would have then, or [ErrReloadRefused] when the App is not running: a stop that
// has begun keeps its times.
func (a *App) Reconfigure(cfg Config) (changed, kept []string, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	if cfg.Name == "" {
		cfg.Name = a.cfg.Name // which never changes
	}
	cfg = cfg.WithDefaults()
	kept = a.otherToken(&cfg)
	if a.phases.State() != PhaseRunning {
		return nil, nil, ErrReloadRefused
	}
	// Under the lock of the stop: the stop that begins next reads these times.
	if !a.stop.unlessBegun(func() { changed, kept, err = a.takeOver(cfg, kept) }) {
		return nil, nil, ErrReloadRefused
	}
	return changed, kept, err
}

// takeOver is Reconfigure once it is sure that no stop has begun.
func (a *App) takeOver(cfg Config, kept []string) (_, _ []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var changed []string
	next := a.cfg
	from, to := reflect.ValueOf(cfg), reflect.ValueOf(&next).Elem()
	for i := range from.NumField() {
		if from.Field(i).Equal(to.Field(i)) {
			continue
		}
		field := from.Type().Field(i)
		if field.Tag.Get("reload") != "live" {
			kept = append(kept, field.Name)
			continue
		}
		to.Field(i).Set(from.Field(i))
		changed = append(changed, field.Name)
	}
	times := newBudget(next)
	slice, err := times.minSliceFor(a.hooks.len())
	if err := errors.Join(next.Validate(), err); err != nil {
		return nil, nil, fmt.Errorf("together with what stays as it is: %w", err)
	}
	// A goroutine that reads these from T0 on has seen the request, which needs the
	// lock of the stop. The other fields are read without a lock at any time, and so
	// are not written, not even with the same value.
	for _, name := range changed {
		reflect.ValueOf(&a.cfg).Elem().FieldByName(name).Set(to.FieldByName(name))
	}
	a.budget, a.hooks.minSlice = times, slice
	for _, s := range a.parts.servers {
		s.Configure(drainConfig(times))
	}
	return changed, kept, nil
}

// otherToken takes the admin token out of cfg, as New does, and names its field
// when it is another than the App's. A Config without one, as [App.Config]
// returns it, has no opinion.
func (a *App) otherToken(cfg *Config) (kept []string) {
	given := string(cfg.AdminToken)
	cfg.AdminToken = ""
	if given == "" {
		return nil
	}
	if a.token != nil && a.cfg.AdminTokenFile == "" {
		if token, err := a.token(); err == nil && token == given {
			return nil
		}
	}
	return []string{"AdminToken"}
}
