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

// reload is a reload in progress. The pool's lock guards it. Every event of a worker
// calls step, which starts the next successor, until no worker of an older generation
// is left.
type reload struct {
	generation int // of the workers that it makes
	command    func() *exec.Cmd
	before     func() *exec.Cmd // what it goes back to
	proved     bool             // a worker of the generation is ready
	back       bool             // it goes back
	why        error            // why it goes back
	result     Reloaded
	done       fsm.Signal // result and why are final
}

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
	case p.draining || p.ending || !p.running.Load():
		return nil, ErrDraining
	case p.reloading != nil:
		return nil, ErrReloading
	}
	r := &reload{generation: p.generation + 1, command: command, before: p.command}
	if command == nil {
		r.command = p.command
		r.before = nil
	}
	p.reloading = r
	p.ensureLocked()
	return r, nil
}

// stepReloadLocked starts the successors that may start now, and ends the reload when
// none is needed any more.
func (p *Pool) stepReloadLocked() {
	r := p.reloading
	if r == nil {
		return
	}
	var old []*proc
	starting, left := 0, 0
	for _, w := range p.workers {
		switch {
		case w.alone:
		case w.generation < r.generation:
			left++
			if !w.leaving && w.retire == nil && w.successor == nil {
				old = append(old, w)
			}
		case w.machine.State() == WorkerStarting || w.trial:
			starting++
		}
	}
	if r.proved && left == 0 || r.back && left == 0 {
		p.endReloadLocked(r, r.why)
		return
	}
	if !r.proved && starting > 0 {
		return // one worker tries the new command
	}
	if len(old) == 0 && !r.proved && !r.back {
		p.spawnLocked(spawn{command: r.command, generation: r.generation}) // there is none to replace
		return
	}
	for _, w := range old {
		if p.sizeLocked() >= p.cfg.MaxWorkers+max(p.cfg.Surge, 1) || r.back && p.backsOffLocked() {
			return
		}
		w.due = ErrReloaded
		w.successor = p.spawnLocked(spawn{command: r.command, generation: r.generation, replaces: w})
		if !r.proved {
			return
		}
	}
}

// provedLocked takes note of a worker that has become ready and has passed its trial.
func (r *reload) provedLocked(p *Pool, w *proc) {
	if r == nil || w.generation != r.generation {
		return
	}
	r.proved = true
	p.generation, p.command = r.generation, r.command
}

// failedLocked takes note of a worker that has ended before it was ready. It returns
// false when the worker is none of the reload's.
func (r *reload) failedLocked(p *Pool, w *proc, why error) bool {
	if r == nil || w.generation != r.generation || r.back {
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
		if w.generation == r.generation && (w.machine.State() == WorkerStarting || w.trial) {
			if w.replaces != nil {
				w.replaces.successor, w.replaces = nil, nil
			}
			w.stopLocked(true, why)
		}
	}
	if !r.proved || r.before == nil {
		p.keepLocked(r.generation)
		p.generation = r.generation // so the next reload does not take its workers for its own
		p.endReloadLocked(r, why)
		return
	}
	r.back, r.command = true, r.before
	p.keepLocked(r.generation - 1)
	for _, w := range p.workers {
		if w.generation < r.generation {
			w.generation = r.generation + 1
		}
	}
	r.generation++
	p.generation, p.command = r.generation, r.before
	p.ensureLocked()
}

// keepLocked keeps the workers up to a generation, which the reload would have replaced.
func (p *Pool) keepLocked(generation int) {
	for _, w := range p.workers {
		if w.generation > generation || w.leaving {
			continue
		}
		if errors.Is(w.due, ErrReloaded) {
			w.due, w.recycling = nil, false // a limit that it had reached before counts again
		}
		if errors.Is(w.retire, ErrReloaded) {
			w.retire = nil
		}
	}
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
