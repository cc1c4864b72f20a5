package docker

import (
	"context"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Start runs the container. It returns an error when the image does not have the program
// or the engine cannot execute it.
func (e *Engine) Start(ctx context.Context, id string) error {
	_, err := e.cli.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return known(err)
}

// Wait returns once the container no longer runs, with its exit.
func (e *Engine) Wait(ctx context.Context, id string) (worker.ContainerExit, error) {
	// The client sends once, on one of the two channels, also when ctx ends. A caller
	// that does not receive leaks a goroutine of the client.
	wait := e.cli.ContainerWait(ctx, id, client.ContainerWaitOptions{})
	var exit worker.ContainerExit
	select {
	case err := <-wait.Error:
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return exit, known(err)
	case end := <-wait.Result:
		if end.Error != nil {
			return exit, errors.New(end.Error.Message)
		}
		exit.Code = int(end.StatusCode)
	}
	found, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	switch {
	case cerrdefs.IsNotFound(err): // the container was removed since; exit is known
	case err != nil:
		return exit, err
	case found.Container.State == nil:
	case found.Container.State.Running:
		// The engine has restarted and no longer knows how the container ended.
		return exit, fmt.Errorf("the engine says that container %s ended with exit code %d, and that it runs", id, exit.Code)
	default:
		exit.OOM = found.Container.State.OOMKilled
	}
	return exit, nil
}

// Signal sends a signal to the container's main process.
func (e *Engine) Signal(ctx context.Context, id, signal string) error {
	_, err := e.cli.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: signal})
	return known(err)
}

// Pause freezes all processes of the container.
func (e *Engine) Pause(ctx context.Context, id string) error {
	_, err := e.cli.ContainerPause(ctx, id, client.ContainerPauseOptions{})
	return e.unless(ctx, id, true, err)
}

// Unpause resumes all processes of the container.
func (e *Engine) Unpause(ctx context.Context, id string) error {
	_, err := e.cli.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
	return e.unless(ctx, id, false, err)
}

// unless returns nil when the container is in the wanted state, and err otherwise.
// Engines return different errors for a container that is in it already.
func (e *Engine) unless(ctx context.Context, id string, paused bool, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	found, look := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if look == nil && found.Container.State != nil && found.Container.State.Paused == paused {
		return nil
	}
	return known(err)
}

// Remove removes the container with its anonymous volumes, by force when it runs.
func (e *Engine) Remove(ctx context.Context, id string) error {
	_, err := e.cli.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// known turns the engine's error for a missing container into the worker's.
func known(err error) error {
	if cerrdefs.IsNotFound(err) {
		return fmt.Errorf("%w: %w", worker.ErrNoContainer, err)
	}
	return err
}
