package procpool

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Reloaded says what [Pool.Reload] has replaced.
type Reloaded struct {
	Workers int // that were replaced
	// Keys are those whose worker was replaced, sorted: a session of a [Key] that the
	// worker had in memory has ended.
	Keys []string
}

// program is what workers run. Two programs may have the same command: each reload makes one.
type program struct{ command func() *exec.Cmd }

// reload is a reload in progress. The pool's lock guards it. Workers of another program than to
// are due: they get successors, until none is left.
type reload struct {
	to     *program
	from   *program // what it goes back to, nil when the command is not new
	proved bool     // a worker of to is ready
	why    error    // why it goes back, nil while it does not
	result Reloaded
	done   fsm.Signal // result and why are final
}

// decided reports whether it is known which program all workers will run.
func (r *reload) decided() bool { return r.proved || r.why != nil }

// replaces reports whether a reload is to replace the worker.
func (r *reload) replaces(w *proc) bool { return r != nil && !w.alone && w.program != r.to }

// makes reports whether the worker is one of the new ones.
func (r *reload) makes(w *proc) bool { return !w.alone && w.program == r.to }

// Reload replaces all workers by new ones, one after the other, without a failed or
// delayed query: each new worker is ready and has answered a health check before an
// old one ends, and an old one finishes its query. command makes the commands of
// the new workers and of all later ones; nil keeps the pool's, for example when the
// program behind it has changed. Config.Surge says how many workers there may be
// beyond MaxWorkers meanwhile, at least 1.
//
// When a new worker does not become ready, the pool goes back by itself: it keeps the
// old workers, replaces workers that run the new command by workers that run the old one,
// and Reload returns the reason. When the command is not new, new workers that are ready
// stay.
//
// Reload returns once the last old worker has ended. When ctx ends first, Reload
// returns its cause: the pool goes back when no new worker is ready yet, and goes on
// otherwise. It returns an error that is [ErrReloading] while another reload runs, and
// one that is [ErrDraining] when the pool stops or does not run.
func (p *Pool) Reload(ctx context.Context, command func() *exec.Cmd) (Reloaded, error) {
	r, err := p.beginReload(command)
	if err != nil {
		return Reloaded{}, fmt.Errorf("reload %s: %w", p.Name(), err)
	}
	select {
	case <-r.done.Signaled():
		if r.why != nil {
			return r.result, fmt.Errorf("reload %s: %w", p.Name(), r.why)
		}
		return r.result, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err = fmt.Errorf("reload %s: %w", p.Name(), context.Cause(ctx))
	if p.reloading == r && !r.proved {
		p.goBackLocked(r, err)
	}
	return Reloaded{Workers: r.result.Workers, Keys: slices.Clone(r.result.Keys)}, err
}

func (p *Pool) beginReload(command func() *exec.Cmd) (*reload, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.draining.Load() || p.ending || !p.running.Load():
		return nil, ErrDraining
	case p.reloading != nil:
		return nil, ErrReloading
	}
	r := &reload{from: p.program, to: &program{command}}
	if command == nil {
		r.to.command, r.from = p.program.command, nil
	}
	p.reloading = r
	p.ensureLocked()
	return r, nil
}

// stepReloadLocked ends the reload when no worker is left that it has to replace. It starts a
// new one when there is none to replace. ensureSuccessorsLocked starts all others.
func (p *Pool) stepReloadLocked() {
	r := p.reloading
	switch {
	case r == nil:
	case r.decided():
		if !slices.ContainsFunc(p.workers, r.replaces) {
			p.endReloadLocked(r, r.why)
		}
	case !slices.ContainsFunc(p.workers, func(w *proc) bool { return r.makes(w) || r.replaces(w) && p.isToBeReplaced(w) }):
		p.spawnLocked(spawn{program: r.to})
	}
}

// provedLocked takes note of a worker that has become ready and has passed its trial.
func (r *reload) provedLocked(p *Pool, w *proc) {
	if r == nil || w.program != r.to {
		return
	}
	r.proved = true
	p.program = r.to
}

// failedLocked takes note of a worker that has ended before it was ready. It returns
// false when the worker is none of the reload's.
func (r *reload) failedLocked(p *Pool, w *proc, why error) bool {
	if r == nil || w.program != r.to || r.why != nil {
		return false
	}
	p.goBackLocked(r, fmt.Errorf("the new workers do not become ready, and the old ones stay: %w", why))
	return true
}

// goBackLocked keeps the workers that were not replaced. When the command was new, it makes the
// pool replace the new workers by workers with the old command.
func (p *Pool) goBackLocked(r *reload, why error) {
	r.why = why
	for _, w := range p.workers {
		if w.program == r.to {
			if w.machine.State() == WorkerStarting || w.trial {
				w.replaces = nil
				w.stopLocked(true, why)
			}
			continue
		}
		if w.leaving {
			continue
		}
		if r.from == nil {
			w.program = p.program // both have the same command
		}
		if errors.Is(w.due, ErrReloaded) {
			w.due, w.retiring = nil, false // a limit that it had reached before counts again
		}
	}
	if !r.proved || r.from == nil {
		p.endReloadLocked(r, why)
		return
	}
	r.to = r.from
	p.program = r.to
	p.ensureLocked()
}

func (p *Pool) endReloadLocked(r *reload, why error) {
	if p.reloading != r {
		return
	}
	p.reloading = nil
	r.why = why
	slices.Sort(r.result.Keys)
	r.done.Signal()
}
