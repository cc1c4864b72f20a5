package lifecycle

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
)

// Drainable is something that has to let go of others before the process ends:
// sessions on a remote peer, a consumer's claim on messages, a pool's work.
type Drainable interface {
	// Drain stops taking on new work, lets what there is finish, and returns.
	// ctx ends with the drain window; what is not done then is over.
	Drain(ctx context.Context) error
}

// DrainFunc makes a function a [Drainable].
type DrainFunc func(ctx context.Context) error

// Drain calls f.
func (f DrainFunc) Drain(ctx context.Context) error { return f(ctx) }

// OnDrain registers d to run in the drain window, at the same time as all
// others, each in a goroutine of its own. One that ignores the end of its
// context is abandoned shortly after the window, and is an error of Run that
// names it and where it stood; a panic is an error too. Use it for what lives
// elsewhere, and [App.OnShutdown] for what lives here.
func (a *App) OnDrain(name string, d Drainable) *App {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.registerLocked("drainer", name, isNil(d)) {
		a.drainers = append(a.drainers, hook{name, d.Drain})
	}
	return a
}

type appKey struct{}

// Draining returns a channel that closes when whoever works under ctx should
// wind up. For a unit, a drainer or a reload that is when the App begins to
// drain. For a request of a server that the App runs it is when its client, sent
// away, will find another process: GoAwayAfter later, spread over the window
// when the connection is hijacked or to be upgraded, so that not all clients
// come back at once. Calling it declares the request to be a stream: its context
// is cancelled at the window's end.
//
// For any other context the channel never closes.
func Draining(ctx context.Context) <-chan struct{} {
	if ch, ok := httpdrain.Draining(ctx); ok {
		return ch
	}
	if a, ok := ctx.Value(appKey{}).(*App); ok {
		return a.draining
	}
	return nil
}

// Draining returns a channel that closes when the App begins to drain.
// Consumers of queues and schedulers stop fetching then.
func (a *App) Draining() <-chan struct{} { return a.draining }

func (a *App) isDraining() bool {
	select {
	case <-a.draining:
		return true
	default:
		return false
	}
}

// skipWindow ends the wait of the drain window early. It reports false when
// there is no window to skip, or it was skipped before.
func (a *App) skipWindow() bool {
	select {
	case <-a.windowOver:
		return false
	default:
	}
	first := false
	a.skipOnce.Do(func() { close(a.skip); first = true })
	return first
}

// drain is the window: everything is still served, drainers run, and the
// cluster takes notice. It returns when the window is over, and whether the
// wait was cut short because nobody is waited for.
func (a *App) drain(ctx context.Context) (hurried bool) {
	window := on(a.cfg.DrainInterval)
	ctx, cancel := context.WithDeadline(ctx, a.t0.Add(window))
	defer cancel()

	why := a.noWait()
	if why != "" {
		a.log.Info("the drain window is not waited for", "because", why)
	} else {
		a.log.Info("draining: still serving everything", "window", window)
	}
	drained := a.runDrainers(ctx)
	if why == "" {
		a.nowDoing("the drain window")
		why = a.waitWindow(ctx, drained)
		hurried = why == windowSkipped
	} else {
		hurried = true
		a.nowDoing("drainers")
		select {
		case <-drained:
		case <-ctx.Done():
		case <-a.skip:
		}
	}
	cancel() // drainers that mind it return now
	close(a.windowOver)
	a.windowEnd = time.Now()
	for _, s := range a.servers {
		s.EndWindow()
	}
	<-drained
	a.log.Info("the drain window is over", "took", a.windowEnd.Sub(a.t0), "how", why)
	a.mu.Lock()
	a.window = why
	a.mu.Unlock()
	return hurried
}

// How a window that was waited for has ended.
const (
	windowFull    = "full"
	windowQuiet   = "quiet"
	windowSkipped = "skipped by a second signal"
)

// waitWindow waits until the window is over, quiet, or skipped.
func (a *App) waitWindow(ctx context.Context, drained <-chan struct{}) string {
	quiet := on(a.cfg.DrainQuiet)
	var look <-chan time.Time
	if quiet > 0 {
		tick := time.NewTicker(min(max(quiet/10, 10*time.Millisecond), 250*time.Millisecond))
		defer tick.Stop()
		look = tick.C
	}
	waiting := drained
	for {
		select {
		case <-ctx.Done():
			return windowFull
		case <-a.skip:
			return windowSkipped
		case <-look:
		case <-waiting:
			waiting = nil // once is enough
		}
		if quiet > 0 && a.isQuiet(quiet, drained) {
			return windowQuiet
		}
	}
}

// isQuiet reports whether nothing is in flight, or could be unseen, nothing has
// arrived for quiet, and every drainer has returned.
func (a *App) isQuiet(quiet time.Duration, drained <-chan struct{}) bool {
	select {
	case <-drained:
	default:
		return false
	}
	since := a.t0
	if earliest := a.t0.Add(on(a.cfg.DrainMin)); time.Now().Before(earliest) {
		return false
	}
	for _, s := range a.servers {
		st := s.Stats()
		if st.Busy() {
			return false
		}
		if st.LastArrival.After(since) {
			since = st.LastArrival
		}
	}
	return time.Since(since) >= quiet
}

// noWait says why there is nobody to wait for, or "".
func (a *App) noWait() string {
	switch a.cfg.DrainWait {
	case WaitAlways:
		return ""
	case WaitNever:
		return "DrainWait is never"
	}
	switch {
	case !a.everReady():
		return "the app was never ready"
	case !a.listens():
		return "nothing listens"
	case a.request.signal != nil && a.request.signal.Signal == os.Interrupt && a.terminal():
		return "Ctrl-C at a terminal"
	}
	return ""
}

// listens reports whether anybody could be sending requests here: a server of
// the App's is serving, or it has none and its health planes invite to units
// that listen by themselves.
func (a *App) listens() bool {
	for _, s := range a.servers {
		if s.isServing() {
			return true
		}
	}
	return len(a.servers) == 0 && a.health != nil
}

// runDrainers starts every drainer and closes the returned channel when each
// has returned or was abandoned.
func (a *App) runDrainers(ctx context.Context) <-chan struct{} {
	all := make(chan struct{})
	var wg sync.WaitGroup
	for _, d := range a.drainers {
		began := time.Now()
		wg.Go(func() {
			life := step(KindDrainer, d.name, &a.events)
			out := await(d.name, began, ctx.Done(), func() error { return d.fn(ctx) })
			_ = life.To(out.Result, out.err)
			if out.err != nil {
				a.log.Error("drainer failed", "drainer", d.name, "took", out.Took, "error", unnamed(d.name, out.err))
				out.err = about("drainer", d.name, out.err)
			} else {
				a.log.Info("drainer done", "drainer", d.name, "took", out.Took)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.drained = append(a.drained, out)
		})
	}
	go func() {
		wg.Wait()
		close(all)
	}()
	return all
}
