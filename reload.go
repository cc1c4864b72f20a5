package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// reloads holds the reloads of an App, which run one at a time, and their results.
type reloads struct {
	turn   chan struct{}   // holds a token while a reload runs
	asked  fsm.Wake        // a SIGHUP requested a reload
	ctx    context.Context // ends with the drain window; set by Run before anything that reads it
	cancel context.CancelFunc

	longestStop time.Duration // PreStop and the budget of the start

	resources Resources // what the functions of OnResize know; guarded by the turn

	mu     sync.Mutex // guards the fields below
	last   []Outcome  // at most keptReloads
	counts map[string]map[Result]uint64
}

// keptReloads bounds the outcomes in [Report.Reloads]: a process may live for a
// year and reload once a minute.
const keptReloads = 32

// ErrReloadRefused is returned by [App.Reload] and [App.Reconfigure] when the App is
// not running: it has not started yet, or it already drains.
var ErrReloadRefused = errors.New("lifecycle: reload refused: the App is not running")

// reloader is a function of OnReload.
type reloader struct {
	namedFunc
	hung  *call.Call // the last call, when it was abandoned; guarded by the turn
	since time.Time  // when that call began
}

// OnReload registers fn to be called on SIGHUP and on [App.Reload]. Once a function is
// registered, the App handles SIGHUP, unless the process was started with SIGHUP
// ignored (nohup). Otherwise SIGHUP keeps its default effect.
//
// Reloads run one at a time. A reload calls the functions in the order of
// registration. A function that fails should have changed nothing: the App logs the
// failure, reports it, and calls the next function. A SIGHUP before the App is running
// takes effect when it is. Any number of SIGHUPs during a reload cause one more. No
// reload starts once the App drains.
//
// The context of fn ends after ReloadTimeout, and with the drain window. The App
// abandons a function that ignores that for 100 ms, and does not call it again before it has
// returned: the log and the report then say that a reload skipped it.
func (a *App) OnReload(name string, fn func(context.Context) error) *App {
	a.parts.add("reload", name, missing("OnReload", argument{"function", fn == nil}), func() {
		a.parts.reloads = append(a.parts.reloads, &reloader{namedFunc: namedFunc{name, fn}})
	})
	return a
}

// Reload calls the functions of [App.OnReload] with these names, or all of them when no name
// is given, in the order of registration, and returns their errors, joined. It returns an error
// for a name without a function. It waits while another reload runs; when ctx ends first, it
// returns the cause of ctx. It returns [ErrReloadRefused] when the App is not running. When a
// drain begins before it has called every function, it joins [ErrReloadRefused] to the other
// errors. A reload function must not call Reload.
func (a *App) Reload(ctx context.Context, names ...string) error {
	return a.inTurn(ctx, func() error {
		list, err := a.reloadersNamed(names)
		if err != nil {
			return err
		}
		a.notifier.Load().Reloading()
		defer func() { a.notifier.Load().Ready(string(PhaseRunning)) }()
		return a.runReloads(list)
	})
}

func (a *App) reloadersNamed(names []string) ([]*reloader, error) {
	if len(names) == 0 {
		return a.parts.reloads, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(a.parts.reloads, func(r *reloader) bool { return r.name == name }) {
			return nil, fmt.Errorf("lifecycle: no function of OnReload has the name %q", name)
		}
	}
	var list []*reloader
	for _, r := range a.parts.reloads {
		if slices.Contains(names, r.name) {
			list = append(list, r)
		}
	}
	return list, nil
}

// inTurn calls fn while no reload runs and the App is running.
func (a *App) inTurn(ctx context.Context, fn func() error) error {
	select {
	case a.reloads.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for another reload: %w", context.Cause(ctx))
	case <-a.Draining():
		return ErrReloadRefused
	}
	defer func() { <-a.reloads.turn }()
	if a.Phase() != PhaseRunning || a.isStopping() {
		return ErrReloadRefused
	}
	return fn()
}

// runReloads calls the functions one after the other. The caller has the turn.
func (a *App) runReloads(list []*reloader) error {
	var errs []error
	for i, r := range list {
		if i > 0 && a.isStopping() {
			errs = append(errs, fmt.Errorf("reload %s: %w", r.name, ErrReloadRefused))
			break
		}
		out := r.run(a.reloads.ctx, a.Config().ReloadTimeout, &a.events)
		if out.err != nil {
			a.log.Error("reload failed, the old state stays", call.Logged(out.err, "reload", r.name, "took", out.Took, "error", call.Unnamed(r.name, out.err))...)
			errs = append(errs, call.About("reload", r.name, out.err))
		} else {
			a.log.Info("reloaded", "reload", r.name, "took", out.Took)
		}
		if out.Result == ResultAbandoned {
			a.saveBox("reload " + r.name + " was abandoned")
		}
		a.reloads.note(out)
	}
	return errors.Join(errs...)
}

// run calls the function, or skips it while an abandoned call of it still runs.
func (r *reloader) run(ctx context.Context, timeout time.Duration, events *fsm.Dispatcher) Outcome {
	if r.hung != nil {
		if ended, _ := r.hung.Ended(); !ended {
			err := fmt.Errorf("it has not returned since the reload of %s", r.since.Format(time.TimeOnly))
			_ = fsm.MustNew(KindReload, r.name, steps, resultPending, events).To(ResultSkipped, err) // allowed
			return Outcome{Name: r.name, Result: ResultSkipped, Error: err.Error(), err: err}
		}
		r.hung = nil
	}
	if timeout == Off {
		timeout = longest
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	life, began := step(KindReload, r.name, events), time.Now()
	running := call.StartAs(ctx, KindReload, r.name, func() error { return r.fn(ctx) })
	out := outcome(r.name, began, running.Wait(ctx.Done(), settle))
	_ = life.To(out.Result, out.err)
	if out.Result == ResultAbandoned {
		r.hung, r.since = running, began
	}
	return out
}

// note counts a reload that has ended, and keeps the last outcomes.
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

// describe adds the last reloads, and the number of reloads by name and result.
func (r *reloads) describe(rep *Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep.Reloads, rep.ReloadCounts = slices.Clone(r.last), maps.Clone(r.counts)
	for name, counts := range rep.ReloadCounts {
		rep.ReloadCounts[name] = maps.Clone(counts)
	}
}

// endReloads cancels a reload that still runs at the window's end, waits for it, and
// lets no further one begin. The wait is short, because a function that ignores its
// context is abandoned.
func (a *App) endReloads() {
	a.reloads.cancel()
	a.reloads.turn <- struct{}{} // and never given back
}

// serveReloads runs the reloads that SIGHUP requests, until the drain.
func (a *App) serveReloads() {
	for {
		select {
		case <-a.Draining():
			return
		case <-a.reloads.asked:
			_ = a.Reload(a.reloads.ctx) // Reload logs and reports its errors
		}
	}
}

// Reconfigure changes the Config of a running App to cfg: only the fields with the
// tag reload:"live", which include the times of a stop. All of them change or, on
// error, none. changed names the fields that have changed. kept names the fields that
// differ and keep their value until the process starts again. PreStop and the graces
// are among these, because they belong to the pod, and Kubernetes cannot change them
// in a running pod.
//
// It returns the error of [Config.Validate], for cfg and for the Config that the App
// would then have, or [ErrReloadRefused] when the App is not running. A stop may not
// take longer than the graces that the App was made with. When it was made with none,
// in a Kubernetes pod, a stop may not take longer than it took by the Config of [New].
// A stop that has begun keeps its times.
func (a *App) Reconfigure(cfg Config) (changed, kept []string, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	if cfg.Name == "" {
		cfg.Name = a.cfg.Name // the name never changes
	}
	cfg = cfg.WithDefaults()
	if a.tokenDiffers(string(cfg.AdminToken)) {
		kept = []string{"AdminToken"}
	}
	cfg.AdminToken = "" // as New does
	if a.phases.State() != PhaseRunning {
		return nil, nil, ErrReloadRefused
	}
	// Under the lock of the stop, so that the next stop reads all the new times.
	if !a.stop.unlessRequested(func() { changed, kept, err = a.applyLocked(cfg, kept) }) {
		return nil, nil, ErrReloadRefused
	}
	return changed, kept, err
}

// applyLocked does the work of Reconfigure. The caller holds the lock of a stop that was
// not requested.
func (a *App) applyLocked(cfg Config, kept []string) (_, _ []string, err error) {
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
	slice, err := minSlice(times, a.hooks.len())
	bounds, why := next, "with what stays while the process runs, such as the grace of its pod"
	if next.TerminationGrace <= 0 && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		bounds.TerminationGrace, why = a.reloads.longestStop, "TerminationGrace was not declared at the start, so a stop may not take longer than it took then"
	}
	if err := errors.Join(bounds.Validate(), err); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", why, err)
	}
	// A goroutine that reads these fields after T0 has seen the request, which needs
	// the lock of the stop. Other goroutines read the remaining fields at any time
	// without a lock, so this loop does not write those, not even with the same value.
	for _, name := range changed {
		reflect.ValueOf(&a.cfg).Elem().FieldByName(name).Set(to.FieldByName(name))
	}
	a.budget, a.hooks.minSlice = times, slice
	for _, s := range a.parts.servers {
		s.Configure(times.Goodbye())
	}
	return changed, kept, nil
}

// tokenDiffers reports whether the admin token of a Config differs from the App's token. A Config
// without a token, as [App.Config] returns it, does not differ.
func (a *App) tokenDiffers(given string) bool {
	if given == "" {
		return false
	}
	if a.token == nil || a.cfg.AdminTokenFile != "" {
		return true
	}
	token, err := a.token()
	return err != nil || token != given
}
