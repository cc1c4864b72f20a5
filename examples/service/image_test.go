//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/dockertest"
)

// TestImage builds the Dockerfile with a real engine and runs the image as the
// manifests do: as the user nobody, on a read-only root, with the
// host's network. No image is pulled: the toolchain's image is replaced by
// one with a shell and a "go" that returns the binary, which was built here by
// the Dockerfile's own command from the Dockerfile's own context.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the test builds an image; the other tests run the same program without one")
	}
	if _, err := exec.LookPath("docker"); err != nil {
		dockertest.Must(t, fmt.Errorf("%w: there is no docker in PATH", dockertest.ErrUnavailable))
	}
	engine := dockertest.Need(t)
	e := &docker{env: append(os.Environ(), "DOCKER_HOST="+engine.Host(), "DOCKER_CONFIG="+t.TempDir(), "DOCKER_BUILDKIT=0")}

	standIn(t, engine)
	e.must(t, "build", "--file", "Dockerfile", "--tag", "lifecycle-service", "../..")
	for what, want := range map[string]string{
		"{{.Config.User}}": "65532:65532", "{{json .Config.Entrypoint}}": `["/service"]`, "{{.Config.StopSignal}}": "",
		"{{len .RootFS.Layers}}": "1", // only the binary
	} {
		if got := e.must(t, "image", "inspect", "--format", what, "lifecycle-service"); got != want {
			t.Errorf("%s of the image is %s, want %s", what, got, want)
		}
	}

	lastWords := filepath.Join(t.TempDir(), "termination-log") // like the kubelet's
	if err := os.WriteFile(lastWords, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(lastWords, 0o666); err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"run", "--name", "service", "--read-only", "--tmpfs", "/tmp", "--network", "host", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--volume", lastWords + ":/dev/termination-log", "lifecycle-service",
	}, append(freePorts, quick...)...)
	cmd := exec.Command("docker", args...)
	cmd.Env = e.env
	c := startCommand(t, cmd)
	t.Cleanup(func() { _, _ = e.run("rm", "--force", "service") }) // runs before the engine is closed

	url, health := c.addresses(t)
	h1 := client(t, http1)
	for _, plane := range []string{"/livez", "/readyz", "/startupz"} {
		mustCall(t, h1, "GET", health+plane, 200)
	}
	mustCall(t, h1, "POST", url+"/work?note=in+an+image", 201) // the database is in the tmpfs
	user := e.must(t, "top", "service", "-o", "pid,uid,gid,args")
	if !regexp.MustCompile(`(?m)^ *\d+ +65532 +65532 +/service `).MatchString(user) {
		t.Errorf("the container runs as\n%s\nwant user and group 65532", user)
	}
	if text, err := os.ReadFile(lastWords); err != nil || !strings.Contains(string(text), "service: running") {
		t.Errorf("while it runs the termination log has %q (%v)", text, err)
	}

	e.must(t, "kill", "--signal", "SIGTERM", "service") // the kubelet's signal for an image without STOPSIGNAL
	if code := c.exit(t); code != 0 {
		t.Errorf("exit status %d after SIGTERM, want 0", code)
	}
	if text, err := os.ReadFile(lastWords); err != nil || !strings.Contains(string(text), "service: stopped: received signal: terminated") {
		t.Errorf("the termination log ends with %q (%v)", text, err)
	}
	if diff := e.must(t, "diff", "service"); strings.Contains(diff, "A /service") || strings.Contains(diff, ".db") {
		t.Errorf("the container has written into its root:\n%s", diff)
	}
}

// standIn makes the image that the Dockerfile builds in. The files that COPY copies
// must include the service.
func standIn(t *testing.T, engine *dockertest.Engine) {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	base := regexp.MustCompile(`(?m)^FROM (\S+) AS build$`).FindSubmatch(text)
	build := regexp.MustCompile(`(?m)^RUN (.* -o )/service (.*)$`).FindSubmatch(text)
	if base == nil || build == nil {
		t.Fatalf("the Dockerfile has another form than this test knows:\n%s", text)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "service")
	sh := exec.Command("sh", "-c", string(build[1])+program+" "+string(build[2]))
	sh.Dir = "../.."
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", sh.Args, err, out)
	}
	fake := filepath.Join(dir, "go")
	if err := os.WriteFile(fake, []byte(`#!/bin/sh
[ "$CGO_ENABLED" = 0 ] && [ -f examples/service/main.go ] && [ -f go.work ] || { echo "not what was to be built"; exit 1; }
[ ! -e .git ] && [ ! -e bin ] || { echo "what .dockerignore should leave out is there"; exit 1; }
while [ "$1" != -o ]; do shift; done
exec cp /prebuilt "$2"
`), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/usr/local/go/bin/go": fake, "/prebuilt": program}
	for _, name := range []string{"sh", "cp"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		files["/bin/"+name] = path
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // it is static
		}
		for _, lib := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
			files[string(lib[1])] = string(lib[1])
		}
	}
	if err := engine.Build(t.Context(), string(base[1]), files, "ENV PATH=/usr/local/go/bin:/bin"); err != nil {
		t.Fatal(err)
	}
}

// docker is the command line of an engine.
type docker struct{ env []string }

func (e *docker) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env, cmd.Cancel = e.env, func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (e *docker) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := e.run(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
