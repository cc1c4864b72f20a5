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
	// have. Pull or load the image before, or use [WithPull].
	ErrNoImage = errors.New("the engine does not have the image")

	// ErrNameInUse is returned by Create for a name that another container has.
	// [WithReplace] replaces a container from an earlier run of this program.
	ErrNameInUse = errors.New("the name is in use")
)

// The labels of every container that an [Engine] makes.
const (
	// LabelManaged marks a container that belongs to a worker. Its value is the
	// name that [WithOwner] sets, or "" without that option.
	LabelManaged = "lifecycle-go.managed"
	// LabelInstance identifies one creation.
	LabelInstance = "lifecycle-go.instance"
)

// cleanUpTimeout bounds the search for a container that the engine may have
// made although its answer was lost.
const cleanUpTimeout = 10 * time.Second

// Engine is a [worker.Engine] on a Docker engine. It has no state except its
// options, so many Engines with different shapes can share one client. All
// methods may be called concurrently.
type Engine struct {
	refused error // of the options
	cli     *client.Client
	shape   []func(*client.ContainerCreateOptions)
	pull    *client.ImagePullOptions
	owner   string
	replace bool
}

var _ worker.Engine = (*Engine)(nil)

// Option configures an [Engine].
type Option func(*Engine)

// New returns an engine that uses cli. The caller closes cli once the workers have
// ended. cli must not have a timeout of its own, because a call waits for a container as
// long as the container runs. Create returns an error when an option is nil.
func New(cli *client.Client, opts ...Option) *Engine {
	e := &Engine{cli: cli}
	for i, opt := range opts {
		if opt == nil {
			e.refused = fmt.Errorf("option %d is nil", i+1)
			continue
		}
		opt(e)
	}
	return e
}

// WithShape lets fn complete the request of Create: ports, mounts, limits,
// networks, a user, an init. Config, HostConfig, NetworkingConfig and
// Config.Labels are not nil and have the values of the [worker.ContainerSpec].
// When the option is given several times, the functions run in order, on the
// goroutine that starts the container.
//
// Create refuses AutoRemove and a RestartPolicy, because the worker removes and
// restarts containers, and a Tty, because a worker has no terminal.
func WithShape(fn func(*client.ContainerCreateOptions)) Option {
	return func(e *Engine) { e.shape = append(e.shape, fn) }
}

// WithPull lets Create pull an image that the engine does not have, with the given
// options. Create does not update an image that the engine has. Give the worker enough
// time with [worker.WithCreateTimeout].
func WithPull(opts client.ImagePullOptions) Option { return func(e *Engine) { e.pull = &opts } }

// WithOwner names the owner of the containers: the value of [LabelManaged].
func WithOwner(name string) Option { return func(e *Engine) { e.owner = name } }

// WithReplace lets Create remove, by force, a container with the same name, if
// its [LabelManaged] has this engine's owner. Such a container is left over when
// an earlier run of the program died before it could remove it. Create never
// touches a container of another owner; it returns [ErrNameInUse] then.
//
// Two programs that run at the same time with one owner and one name would
// remove each other's containers: give each its own owner.
func WithReplace() Option { return func(e *Engine) { e.replace = true } }

// Create makes a container and does not start it. It returns [ErrNoImage],
// [ErrNameInUse], an error of the engine, or an error for a shape that a worker cannot
// have. When it does not know whether the engine has made the container, it looks for
// the container and removes it.
func (e *Engine) Create(ctx context.Context, spec worker.ContainerSpec) (worker.Created, error) {
	if e.refused != nil {
		return worker.Created{}, e.refused
	}
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
	if err != nil {
		e.forget(ctx, options.Config.Labels[LabelInstance])
		return worker.Created{}, err
	}
	return worker.Created{ID: made.ID, StopSignal: stopSignal}, nil
}

// image returns the stop signal of an image. With WithPull it pulls a missing image.
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

// options returns the request for spec.
func (e *Engine) options(spec worker.ContainerSpec) (client.ContainerCreateOptions, error) {
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = make(map[string]string, 2)
	}
	o := client.ContainerCreateOptions{
		Name: spec.Name,
		Config: &container.Config{
			Image:      spec.Image,
			Cmd:        slices.Clone(spec.Command),
			Env:        slices.Clone(spec.Env),
			Labels:     labels,
			StopSignal: spec.StopSignal,
		},
		HostConfig:       &container.HostConfig{},
		NetworkingConfig: &network.NetworkingConfig{},
	}
	for _, shape := range e.shape {
		shape(&o)
	}
	switch {
	case o.Config == nil || o.HostConfig == nil || o.Config.Labels == nil:
		return o, errors.New("the shape set Config, HostConfig or Config.Labels to nil: want it to complete them")
	case o.HostConfig.AutoRemove:
		return o, errors.New("the shape set AutoRemove: want it off, " +
			"the worker removes the container once it knows how it ended")
	case !o.HostConfig.RestartPolicy.IsNone():
		return o, fmt.Errorf("the shape set RestartPolicy %q: want none, because a supervisor restarts containers",
			o.HostConfig.RestartPolicy.Name)
	case o.Config.Tty:
		return o, errors.New("the shape set Tty: want it off, a worker has no terminal")
	}
	o.Config.Labels[LabelManaged] = e.owner
	o.Config.Labels[LabelInstance] = rand.Text()
	return o, nil
}

// makeRoom removes a container of that name if it is from an earlier run and WithReplace
// is set. conflict is the engine's error.
func (e *Engine) makeRoom(ctx context.Context, name string, conflict error) error {
	old, err := e.cli.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	switch {
	case cerrdefs.IsNotFound(err):
		return nil // another client has removed it
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrNameInUse, name, conflict)
	}
	owner, isWorkers := "", false
	if old.Container.Config != nil {
		owner, isWorkers = old.Container.Config.Labels[LabelManaged]
	}
	if isWorkers && owner == e.owner && e.replace {
		return e.Remove(ctx, old.Container.ID)
	}
	whose := "is not a worker's"
	if isWorkers {
		whose = fmt.Sprintf("belongs to a worker of the owner %q", owner)
	}
	return fmt.Errorf("%w: %s is container %.12s, which %s: "+
		"remove it, use another name, or WithReplace for one of your own", ErrNameInUse, name, old.Container.ID, whose)
}

// forget removes a container that the engine may have made although its answer was lost.
func (e *Engine) forget(ctx context.Context, instance string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	found, err := e.cli.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", LabelInstance+"="+instance),
	})
	if err != nil {
		return // the engine is away; the container does not run
	}
	for _, c := range found.Items {
		_ = e.Remove(ctx, c.ID)
	}
}
