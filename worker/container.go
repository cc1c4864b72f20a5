package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/safe"
)

// Engine runs containers: what a [Container] needs of Docker, containerd or
// Podman. Every call is bounded by its context. Methods are called concurrently.
type Engine interface {
	// Create makes a container that does not run and returns its id.
	Create(ctx context.Context, spec ContainerSpec) (id string, err error)
	// Start runs it.
	Start(ctx context.Context, id string) error
	// Wait returns once the container does not run, also when that was before
	// the call. An error says that it cannot tell.
	Wait(ctx context.Context, id string) (ContainerExit, error)
	// Signal sends a signal by name, SIGTERM, to its main process. For a
	// container that does not run it may return an error.
	Signal(ctx context.Context, id, signal string) error
	// Pause freezes the container, Unpause lets it go on.
	Pause(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Remove removes it, by force when it runs. One that is not there is no
	// error.
	Remove(ctx context.Context, id string) error
}

// ContainerSpec says what to run.
type ContainerSpec struct {
	Name    string            // of the container; "" lets the engine choose
	Image   string            // that the engine has
	Command []string          // in place of the image's
	Env     []string          // in the form of os.Environ
	Labels  map[string]string // for those who look at the engine
}

// ContainerExit is how a container ended.
type ContainerExit struct {
	Code int
	OOM  bool // killed for want of memory
}

// Container is a worker that runs a container. Each instance makes one and
// removes it when it has ended. Stopped and Killed mean that the container does
// not run. When the engine does not answer for a minute the worker fails, with
// an error that names the container, and is not [BaseWorker.Gone] before the
// engine is back and has removed it.
//
// A container that exits with 128 plus the number of the signal that we sent is
// Stopped, as a process that dies of it is.
type Container struct {
	BaseWorker
	engine Engine
	spec   ContainerSpec
	grace  time.Duration

	begun     sync.Mutex // orders Start against Stop
	cancel    context.CancelCauseFunc
	force     chan struct{}
	forceOnce sync.Once

	mu   sync.Mutex // guards what follows
	id   string
	exit *Exit
}

const (
	// engineTimeout bounds one call of an engine.
	engineTimeout = 30 * time.Second
	// enginePatience is how long an engine that does not answer is asked again.
	enginePatience = time.Minute
	engineRetry    = time.Second

	exitKilled     = 128 + 9
	exitTerminated = 128 + 15
)

// ContainerOption shapes a [Container].
type ContainerOption func(*Container)

// WithContainerGrace sets how long the container may take to end after SIGTERM,
// before it is killed. Defaults to 10 seconds. The context given to Stop
// shortens it.
func WithContainerGrace(d time.Duration) ContainerOption { return func(c *Container) { c.grace = d } }

// NewContainer returns a worker that runs spec on engine.
func NewContainer(name string, engine Engine, spec ContainerSpec, opts ...ContainerOption) *Container {
	c := &Container{engine: engine, spec: spec, grace: defaultGrace, force: make(chan struct{})}
	c.Init("container", name)
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// Start makes and runs the container in the background; the worker is Running
// once the engine says that it runs. Cancelling ctx asks it to stop. The variables
// of a [Handover] that ctx carries are added to its environment.
func (c *Container) Start(ctx context.Context) error {
	c.begun.Lock()
	defer c.begun.Unlock()
	own, cancel := context.WithCancelCause(ctx)
	if err := c.Begin(own); err != nil {
		cancel(nil)
		return err
	}
	c.cancel = cancel
	spec := c.spec
	if h, ok := HandoverFrom(ctx); ok {
		spec.Env = append(slices.Clip(spec.Env), h.Environ()...)
	}
	if c.engine == nil || spec.Image == "" || c.grace < 0 {
		err := fmt.Errorf("start %s: want an engine, an image and a grace of 0 or more, have %v, %q and %v", c.Name(), c.engine, spec.Image, c.grace)
		c.Finish(err)
		cancel(nil)
		return err
	}
	safe.Go(c.Name(), func() error { return c.live(own, spec) }, nil, func(err error) {
		c.Finish(err)
		cancel(nil)
	})
	return nil
}

// live is one container from its making to its removal. What has to happen when
// it is stopped happens under a context of its own.
func (c *Container) live(own context.Context, spec ContainerSpec) error {
	after := context.WithoutCancel(own)
	id, err := bounded(own, func(ctx context.Context) (string, error) { return c.engine.Create(ctx, spec) })
	if err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	c.mu.Lock()
	c.id = id
	c.mu.Unlock()
	defer func() {
		_, _ = bounded(after, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.engine.Remove(ctx, id) })
	}()
	if own.Err() != nil {
		return nil // it never ran
	}
	if _, err := bounded(after, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.engine.Start(ctx, id) }); err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	c.MarkRunning()
	ended := make(chan containerEnd, 1)
	waiting, endWait := context.WithCancel(after)
	defer endWait()
	go func() { ended <- c.await(waiting, id) }()
	select {
	case end := <-ended:
		return c.judge(own, id, end, false, false)
	case <-own.Done():
	}
	_ = c.signal(after, id, "SIGTERM")
	_, _ = bounded(after, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.engine.Unpause(ctx, id) }) // a frozen one gets no signal
	grace := time.NewTimer(c.grace)
	defer grace.Stop()
	select {
	case end := <-ended:
		return c.judge(own, id, end, true, false)
	case <-grace.C:
	case <-c.force:
	}
	for { // an engine that was away may have missed it
		_ = c.signal(after, id, "SIGKILL")
		retry := time.NewTimer(engineRetry)
		select {
		case end := <-ended:
			retry.Stop()
			return c.judge(own, id, end, true, true)
		case <-retry.C:
		}
	}
}

type containerEnd struct {
	exit ContainerExit
	err  error
}

// await waits for the container's end, and for an engine that is away for a
// while.
func (c *Container) await(ctx context.Context, id string) containerEnd {
	var lost time.Time
	for {
		asked := time.Now()
		exit, err := c.engine.Wait(ctx, id)
		if err == nil || ctx.Err() != nil {
			return containerEnd{exit, err}
		}
		now := time.Now()
		if lost.IsZero() || now.Sub(asked) > engineRetry { // in between it was there
			lost = now
		} else if now.Sub(lost) >= enginePatience {
			return containerEnd{exit, err}
		}
		retry := time.NewTimer(engineRetry)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
		}
	}
}

func (c *Container) judge(own context.Context, id string, end containerEnd, asked, forced bool) error {
	if end.err != nil {
		err := fmt.Errorf("container %s may still run: wait for it: %w", id, end.err)
		c.leave(err)
		c.removeLater(context.WithoutCancel(own), id)
		return err
	}
	exit := &Exit{Code: end.exit.Code, OOM: end.exit.OOM, At: time.Now()}
	var err error
	switch code := end.exit.Code; {
	case code == 0:
	case end.exit.OOM:
		err = fmt.Errorf("container %s: out of memory: exit code %d", id, code)
	case forced && code == exitKilled:
		err = fmt.Errorf("container %s: did not stop when asked and was killed", id)
	case asked && code == exitTerminated:
		err = fmt.Errorf("%w: container %s: exit code %d", ErrInterrupted, id, code)
	default:
		err = fmt.Errorf("container %s: exit code %d", id, code)
	}
	if err != nil {
		exit.Error = err.Error()
	}
	c.mu.Lock()
	c.exit = exit
	c.mu.Unlock()
	if forced && end.exit.Code == exitKilled && !end.exit.OOM && own.Err() != nil {
		c.Kill(err)
	}
	return err
}

// removeLater removes a container that an engine which is away may still run.
// Until it has, no other may take its place.
func (c *Container) removeLater(ctx context.Context, id string) {
	for {
		_, err := bounded(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.engine.Remove(ctx, id) })
		if err == nil {
			return
		}
		time.Sleep(engineRetry)
	}
}

func (c *Container) signal(ctx context.Context, id, name string) error {
	_, err := bounded(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.engine.Signal(ctx, id, name) })
	return err
}

// bounded bounds one call of an engine.
func bounded[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return call(ctx)
}

// Stop asks the container to end and waits until it has and is removed. It is
// killed when the grace is over or ctx is about to end. When ctx ends first the
// worker is Killed, the error is an [*AbandonedError] that names the container,
// and killing it goes on until [BaseWorker.Gone] closes.
func (c *Container) Stop(ctx context.Context) error {
	c.begun.Lock()
	live, cancel := c.RequestStop(ErrStopRequested), c.cancel
	c.begun.Unlock()
	if cancel != nil {
		cancel(stopCause(ctx))
	}
	if !live {
		return c.killedErr()
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		last := time.AfterFunc(left-min(left/5, 2*time.Second), c.forceNow)
		defer last.Stop()
	}
	select {
	case <-c.Done():
		return c.killedErr()
	case <-ctx.Done():
	}
	c.forceNow()
	select {
	case <-c.Done(): // both were true
		return c.killedErr()
	default:
	}
	err := &AbandonedError{Name: c.Name(), Where: "container " + c.ID() + ", which the engine has not ended yet"}
	if c.Kill(err) {
		return err
	}
	return c.killedErr()
}

func (c *Container) forceNow() { c.forceOnce.Do(func() { close(c.force) }) }

// ID returns the engine's id of the container, "" before it was made.
func (c *Container) ID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Suspend freezes the container.
func (c *Container) Suspend(ctx context.Context) error {
	switch s := c.Status(); {
	case s == StatusSuspended:
		return nil
	case s != StatusRunning:
		return notSuspendable(c.Name(), s)
	}
	if err := c.engine.Pause(ctx, c.ID()); err != nil {
		return fmt.Errorf("suspend %s: %w", c.Name(), err)
	}
	if err := c.SetStatus(StatusSuspended); err != nil { // a stop came in between, and needs it to run
		return errors.Join(fmt.Errorf("suspend %s: %w", c.Name(), err), c.engine.Unpause(context.WithoutCancel(ctx), c.ID()))
	}
	return nil
}

// Resume lets it go on.
func (c *Container) Resume(ctx context.Context) error {
	if c.Status() == StatusSuspended {
		if err := c.engine.Unpause(ctx, c.ID()); err != nil {
			return fmt.Errorf("resume %s: %w", c.Name(), err)
		}
	}
	return c.resume()
}

// State describes the worker, with how the container ended once it has.
func (c *Container) State() State {
	s := c.BaseWorker.State()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit != nil {
		exit := *c.exit
		exit.Status = s.Status
		s.Exit = &exit
	}
	return s
}
