package worker

import (
	"context"
	"errors"
	"sync"
)

// pause synchronizes a function that calls [Pause] with the engine of suspends.
type pause struct {
	mu        sync.Mutex // guards everything below
	asked     bool
	requested chan struct{} // closed while a Suspend waits; made by the first PauseRequested
	paused    chan struct{} // closed when the function has called Pause
	resumed   chan struct{} // closed when the function may go on
}

type funcKey struct{}

// Pause is a point at which the function of a [Func] can be suspended. ctx must
// be derived from the function's context. Pause returns at once unless a Suspend
// waits or has succeeded. Then the worker becomes Suspended, and Pause returns nil
// after [Func.Resume], or ctx's error when ctx is cancelled first. Pause blocks only
// the goroutine that calls it, so the function must not work in other goroutines
// meanwhile.
func Pause(ctx context.Context) error {
	f, ok := ctx.Value(funcKey{}).(*Func)
	if !ok || f == nil {
		return ctx.Err()
	}
	f.mu.Lock()
	p := f.seldomLocked().pause
	f.mu.Unlock()
	if p == nil {
		return ctx.Err()
	}
	p.mu.Lock()
	if !p.asked {
		p.mu.Unlock()
		return ctx.Err()
	}
	resumed := p.resumed
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
	p.mu.Unlock()
	select {
	case <-resumed:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// PauseRequested returns a channel that is closed while a Suspend waits for the
// function of ctx to call [Pause]. Use it in a function that waits for other
// events too, and call it again before each wait. For a context that does not
// come from a [Func] it returns nil.
func PauseRequested(ctx context.Context) <-chan struct{} {
	f, ok := ctx.Value(funcKey{}).(*Func)
	if !ok || f == nil {
		return nil
	}
	p := f.pauses()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requestedLocked()
}

// pauses returns the function's pause, made when it is first needed.
func (f *Func) pauses() *pause {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rareLocked()
	if r.pause == nil {
		r.pause = &pause{}
	}
	return r.pause
}

func (p *pause) requestedLocked() chan struct{} {
	if p.requested == nil {
		p.requested = make(chan struct{})
	}
	return p.requested
}

// ask asks the function to pause. It returns a channel that is closed once the function
// has called [Pause].
func (p *pause) ask() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	paused := make(chan struct{})
	p.asked, p.paused, p.resumed = true, paused, make(chan struct{})
	close(p.requestedLocked())
	return paused
}

// withdraw ends a request to pause, even one that the function has answered.
func (p *pause) withdraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		p.asked, p.requested, p.paused = false, nil, nil
		close(p.resumed)
	}
}

// Suspend asks the function to pause and waits until it has called [Pause].
func (f *Func) Suspend(ctx context.Context) error { return f.suspend(ctx, f) }

// Resume lets the function return from [Pause].
func (f *Func) Resume(ctx context.Context) error { return f.resume(ctx, f) }

func (f *Func) quiesce(ctx context.Context) error {
	paused := f.pauses().ask()
	select {
	case <-paused:
		return nil
	case <-f.ending():
		return cannotPause(StatusStopping)
	case <-ctx.Done():
		return errors.New("it did not pause")
	}
}

func (f *Func) proceed(_ context.Context, running func() error) error {
	defer f.pauses().withdraw()
	return running()
}

// Suspend asks the current run to pause, and waits until it has paused. When the
// run fails first, the next run does not start before [Restarter.Resume].
func (r *Restarter) Suspend(ctx context.Context) error { return r.suspend(ctx, r) }

// Resume lets the current run go on, and lets a waiting one start.
func (r *Restarter) Resume(ctx context.Context) error { return r.resume(ctx, r) }

func (r *Restarter) quiesce(ctx context.Context) error {
	r.begun.Lock() // from now on no run begins
	r.nowMu.Lock()
	r.gated = true
	child := r.child
	r.nowMu.Unlock()
	r.begun.Unlock()
	if _, err := child.Await(ctx, func(s Status) bool { return s != StatusStarting }); err != nil {
		return errors.New("its run has not started yet")
	}
	if child.Status() != StatusRunning {
		return nil // there is no run, or the worker ends with it
	}
	err := child.Suspend(ctx)
	switch {
	case err == nil || child.Status().Terminal():
		return nil
	case ctx.Err() != nil:
		return errors.New("it did not pause")
	}
	return err
}

func (r *Restarter) proceed(ctx context.Context, running func() error) error {
	err := running()
	r.nowMu.Lock()
	r.gated = false
	child := r.child
	r.nowMu.Unlock()
	r.goOn(false)
	if child.Status() == StatusSuspended {
		err = errors.Join(err, child.Resume(ctx))
	}
	return err
}
