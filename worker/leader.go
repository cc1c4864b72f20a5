package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Elector is one process's access to a lease that at most one process holds at
// a time: a row in a database, a key with a time to live, a Kubernetes Lease.
// A [Leader] campaigns; an Elector only asks for the lease and gives it back. A
// Leader never calls its methods concurrently.
type Elector interface {
	// Acquire asks once for the lease, or for more of it when this process has
	// it, and returns for how long it is granted: a second or more, usually 10
	// to 60. 0 and no error means that another process has it. An error means
	// that the holder is unknown.
	//
	// The lease may begin at any moment between the call and the return. To be
	// safe, a Leader counts the granted time from the call. ctx ends when the
	// Leader no longer needs the answer.
	Acquire(ctx context.Context) (granted time.Duration, err error)

	// Release gives the lease back, so that another process need not wait until
	// it runs out. The Leader calls it after the function has returned, even when
	// it is not sure that this process has the lease. Without the lease Release
	// must do nothing.
	Release(ctx context.Context) error
}

// ErrLeadershipLost is the context.Cause that the function of a [Leader] sees
// when another process has the lease, or when this process could not confirm in
// time that it still has the lease.
var ErrLeadershipLost = errors.New("leadership lost")

const (
	// attemptTimeout bounds an attempt to acquire the lease outside of a term.
	attemptTimeout = 10 * time.Second
	// minLease is the shortest lease that can be kept. A shorter one is most
	// likely a number without its unit.
	minLease = time.Second
)

// LeaderConfig shapes a [Leader].
type LeaderConfig struct {
	// Retry is the time between two attempts while campaigning. Required.
	Retry time.Duration
	// GiveBack returns the longest time that giving the lease back may take.
	// Required.
	GiveBack func() time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Leader is a worker that runs a function while this process has a lease. It
// campaigns from its start, and runs one child for each term. The root package's
// App.Lead says how it behaves.
type Leader struct {
	BaseWorker
	LeaderConfig
	elector Elector
	fn      func(context.Context) error
	hold    fsm.Signal // HoldRestarts was called

	turn     chan struct{}             // has a token while a method of the elector runs
	asking   atomic.Pointer[call.Call] // the last call of the elector
	mayOwnIt atomic.Bool               // this process may have the lease

	termMu sync.Mutex // guards everything below
	term   *Func
	terms  int
}

// NewLeader returns a Leader in [StatusCreated]. e and fn must not be nil.
func NewLeader(name string, e Elector, fn func(context.Context) error, cfg LeaderConfig) *Leader {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	l := &Leader{LeaderConfig: cfg, elector: e, fn: fn, turn: make(chan struct{}, 1)}
	l.Init("leader", name)
	return l
}

// grant is the answer to one attempt. Its time counts from the attempt's beginning.
type grant struct {
	began   time.Time
	granted time.Duration
	err     error
}

func (g grant) renewAt() time.Time { return g.began.Add(g.granted / 3) }
func (g grant) loseAt() time.Time  { return g.began.Add(g.granted / 3 * 2) }
func (g grant) overAt() time.Time  { return g.began.Add(g.granted) }

// leads reports whether a term may begin with the grant now.
func (g grant) leads() bool { return g.err == nil && time.Now().Before(g.loseAt()) }

// Start begins to campaign.
func (l *Leader) Start(ctx context.Context) error {
	own, err := l.beginWork(ctx)
	if err != nil {
		return err
	}
	l.MarkRunning()
	call.Go(l.Name(), func() error { return l.loop(own) }, func(err error) {
		if term := l.current(); term.Killed() { // the unit ends with the result of its term
			l.Kill(err)
			<-term.Gone()
		}
		l.Finish(err)
	})
	return nil
}

// HoldRestarts ends the campaign. A term that has begun goes on. An App
// calls it when it begins to drain.
func (l *Leader) HoldRestarts() { l.hold.Signal() }

// Stop cancels the term or the campaign, and waits until the function has returned
// and the lease is released. It abandons a function or an elector that does not return
// in time.
func (l *Leader) Stop(ctx context.Context) error {
	l.RequestStop(stopCause(ctx))
	return l.awaitStop(ctx, func() error {
		if term := l.current(); term != nil {
			if err := term.Stop(ctx); err != nil {
				return err
			}
		}
		return l.electorAbandoned()
	})
}

func (l *Leader) current() *Func {
	l.termMu.Lock()
	defer l.termMu.Unlock()
	return l.term
}

// State describes the worker, with the present or the next term as its child.
func (l *Leader) State() State {
	s := l.BaseWorker.State()
	l.termMu.Lock()
	term, terms := l.term, l.terms
	l.termMu.Unlock()
	s.Restarts = max(terms-1, 0)
	if term != nil {
		s.Children = []State{term.State()}
	}
	return s
}

// loop campaigns and leads until it is asked to end, or the function has ended.
func (l *Leader) loop(ctx context.Context) error {
	for {
		term := l.nextTerm()
		g, elected := l.campaign(ctx)
		if !elected {
			term.RequestStop(ErrStopRequested)
			l.RequestStop(ErrStopRequested)
			return l.release(ctx)
		}
		l.Logger.Info("leading", "unit", l.Name())
		lost, err := l.lead(ctx, term, g)
		switch {
		case lost && err == nil:
			continue
		case !term.Killed(): // a killed function may still work: then the lease must run out by itself
			switch stuck := l.release(ctx); {
			case stuck == nil, err == nil && ctx.Err() == nil: // the function has finished its work
			case err == nil, call.Is(err, ErrInterrupted):
				err = stuck
			default:
				err = errors.Join(err, stuck)
			}
		}
		return err
	}
}

// nextTerm makes the child for the coming term.
func (l *Leader) nextTerm() *Func {
	term := NewFunc(l.Name()+"/term", l.fn)
	l.Adopt(term)
	_ = term.Hold("another process leads, or the holder is unknown", time.Time{}) // never fails for a new worker
	l.termMu.Lock()
	defer l.termMu.Unlock()
	l.term = term
	return term
}

// errElectorBusy is the error of a call of the elector that was not made in time, because the
// call before has not returned.
var errElectorBusy = errors.New("the elector has not returned from the call before")

// callElector calls a method of the elector in a new goroutine, so that the loop notices the end
// of the lease even while the elector hangs. It makes the call when the call before has
// returned; when ctx ends first, it does not make it.
func (l *Leader) callElector(ctx context.Context, method string, fn func() error, ended func(error)) *call.Call {
	c := new(call.Call)
	c.Start(ctx, "call", l.Name()+": "+method, func() error {
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			return errElectorBusy
		}
		defer func() { <-l.turn }()
		l.asking.Store(c)
		return fn()
	}, ended)
	return c
}

// attempt asks for the lease.
func (l *Leader) attempt(ctx context.Context, until time.Time) (answer <-chan grant, cancel context.CancelFunc) {
	ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), until)
	g := grant{began: time.Now()}
	ch := make(chan grant, 1) // room for the only send, even when the loop no longer waits
	l.callElector(ctx, "Acquire", func() (err error) {
		before := l.mayOwnIt.Swap(true) // while Acquire runs, and when it panics, the process may have the lease
		g.began = time.Now()
		g.granted, err = l.elector.Acquire(ctx)
		if err == nil && g.granted > 0 && g.granted < minLease {
			err = fmt.Errorf("a lease of %v was granted, want %v or more", g.granted, minLease)
		}
		if err == nil && g.granted <= 0 {
			l.mayOwnIt.Store(before)
		}
		return err
	}, func(err error) {
		g.err = err
		ch <- g
	})
	return ch, cancel
}

// campaign asks for the lease until the elector grants it. It returns false when
// the unit is asked to end.
func (l *Leader) campaign(ctx context.Context) (g grant, elected bool) {
	lastLogged := ""
	for !l.ending(ctx) {
		answer, cancel := l.attempt(ctx, time.Now().Add(attemptTimeout))
		select {
		case g = <-answer:
		case <-ctx.Done():
		case <-l.hold.Signaled():
		}
		cancel()
		switch {
		case l.ending(ctx):
			return g, false
		case g.leads():
			return g, true
		case g.err == nil:
			lastLogged = ""
		case g.err.Error() != lastLogged:
			lastLogged = g.err.Error() // log it once: it may last for hours
			l.Logger.Warn("the lease cannot be acquired", "unit", l.Name(), "error", g.err)
		}
		// Add jitter, so that waiting processes do not all ask at once.
		select {
		case <-time.After(l.Retry + rand.N(l.Retry/5+1)):
		case <-ctx.Done():
		case <-l.hold.Signaled():
		}
	}
	return g, false
}

// ending reports whether the campaign is over: no further term may begin.
func (l *Leader) ending(ctx context.Context) bool {
	return ctx.Err() != nil || l.hold.HasSignaled()
}

// lead runs one term. lost reports whether the lease was lost before the function
// returned; err is then the function's failure, if it had one. Otherwise err is the
// function's result. While the App is stopping, lead renews the lease until the
// function has returned.
func (l *Leader) lead(ctx context.Context, term *Func, g grant) (lost bool, err error) {
	own, end := context.WithCancelCause(ctx)
	defer end(nil)
	l.termMu.Lock()
	l.terms++
	l.termMu.Unlock()
	if term.Start(own) != nil { // Stop came first
		return false, nil
	}
	renew, lose := time.After(time.Until(g.renewAt())), time.After(time.Until(g.loseAt()))
	var answer <-chan grant
	var failed, why error
	cancel := context.CancelFunc(func() {})
	for why == nil {
		select {
		case <-term.Done():
			cancel()
			return false, term.Err()
		case <-renew:
			until := time.Now().Add(g.granted / 6)
			if lose := g.loseAt(); lose.Before(until) {
				until = lose
			}
			answer, cancel = l.attempt(ctx, until)
		case got := <-answer:
			cancel()
			answer = nil
			switch {
			case got.leads():
				g, failed = got, nil
				renew = time.After(time.Until(g.renewAt()))
				lose = time.After(time.Until(g.loseAt()))
			case got.err == nil && got.granted <= 0:
				why = fmt.Errorf("%w: another process has the lease", ErrLeadershipLost)
			default: // use the remaining time for more attempts
				failed = got.err
				renew = time.After(g.granted / 12)
			}
		case <-lose:
			why = fmt.Errorf("%w: it was not renewed in time", ErrLeadershipLost)
			if failed != nil {
				why = fmt.Errorf("%w: %w", why, failed)
			}
		}
	}
	l.Logger.Warn("leadership lost", "unit", l.Name(), "error", why)
	end(why)
	cancel()
	until, over := context.WithDeadline(context.Background(), g.overAt())
	defer over()
	if err := term.Stop(until); err != nil {
		return true, fmt.Errorf("the lease has run out and the function still runs: %w", err)
	}
	if err := term.Err(); !call.Is(err, ErrInterrupted) {
		return true, err
	}
	return true, nil
}

// release gives the lease back, if this process may have it. When Release fails, the
// unit does not fail: the lease runs out by itself. release abandons an elector that
// does not return, so that the unit can report the function's end; the error names
// the elector. The lease is released when the elector returns later.
func (l *Leader) release(ctx context.Context) (stuck error) {
	after, limit := context.WithoutCancel(ctx), l.GiveBack()
	released := false
	c := l.callElector(after, "Release", func() error {
		if !l.mayOwnIt.Load() {
			return nil
		}
		released = true
		ctx, cancel := context.WithTimeout(after, limit)
		defer cancel()
		return l.elector.Release(ctx)
	}, nil)
	late, cancel := context.WithTimeout(after, limit)
	defer cancel()
	err := c.Wait(late.Done(), call.Settle)
	switch over, _ := c.Ended(); {
	case !over:
		stuck = l.electorAbandoned()
		err = stuck
	case err == nil && released:
		l.Logger.Info("lease released", "unit", l.Name())
	}
	if err != nil {
		l.Logger.Warn("the lease was not released and has to run out", "unit", l.Name(), "error", err)
	}
	return stuck
}

// electorAbandoned returns the error that names the elector's last call.
func (l *Leader) electorAbandoned() error {
	c := l.asking.Load()
	if c == nil {
		c = new(call.Call) // the loop has not called it yet
	}
	err := c.Abandon()
	err.Name = l.Name() + ": elector"
	return err
}
