package worker

import (
	"context"
	"errors"
	"io"
	"time"
)

// Engine runs containers. It has the methods of Docker, containerd or Podman that
// a [Container] needs. Each call must return when its context ends. Methods must
// be safe for concurrent use. Package worker/docker has an Engine for Docker.
type Engine interface {
	// Create makes a container that does not run. Before it returns an error, it
	// tries to remove the container.
	Create(ctx context.Context, spec ContainerSpec) (Created, error)
	// Start runs the container.
	Start(ctx context.Context, id string) error
	// Wait returns once the container does not run, at once if it ended before
	// the call. The error is [ErrNoContainer] when the container was removed. Any
	// other error means that the state of the container is unknown.
	Wait(ctx context.Context, id string) (ContainerExit, error)
	// Logs copies the container's output that is later than after. It returns
	// once the container does not run and all output was copied, or with an
	// error. last is the time of the last output that was copied, or after if
	// there was none. When the engine did not answer, the next call continues
	// from there.
	Logs(ctx context.Context, id string, after time.Time, stdout, stderr io.Writer) (last time.Time, err error)
	// Signal sends a signal, by a name such as SIGTERM, to the container's main
	// process. It may return an error for a container that does not run.
	Signal(ctx context.Context, id, signal string) error
	// Pause freezes the container, and Unpause lets it run again. They return nil
	// when the container is frozen, or running, already.
	Pause(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Remove removes the container, by force when it runs. It returns no error when
	// there is no such container.
	Remove(ctx context.Context, id string) error
}

// ContainerSpec says what to run. Settings that only one engine has, such as ports and
// mounts, are given to that engine.
type ContainerSpec struct {
	Name    string            // the container's name; "" lets the engine choose
	Image   string            // an image that the engine has
	Command []string          // replaces the image's command
	Env     []string          // in the form of os.Environ, added to the image's environment
	Labels  map[string]string // shown by the engine
	// StopSignal is the signal that asks the container to end: SIGTERM, SIGQUIT,
	// …. "" means the image's own, or SIGTERM when the image has none.
	StopSignal string
}

// Created is a container that was made.
type Created struct {
	ID         string
	StopSignal string // the image's signal that asks it to end; "" for SIGTERM
}

// ContainerExit is how a container ended.
type ContainerExit struct {
	Code int
	OOM  bool // killed because memory ran out
}

// ErrNoContainer is returned by an [Engine] for a container that does not exist.
// It also ends a [Container] that another program removed.
var ErrNoContainer = errors.New("there is no such container")

// stopSignals has the signals that ask a container to end, with their numbers in
// the container. The container runs Linux, even when this process runs on another
// system.
var stopSignals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGUSR1": 10, "SIGUSR2": 12,
	"SIGTERM": 15, "SIGWINCH": 28, "SIGPWR": 30, "SIGRTMIN+3": 37,
}
