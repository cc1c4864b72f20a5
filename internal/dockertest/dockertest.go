// Package dockertest starts Docker engines for tests: real ones, each with its
// own containerd, socket, data and cgroup, apart from all else that the machine
// runs. It has no bridge and touches no firewall rule; containers have
// the network of the host or none.
package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// RequireEnv is an environment variable. When it is 1, a test that needs an
// engine fails where it would be skipped.
const RequireEnv = "LIFECYCLE_REQUIRE_DOCKER"

// ErrUnavailable says that no engine can be started here, and what is missing.
var ErrUnavailable = errors.New("no Docker engine can be started here")

// Need starts an engine that runs until the test ends. Where no engine can run,
// Need skips the test, or fails it when [RequireEnv] is 1.
func Need(t testing.TB, args ...string) *Engine {
	t.Helper()
	e, err := Start(args...)
	Must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the engine's log ends with\n%s", e.logTail())
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Must ends the test when err is not nil. For [ErrUnavailable] it skips the test,
// unless [RequireEnv] is 1.
func Must(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, ErrUnavailable) && os.Getenv(RequireEnv) != "1":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// Host is the engine's address, as DOCKER_HOST has it.
func (e *Engine) Host() string { return "unix://" + e.socket() }

// Build makes an image from scratch with files of this machine, which are given
// by their path in the image. Each further argument is a line of a Dockerfile,
// such as STOPSIGNAL SIGQUIT. Build pulls nothing.
func (e *Engine) Build(ctx context.Context, image string, files map[string]string, lines ...string) error {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, "root", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o755)); err != nil {
			return err
		}
	}
	recipe := "FROM scratch\nCOPY root /\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(recipe), 0o644); err != nil {
		return err
	}
	return e.docker(ctx, "build", "--tag", image, dir)
}

// docker runs Docker's own client.
func (e *Engine) docker(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.Host(), "DOCKER_CONFIG=/nonexistent", "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// ready waits until the engine answers.
func (e *Engine) ready(ctx context.Context, ended <-chan struct{}) error {
	for {
		if e.docker(ctx, "version") == nil {
			return nil
		}
		select {
		case <-ended:
			return errors.New("the engine ended at once")
		case <-ctx.Done():
			return fmt.Errorf("the engine does not answer: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
