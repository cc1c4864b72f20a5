package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// pauses synchronizes a function that calls [Pause] with Suspend and Resume.
type pauses struct {
	mu        sync.Mutex // guards everything below
	request   *pauseRequest
	requested chan struct{} // closed while there is a request; made by the first PauseRequested
}

// pauseRequest is a request to pause, from a Suspend until the Resume.
type pauseRequest struct {
	paused  fsm.Signal // the function has called Pause
	resumed fsm.Signal // the function may go on
}

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
	f.pauses.mu.Lock()
	r := f.pauses.request
	f.pauses.mu.Unlock()
	if r != nil {
		r.paused.Signal()
		select {
		case <-r.resumed.Signaled():
		case <-ctx.Done():
		}
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
	p := &f.pauses
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requested == nil {
		p.requested = make(chan struct{})
		if p.request != nil {
			close(p.requested)
		}
	}
	return p.requested
}

// ask asks the function to pause.
func (p *pauses) ask() *pauseRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.request == nil {
		p.request = &pauseRequest{}
		if p.requested != nil {
			close(p.requested)
		}
	}
	return p.request
}

// withdraw ends a request to pause, even one that the function has answered.
func (p *pauses) withdraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.request != nil {
		p.request.resumed.Signal()
		p.request, p.requested = nil, nil
	}
}

// Suspend asks the function to pause and waits until it has called [Pause].
func (f *Func) Suspend(ctx context.Context) error { return f.suspend(ctx, f) }

// Resume lets the function return from [Pause].
func (f *Func) Resume(ctx context.Context) error { return f.resume(ctx, f) }

func (f *Func) quiesce(ctx context.Context) error {
	select {
	case <-f.pauses.ask().paused.Signaled():
		return nil
	case <-f.ctx.Done(): // it was set before the worker was Running
		return cannotPause(StatusStopping)
	case <-ctx.Done():
		return errors.New("it did not pause")
	}
}

func (f *Func) proceed(_ context.Context, running func() error) error {
	defer f.pauses.withdraw()
	return running()
}
