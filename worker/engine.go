package worker

import (
	"context"
	"errors"
	"io"
	"time"
)

// Engine runs containers: what a [Container] needs of Docker, containerd or
// Podman. Every call is bounded by its context. Methods are called concurrently.
// The package worker/docker has one for Docker.
type Engine interface {
	// Create makes a container that does not run. With an error it leaves none
	// behind, as far as it can tell.
	Create(ctx context.Context, spec ContainerSpec) (Created, error)
	// Start runs it.
	Start(ctx context.Context, id string) error
	// Wait returns once the container does not run, also when that was before
	// the call. [ErrNoContainer] says that it was removed, any other error that
	// the engine cannot tell.
	Wait(ctx context.Context, id string) (ContainerExit, error)
	// Logs copies what the container writes, from what it wrote later than the
	// given moment on, and returns once the container does not run and all was
	// copied, or with an error. last is the moment of the last piece that was
	// copied, or after itself. Copying is taken up there when an engine was away.
	Logs(ctx context.Context, id string, after time.Time, stdout, stderr io.Writer) (last time.Time, err error)
	// Signal sends a signal by name, SIGTERM, to its main process. For a
	// container that does not run it may return an error.
	Signal(ctx context.Context, id, signal string) error
	// Pause freezes the container, Unpause lets it go on. One that is so
	// already is no error.
	Pause(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Remove removes it, by force when it runs. One that is not there is no
	// error.
	Remove(ctx context.Context, id string) error
}

// ContainerSpec says what to run. What only one engine knows, ports and mounts
// among it, is told to that engine.
type ContainerSpec struct {
	Name    string            // of the container; "" lets the engine choose
	Image   string            // that the engine has
	Command []string          // in place of the image's
	Env     []string          // in the form of os.Environ, added to the image's
	Labels  map[string]string // for those who look at the engine
	// StopSignal asks it to end: SIGTERM, SIGQUIT, …. "" stands for what the
	// image says, and SIGTERM where it says nothing.
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
