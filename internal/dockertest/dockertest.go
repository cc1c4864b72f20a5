// Package dockertest starts Docker engines for tests: real ones, each with its
// own containerd, socket, data and cgroup, apart from all else that the machine
// runs. It has no bridge and touches no firewall rule; containers have
// the network of the host or none.
package dockertest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
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
	body, write := io.Pipe()
	defer func() { _ = body.Close() }()
	go func() { _ = write.CloseWithError(pack(write, files, lines)) }()
	target := "http://docker/build?" + url.Values{"t": {image}, "rm": {"1"}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	resp, err := e.http().Do(req)
	if err != nil {
		return fmt.Errorf("build image %s: %w", image, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body) // the stream reports a failure half-way
	if err != nil || resp.StatusCode != http.StatusOK || strings.Contains(string(text), `"error"`) {
		return fmt.Errorf("build image %s: %s: %s", image, resp.Status, text)
	}
	return nil
}

// pack writes the context of a build.
func pack(to io.Writer, files map[string]string, lines []string) error {
	w := tar.NewWriter(to)
	recipe := "FROM scratch\n"
	for i, name := range slices.Sorted(maps.Keys(files)) {
		part := fmt.Sprintf("file%d", i)
		if err := packFile(w, part, files[name]); err != nil {
			return err
		}
		recipe += fmt.Sprintf("COPY %s %s\n", part, name)
	}
	recipe += strings.Join(lines, "\n") + "\n"
	if err := w.WriteHeader(&tar.Header{Name: "Dockerfile", Mode: 0o644, Size: int64(len(recipe))}); err != nil {
		return err
	}
	if _, err := io.WriteString(w, recipe); err != nil {
		return err
	}
	return w.Close()
}

func packFile(w *tar.Writer, name, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: info.Size(), ModTime: info.ModTime()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

func (e *Engine) http() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.socket())
	}}}
}

// ready waits until the engine answers.
func (e *Engine) ready(ctx context.Context, ended <-chan struct{}) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
		if err != nil {
			return err
		}
		if resp, err := e.http().Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
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
