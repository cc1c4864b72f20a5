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

// Container is a worker that runs a container. It makes the container and removes
// it when it has ended. Stopped and Killed mean that the container does not run.
// When the engine does not answer for a minute, the worker fails with an error
// that names the container. It is not [BaseWorker.Gone] before the engine is back
// and has removed the container.
//
// The container's main process is process 1 of its namespace. The kernel drops
// every signal that process 1 does not handle. So a program that does not handle
// the stop signal runs until the grace is over, and is Killed, unless the engine
// runs an init as process 1. A container that exits with 128 plus the number of
// the signal that the worker sent is Stopped, like a process that such a signal
// ends.
//
// A container outlives the process that made it: after a crash of that process it
// runs on. An engine may be able to find and replace it.
type Container struct {
	BaseWorker
	engine         Engine
	spec           ContainerSpec
	grace          time.Duration
	given          time.Duration // the grace, when an option has set it
	create         time.Duration
	patience       time.Duration
	stdout, stderr io.Writer
	refused        error // the error of an invalid option

	force fsm.Signal // signaled to end the grace early

	mu   sync.Mutex // guards everything below
	id   string
	exit *Exit
}

const (
	// engineTimeout bounds one call of an engine.
	engineTimeout = 30 * time.Second
	// enginePatience is how long the worker retries when the engine does not
	// answer.
	enginePatience = time.Minute
	engineRetry    = time.Second
)

// ContainerOption shapes a [Container].
type ContainerOption func(*Container)

// WithContainerGrace sets how long the container may take to end when it is asked
// to stop. Then the worker kills it. Defaults to 10 seconds. The deadline of the
// context given to Stop shortens it.
func WithContainerGrace(d time.Duration) ContainerOption {
	return func(c *Container) { c.grace, c.given = d, d }
}

// StopTime returns the grace of [WithContainerGrace], and 0 without that option.
func (c *Container) StopTime() time.Duration { return c.given }

// WithCreateTimeout bounds the creation of the container. Defaults to 30 seconds,
// which is too short when the engine has to pull the image first. In a
// [Supervisor] the child's StartTimeout must be long enough for it too.
func WithCreateTimeout(d time.Duration) ContainerOption { return func(c *Container) { c.create = d } }

// WithEnginePatience sets how long the worker retries before it fails, when the
// engine does not answer. Defaults to 1 minute, so that a restart of the engine
// does no harm.
func WithEnginePatience(d time.Duration) ContainerOption {
	return func(c *Container) { c.patience = d }
}

// WithContainerOutput copies the container's output to stdout and stderr; nil
// drops it. One goroutine writes to both. After an outage of the engine the
// copying continues where it stopped. A failed write ends the copying, not the
// container; the worker then fails with that error where it would have Finished.
// Once the container has ended, the worker copies the rest for as long as it waits for
// an engine ([WithEnginePatience]), and after a kill for 2 seconds. Once Stop was called it
// also gives up when there is none for 2 seconds, and when the time of Stop is nearly over.
// Then [Exit] says that the output was Cut.
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
		return fmt.Errorf("the create timeout is %v, want more than 0", c.create)
	case c.patience < 0:
		return fmt.Errorf("the engine patience is %v, want 0 or more", c.patience)
	}
	return nil
}

// Start makes and runs the container in the background. The worker is Running
// once the engine has started the container. Cancelling ctx asks the container to
// stop. Start adds the variables of a [Handover] that ctx carries to the
// container's environment.
func (c *Container) Start(ctx context.Context) error {
	own, err := c.beginWork(ctx)
	if err != nil {
		return err
	}
	if err := c.validate(); err != nil {
		return c.refuse(err)
	}
	spec := c.spec
	if h, ok := HandoverFrom(ctx); ok {
		spec.Env = override(spec.Env, h.Environ())
	}
	call.Go(c.Name(), func() error { return c.live(own, spec) }, c.Finish)
	return nil
}

// Stop asks the container to end, and waits until it has ended and is removed. It
// kills the container when the grace is over or ctx is about to end. When ctx
// ends first, the worker is Killed and the error is an [*AbandonedError] that
// names the container. The worker then continues to kill the container until
// [BaseWorker.Gone] closes.
func (c *Container) Stop(ctx context.Context) error {
	if live := c.RequestStop(stopCause(ctx)); live {
		if deadline, ok := ctx.Deadline(); ok {
			left := time.Until(deadline)
			last := time.AfterFunc(left-min(left/5, 2*time.Second), func() { c.force.Signal() })
			defer last.Stop()
		}
	}
	return c.awaitStop(ctx, func() error {
		c.force.Signal()
		return &AbandonedError{Name: c.Name(), Where: "container " + c.ID() + ", which the engine has not ended yet"}
	})
}

// ID returns the engine's id of the container, "" before it was made.
func (c *Container) ID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// State describes the worker. Once the container has ended, it includes the exit.
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

// Suspend freezes the container. When the engine does not confirm that, Suspend
// asks it to resume the container.
func (c *Container) Suspend(ctx context.Context) error { return c.suspend(ctx, c) }

// Resume lets the container run again.
func (c *Container) Resume(ctx context.Context) error { return c.resume(ctx, c) }

func (c *Container) quiesce(ctx context.Context) error { return do(ctx, c.engine.Pause, c.ID()) }

func (c *Container) proceed(ctx context.Context, running func() error) error {
	if err := do(ctx, c.engine.Unpause, c.ID()); err != nil {
		return err
	}
	return running()
}
