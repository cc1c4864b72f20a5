package docker_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/internal/dockertest"
	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/pleme-io/lifecycle-go/worker/docker"
)

// soon bounds short waits, on a busy machine.
const soon = 3 * time.Minute

// shared is the engine of the tests that do not change it.
var shared struct {
	once   sync.Once
	engine *dockertest.Engine
	err    error
}

// suite runs the tests and ends the shared engine before goleak counts goroutines.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	if shared.engine != nil {
		if err := shared.engine.Close(); err != nil {
			println(err.Error())
			code = max(code, 1)
		}
	}
	if inmate.dir != "" {
		_ = os.RemoveAll(inmate.dir)
	}
	return code
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

// inmate is the program in the containers, built once.
var inmate struct {
	once      sync.Once
	dir, path string
	err       error
}

func inmatePath(t testing.TB) string {
	inmate.once.Do(func() {
		if inmate.dir, inmate.err = os.MkdirTemp("", "inmate"); inmate.err != nil {
			return
		}
		inmate.path = filepath.Join(inmate.dir, "inmate")
		build := exec.Command("go", "build", "-o", inmate.path, "./internal/inmate")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Logf("%s", out)
			inmate.err = err
		}
	})
	if inmate.err != nil {
		t.Fatal(inmate.err)
	}
	return inmate.path
}

// rig is an engine with the image "inmate", and a client of it.
type rig struct {
	*client.Client
	engine *dockertest.Engine
}

// onShared returns a rig on the shared engine.
func onShared(t testing.TB) rig {
	t.Helper()
	shared.once.Do(func() { shared.engine, shared.err = dockertest.Start() })
	dockertest.Must(t, shared.err)
	return newRig(t, shared.engine)
}

// onOwn returns a rig on an engine that the test may break.
func onOwn(t testing.TB, args ...string) rig {
	t.Helper()
	return newRig(t, dockertest.Need(t, args...))
}

func newRig(t testing.TB, e *dockertest.Engine) rig {
	t.Helper()
	cli, err := client.New(client.WithHost(e.Host()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	r := rig{cli, e}
	r.image(t, "inmate:1")
	return r
}

func (r rig) image(t testing.TB, name string, lines ...string) {
	t.Helper()
	if err := r.engine.Build(t.Context(), name, map[string]string{"/inmate": inmatePath(t)}, append(lines, `ENTRYPOINT ["/inmate"]`)...); err != nil {
		t.Fatal(err)
	}
}

// noNet is a shape that works without a bridge.
func noNet(o *client.ContainerCreateOptions) { o.HostConfig.NetworkMode = "none" }

// of returns an Engine for containers that need no network.
func (r rig) of(opts ...docker.Option) *docker.Engine {
	return docker.New(r.Client, append([]docker.Option{docker.WithShape(noNet)}, opts...)...)
}

// inmate returns a worker that runs the inmate, and its output.
func (r rig) inmate(args ...string) (*worker.Container, *output) {
	out := &output{}
	return worker.NewContainer("c", r.of(), worker.ContainerSpec{Image: "inmate:1", Command: args}, worker.WithContainerOutput(out, out)), out
}

// all lists the containers of the engine, by id.
func (r rig) all(t testing.TB) (ids []string) {
	t.Helper()
	found, err := r.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found.Items {
		ids = append(ids, c.ID)
	}
	return ids
}

// state describes a container, nil for a missing one.
func (r rig) state(t testing.TB, id string) *container.State {
	t.Helper()
	found, err := r.ContainerInspect(context.Background(), id, client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return found.Container.State
}

// start starts w, waits until it runs, and stops it at the end of the test.
func start(t testing.TB, w *worker.Container) {
	t.Helper()
	if err := w.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		_ = w.Stop(ctx)
		gone(t, w)
	})
	await(t, w, "runs", func(s worker.Status) bool { return s == worker.StatusRunning || s.Terminal() })
}

func await(t testing.TB, w *worker.Container, what string, until func(worker.Status) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if s, err := w.Await(ctx, until); err != nil {
		t.Fatalf("wait until it %s: %v; it is %s, %v", what, err, s, w.Err())
	}
}

func ended(t testing.TB, w *worker.Container) {
	t.Helper()
	await(t, w, "has ended", worker.Status.Terminal)
}

func gone(t testing.TB, w *worker.Container) {
	t.Helper()
	select {
	case <-w.Gone():
	case <-time.After(soon):
		t.Fatalf("it is %s and not gone, %v", w.Status(), w.Err())
	}
}

func stop(t testing.TB, w worker.Worker) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return w.Stop(ctx)
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this did not happen within %v: %s", soon, what)
		}
	}
}

// output is what a container has written.
type output struct {
	mu   sync.Mutex // guards the fields below
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) says(t testing.TB, text string) {
	t.Helper()
	eventually(t, strconv.Quote(text)+" is written", func() bool { return strings.Contains(o.String(), text) })
}
