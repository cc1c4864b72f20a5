package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Container is a worker that runs a container. Each instance makes one and
// removes it when it has ended. Stopped and Killed mean that the container does
// not run. When the engine does not answer for a minute the worker fails, with
// an error that names the container, and is not [BaseWorker.Gone] before the
// engine is back and has removed it.
//
// Its main process is process 1 of its own namespace. The kernel gives that no
// signal which it has no handler for, so a program that does not handle the stop
// signal runs until the grace is over and is Killed, unless the engine puts an
// init before it. A container that exits with 128 plus the number of the signal
// that we sent is Stopped, as a process that dies of it is.
//
// A container does not end with the process that made it: after a crash of that
// process it runs on. An engine may be able to find and replace it.
type Container struct {
	BaseWorker
	engine         Engine
	spec           ContainerSpec
	grace          time.Duration
	create         time.Duration
	patience       time.Duration
	stdout, stderr io.Writer
	refused        error // of the options

	begun  sync.Mutex // orders Start against Stop
	cancel context.CancelCauseFunc
	force  fsm.Signal // the grace ends early

	mu   sync.Mutex // guards everything below
	id   string
	exit *Exit
}

const (
	// engineTimeout bounds one call of an engine.
	engineTimeout = 30 * time.Second
	// enginePatience is how long an engine that does not answer is asked again.
	enginePatience = time.Minute
	engineRetry    = time.Second
)

// ContainerOption shapes a [Container].
type ContainerOption func(*Container)

// WithContainerGrace sets how long the container may take to end after it was
// asked to, before it is killed. Defaults to 10 seconds. The context given to Stop
// shortens it.
func WithContainerGrace(d time.Duration) ContainerOption { return func(c *Container) { c.grace = d } }

// WithCreateTimeout bounds the making of the container. Defaults to 30 seconds,
// which is too short for an engine that may have to pull the image first. In a
// [Supervisor] the child's StartTimeout has to allow for it too.
func WithCreateTimeout(d time.Duration) ContainerOption { return func(c *Container) { c.create = d } }

// WithEnginePatience sets for how long an engine that does not answer is asked
// again before the worker fails. Defaults to 1 minute: a restart of the engine
// should cost nothing.
func WithEnginePatience(d time.Duration) ContainerOption {
	return func(c *Container) { c.patience = d }
}

// WithContainerOutput copies the container's output to stdout and stderr; nil drops
// it. One goroutine writes to both. After an outage of the engine the copying goes on
// where it was. A write that fails ends the copying, not the container; a worker that
// would have Finished fails with that error. Once the container has ended, the rest of
// the output has 2 seconds.
func WithContainerOutput(stdout, stderr io.Writer) ContainerOption {
	return func(c *Container) { c.stdout, c.stderr = stdout, stderr }
}

// NewContainer returns a worker that runs spec on engine. A nil option is an
// error of Start.
func NewContainer(name string, engine Engine, spec ContainerSpec, opts ...ContainerOption) *Container {
	c := &Container{
		engine: engine, spec: spec,
		grace: defaultGrace, create: engineTimeout, patience: enginePatience,
	}
	c.Init("container", name)
	for i, opt := range opts {
		if opt == nil {
			c.refused = nilOption(i)
			continue
		}
		opt(c)
	}
	return c
}

func (c *Container) validate() error {
	switch {
	case c.refused != nil:
		return c.refused
	case c.engine == nil:
		return errors.New("there is no engine")
	case c.spec.Image == "":
		return errors.New("the image is empty, want the name of one that the engine has")
	case c.spec.StopSignal != "" && stopSignals[c.spec.StopSignal] == 0:
		return fmt.Errorf("StopSignal is %q, want a name such as SIGTERM, SIGQUIT or SIGINT", c.spec.StopSignal)
	case c.grace < 0:
		return fmt.Errorf("the grace is %v, want 0 or more", c.grace)
	case c.create <= 0:
		return fmt.Errorf("the timeout of the creation is %v, want more than 0", c.create)
	case c.patience < 0:
		return fmt.Errorf("the patience with the engine is %v, want 0 or more", c.patience)
	}
	return nil
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
	if err := c.validate(); err != nil {
		err = fmt.Errorf("start %s: %w", c.Name(), err)
		c.Finish(err)
		cancel(nil)
		return err
	}
	spec := c.spec
	if h, ok := HandoverFrom(ctx); ok {
		spec.Env = override(spec.Env, h.Environ())
	}
	call.Go(c.Name(), func() error { return c.live(own, spec) }, func(err error) {
		c.Finish(err)
		cancel(nil)
	})
	return nil
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

func (c *Container) forceNow() { c.force.Signal() }

// ID returns the engine's id of the container, "" before it was made.
func (c *Container) ID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Suspend freezes the container. When the engine cannot say that it did, it is
// told to let the container go on.
func (c *Container) Suspend(ctx context.Context) error {
	switch s := c.Status(); {
	case s == StatusSuspended:
		return nil
	case s != StatusRunning:
		return notSuspendable(c.Name(), s)
	}
	err := do(ctx, c.engine.Pause, c.ID())
	if err == nil {
		if err = c.SetStatus(StatusSuspended); err == nil {
			return nil
		} // a stop came in between, and needs it to run
	}
	return errors.Join(fmt.Errorf("suspend %s: %w", c.Name(), err), do(context.WithoutCancel(ctx), c.engine.Unpause, c.ID()))
}

// Resume lets it go on.
func (c *Container) Resume(ctx context.Context) error {
	if c.Status() == StatusSuspended {
		if err := do(ctx, c.engine.Unpause, c.ID()); err != nil {
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
