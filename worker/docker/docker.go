package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
)

var (
	// ErrNoImage is returned by Create for an image that the engine does not
	// have. Pull or load it before, or use [WithPull].
	ErrNoImage = errors.New("the engine does not have the image")

	// ErrNameInUse is returned by Create for a name that another container has.
	// [WithReplace] replaces one that a former run of this program left behind.
	ErrNameInUse = errors.New("the name is in use")
)

// The labels of every container that an [Engine] makes.
const (
	// LabelManaged says that the container belongs to a worker. Its value is
	// that of [WithOwner], "" without.
	LabelManaged = "lifecycle-go.managed"
	// LabelInstance tells one creation from every other.
	LabelInstance = "lifecycle-go.instance"
)

// cleanUpTimeout bounds the look for a container whose creation may have
// succeeded though nobody heard of it.
const cleanUpTimeout = 10 * time.Second

// Engine is a [worker.Engine] on a Docker engine. It keeps nothing but its
// options, so that many, each with a shape of its own, can share one client. All
// methods may be called concurrently.
type Engine struct {
	cli     *client.Client
	shape   []func(*client.ContainerCreateOptions)
	pull    *client.ImagePullOptions
	owner   string
	replace bool
}

var _ worker.Engine = (*Engine)(nil)

// Option shapes an [Engine].
type Option func(*Engine)

// New returns an engine that speaks through cli. cli remains the caller's, who
// closes it once the workers have ended. It must not have a timeout of its own:
// a container is waited for as long as it runs. A nil option is ignored.
func New(cli *client.Client, opts ...Option) *Engine {
	e := &Engine{cli: cli}
	for _, opt := range opts {
		if opt != nil {
			opt(e)
		}
	}
	return e
}

// WithShape has fn complete what Create is about to send: ports, mounts, limits,
// networks, a user, an init. Config, HostConfig, NetworkingConfig and
// Config.Labels are not nil and hold what the [worker.ContainerSpec] says. Several
// are called in their order, from whichever goroutine starts the container.
//
// Three things are refused, since the worker does them: AutoRemove, a
// RestartPolicy, and a Tty, which a worker has not.
func WithShape(fn func(*client.ContainerCreateOptions)) Option {
	return func(e *Engine) { e.shape = append(e.shape, fn) }
}

// WithPull pulls an image that the engine does not have, with the given options,
// before the container is made. An image that it has is not looked for anew. Give
// the worker the time for it: [worker.WithCreateTimeout].
func WithPull(opts client.ImagePullOptions) Option { return func(e *Engine) { e.pull = &opts } }

// WithOwner names who the containers belong to: the value of [LabelManaged].
func WithOwner(name string) Option { return func(e *Engine) { e.owner = name } }

// WithReplace removes, by force, a container that has the name of the one to be
// made, if its [LabelManaged] is that of this engine: it was left behind by a
// program that did not live to remove it. A container of anybody else is never
// touched, and is [ErrNameInUse].
//
// Two programs that run at the same time with one owner and one name would take
// turns in removing each other's container: give each its own owner.
func WithReplace() Option { return func(e *Engine) { e.replace = true } }

// Create makes a container that does not run. The errors are [ErrNoImage] and
// [ErrNameInUse], those of the engine, and those about a shape that a worker
// cannot have. When it cannot tell whether the engine made one, it looks for it
// and removes it.
func (e *Engine) Create(ctx context.Context, spec worker.ContainerSpec) (worker.Created, error) {
	stopSignal, err := e.image(ctx, spec.Image)
	if err != nil {
		return worker.Created{}, err
	}
	options, err := e.options(spec)
	if err != nil {
		return worker.Created{}, err
	}
	if options.Config.StopSignal != "" {
		stopSignal = options.Config.StopSignal
	}
	made, err := e.cli.ContainerCreate(ctx, options)
	if cerrdefs.IsConflict(err) && options.Name != "" {
		if err = e.makeRoom(ctx, options.Name, err); err == nil {
			made, err = e.cli.ContainerCreate(ctx, options)
		}
	}
	switch {
	case err == nil:
		return worker.Created{ID: made.ID, StopSignal: stopSignal}, nil
	case !answered(err):
		e.forget(ctx, options.Config.Labels[LabelInstance])
	}
	return worker.Created{}, err
}

// image returns the stop signal of an image, which it pulls if that is wanted.
func (e *Engine) image(ctx context.Context, name string) (stopSignal string, err error) {
	found, err := e.cli.ImageInspect(ctx, name)
	if cerrdefs.IsNotFound(err) && e.pull != nil {
		pulled, failed := e.cli.ImagePull(ctx, name, *e.pull)
		if failed == nil {
			failed = errors.Join(pulled.Wait(ctx), pulled.Close())
		}
		if failed != nil {
			return "", fmt.Errorf("pull image %s: %w", name, failed)
		}
		found, err = e.cli.ImageInspect(ctx, name)
	}
	switch {
	case cerrdefs.IsNotFound(err):
		return "", fmt.Errorf("%w %s: pull or load it before, or use WithPull", ErrNoImage, name)
	case err != nil:
		return "", fmt.Errorf("look for image %s: %w", name, err)
	case found.Config == nil:
		return "", nil
	}
	return found.Config.StopSignal, nil
}

// options is what is sent for spec.
func (e *Engine) options(spec worker.ContainerSpec) (client.ContainerCreateOptions, error) {
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = make(map[string]string, 2)
	}
	o := client.ContainerCreateOptions{
		Name: spec.Name,
		Config: &container.Config{
			Image: spec.Image, Cmd: slices.Clone(spec.Command), Env: slices.Clone(spec.Env), Labels: labels, StopSignal: spec.StopSignal,
		},
		HostConfig:       &container.HostConfig{},
		NetworkingConfig: &network.NetworkingConfig{},
	}
	for _, shape := range e.shape {
		shape(&o)
	}
	switch {
	case o.Config == nil || o.HostConfig == nil || o.Config.Labels == nil:
		return o, errors.New("the shape took Config, HostConfig or Config.Labels away: want them to be completed, not replaced by nil")
	case o.HostConfig.AutoRemove:
		return o, errors.New("the shape set AutoRemove: want it off, the worker removes the container once it knows how it ended")
	case !o.HostConfig.RestartPolicy.IsNone():
		return o, fmt.Errorf("the shape set RestartPolicy %q: want none, restarts are a supervisor's", o.HostConfig.RestartPolicy.Name)
	case o.Config.Tty:
		return o, errors.New("the shape set Tty: want it off, a worker has no terminal")
	}
	o.Config.Labels[LabelManaged] = e.owner
	o.Config.Labels[LabelInstance] = rand.Text()
	return o, nil
}

// makeRoom removes a container of that name if it was left behind by a former
// run and that is wanted. conflict is what the engine said.
func (e *Engine) makeRoom(ctx context.Context, name string, conflict error) error {
	old, err := e.cli.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	switch {
	case cerrdefs.IsNotFound(err):
		return nil // it has gone meanwhile
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrNameInUse, name, conflict)
	}
	owner, ours := "", false
	if old.Container.Config != nil {
		owner, ours = old.Container.Config.Labels[LabelManaged]
	}
	switch {
	case !ours:
		return fmt.Errorf("%w: %s is container %.12s, which is not a worker's: remove or rename it", ErrNameInUse, name, old.Container.ID)
	case owner != e.owner:
		return fmt.Errorf("%w: %s is container %.12s, which belongs to %q: stop that, or use another name", ErrNameInUse, name, old.Container.ID, owner)
	case !e.replace:
		return fmt.Errorf("%w: %s is container %.12s, of another worker or left behind by a former run: remove it, or use WithReplace", ErrNameInUse, name, old.Container.ID)
	}
	return e.Remove(ctx, old.Container.ID)
}

// forget removes what a creation may have left that nobody heard of.
func (e *Engine) forget(ctx context.Context, instance string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	found, err := e.cli.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", LabelInstance+"="+instance),
	})
	if err != nil {
		return // it is away, and what it has made does not run
	}
	for _, c := range found.Items {
		_ = e.Remove(ctx, c.ID)
	}
}

// answered reports whether err is the engine's own word, so that nothing was
// made.
func answered(err error) bool {
	return cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) || cerrdefs.IsInvalidArgument(err) ||
		errors.Is(err, ErrNameInUse) || cerrdefs.IsPermissionDenied(err)
}
