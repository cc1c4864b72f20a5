package worker

import (
	"context"
	"errors"
	"io"
	"time"
)

// Engine runs containers. It has the methods of Docker, containerd or Podman that a
// [Container] needs. Every call is bounded by its context. Methods are called concurrently.
// The package worker/docker has one for Docker.
type Engine interface {
	// Create makes a container that does not run. When it returns an error it has
	// removed the container, if it could.
	Create(ctx context.Context, spec ContainerSpec) (Created, error)
	// Start runs it.
	Start(ctx context.Context, id string) error
	// Wait returns once the container does not run, also when that was before
	// the call. The error is [ErrNoContainer] when the container was removed. Any
	// other error means that the engine does not know.
	Wait(ctx context.Context, id string) (ContainerExit, error)
	// Logs copies the container's output that is later than after. It returns once
	// the container does not run and everything was copied, or with an error. last
	// is the time of the last piece that was copied, or after; the next call goes
	// on there when the engine did not answer.
	Logs(ctx context.Context, id string, after time.Time, stdout, stderr io.Writer) (last time.Time, err error)
	// Signal sends a signal by name, SIGTERM, to its main process. For a
	// container that does not run it may return an error.
	Signal(ctx context.Context, id, signal string) error
	// Pause freezes the container, Unpause lets it go on. They return no error
	// when it is frozen, or running, already.
	Pause(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Remove removes the container, by force when it runs. It returns no error when
	// there is no such container.
	Remove(ctx context.Context, id string) error
}

// ContainerSpec says what to run. Settings that only one engine has, such as ports and
// mounts, are given to that engine.
type ContainerSpec struct {
	Name    string            // of the container; "" lets the engine choose
	Image   string            // that the engine has
	Command []string          // in place of the image's
	Env     []string          // in the form of os.Environ, added to the image's
	Labels  map[string]string // shown by the engine
	// StopSignal asks the container to end: SIGTERM, SIGQUIT, …. "" stands for the
	// image's own, and for SIGTERM when the image has none.
	StopSignal string
}

// Created is a container that was made.
type Created struct {
	ID         string
	StopSignal string // that it is to be asked with, as its image says; "" for SIGTERM
}

// ContainerExit is how a container ended.
type ContainerExit struct {
	Code int
	OOM  bool // killed because memory ran out
}

// ErrNoContainer is returned by an [Engine] for a container that is not there,
// and ends a [Container] that another program removed.
var ErrNoContainer = errors.New("there is no such container")

// stopSignals are the signals by which a container is asked to end, with their
// numbers in the container. The container is Linux, also when this process runs on
// another system.
var stopSignals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGUSR1": 10, "SIGUSR2": 12,
	"SIGTERM": 15, "SIGWINCH": 28, "SIGPWR": 30, "SIGRTMIN+3": 37,
}
