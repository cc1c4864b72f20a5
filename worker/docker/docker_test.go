package docker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/pleme-io/lifecycle-go/worker/docker"
)

func TestContainerEnds(t *testing.T) {
	r := onShared(t)
	memory := docker.WithShape(func(o *client.ContainerCreateOptions) {
		o.HostConfig.Memory, o.HostConfig.MemorySwap = 32<<20, 32<<20
	})
	tests := map[string]struct {
		args   []string
		opts   []docker.Option
		do     func(t *testing.T, w *worker.Container) // once it is ready
		want   worker.Status
		says   string
		exit   worker.Exit
		killed bool
	}{
		"exits at once":  {args: []string{"exit", "0"}, want: worker.StatusFinished},
		"exits with 3":   {args: []string{"exit", "3"}, want: worker.StatusFailed, says: "exit code 3", exit: worker.Exit{Code: 3}},
		"obeys":          {args: []string{"until", "15", "0"}, do: stopIt, want: worker.StatusStopped},
		"dies of it":     {args: []string{"until", "15", "143"}, do: stopIt, want: worker.StatusStopped, says: "interrupted", exit: worker.Exit{Code: 143}},
		"fails stopping": {args: []string{"until", "15", "7"}, do: stopIt, want: worker.StatusFailed, says: "exit code 7", exit: worker.Exit{Code: 7}},
		"deaf":           {args: []string{"deaf"}, do: stopIt, want: worker.StatusKilled, says: "was killed", exit: worker.Exit{Code: 137}},
		"out of memory":  {args: []string{"grow"}, opts: []docker.Option{memory}, do: waitFor, want: worker.StatusFailed, says: "out of memory", exit: worker.Exit{Code: 137, OOM: true}},
		"killed by another client": {args: []string{"deaf"}, want: worker.StatusFailed, says: "exit code 137", exit: worker.Exit{Code: 137}, do: func(t *testing.T, w *worker.Container) {
			if err := r.of().Signal(t.Context(), w.ID(), "SIGKILL"); err != nil {
				t.Error(err)
			}
			ended(t, w)
		}},
		"removed by another client": {args: []string{"deaf"}, want: worker.StatusFailed, says: "container ", exit: worker.Exit{Code: 137}, do: func(t *testing.T, w *worker.Container) {
			if err := r.of().Remove(t.Context(), w.ID()); err != nil {
				t.Error(err)
			}
			ended(t, w)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out := &output{}
			grace := soon
			if test.want == worker.StatusKilled {
				grace = time.Second // it uses all of it
			}
			run := func() *worker.Container {
				w := worker.NewContainer("c", r.of(test.opts...), worker.ContainerSpec{Image: "inmate:1", Command: test.args},
					worker.WithContainerGrace(grace), worker.WithContainerOutput(out, out))
				start(t, w)
				if test.do != nil {
					out.says(t, "ready")
					test.do(t, w)
				}
				ended(t, w)
				gone(t, w)
				return w
			}
			w := run()
			for tries := 1; test.exit.OOM && tries < 5 && !w.State().Exit.OOM; tries++ {
				t.Log("the engine told of the memory after the end of the container: once more")
				w = run()
			}
			if w.Status() != test.want {
				t.Errorf("it is %s, want %s", w.Status(), test.want)
			}
			if err := w.Err(); (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("Err() is %v", err)
			}
			exit := w.State().Exit
			if exit == nil || exit.Code != test.exit.Code || exit.OOM != test.exit.OOM || exit.Status != test.want {
				t.Errorf("its exit is %+v", exit)
			}
			if s := r.state(t, w.ID()); s != nil {
				t.Errorf("the container is still there, %s", s.Status)
			}
		})
	}
}

func stopIt(t *testing.T, w *worker.Container) {
	if err := stop(t, w); (err != nil) != (w.Status() == worker.StatusKilled) {
		t.Errorf("Stop: %v, it is %s", err, w.Status())
	}
}

func waitFor(t *testing.T, w *worker.Container) { ended(t, w) }

// Do not trust the engine's state: check that the program does not run.
func TestStoppedMeansThatTheProgramIsGone(t *testing.T) {
	r := onShared(t)
	for _, args := range [][]string{{"until", "15", "0"}, {"deaf"}} {
		w, out := r.inmate(args...)
		start(t, w)
		out.says(t, "ready")
		pid := r.state(t, w.ID()).Pid
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // shorter than the grace
		_ = w.Stop(ctx)
		cancel()
		gone(t, w) // an engine with much to do needs longer than the rest of the time
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: it is %s and process %d runs: %v", args, w.Status(), pid, err)
		}
	}
}

func TestCreationErrors(t *testing.T) {
	r := onShared(t)
	shaped := func(fn func(*client.ContainerCreateOptions)) *docker.Engine { return r.of(docker.WithShape(fn)) }
	tests := map[string]struct {
		engine *docker.Engine
		spec   worker.ContainerSpec
		is     error
		says   string
	}{
		"no image":       {r.of(), worker.ContainerSpec{Image: "example/has-this:1"}, docker.ErrNoImage, "example/has-this:1: pull or load it before, or use WithPull"},
		"no program":     {shaped(func(o *client.ContainerCreateOptions) { o.Config.Entrypoint = []string{"/nope"} }), worker.ContainerSpec{Image: "inmate:1"}, nil, "no such file"},
		"bad name":       {r.of(), worker.ContainerSpec{Image: "inmate:1", Name: "a b"}, nil, "Invalid container name"},
		"bad image":      {r.of(), worker.ContainerSpec{Image: "UPPER:::"}, nil, "UPPER"},
		"removes itself": {shaped(func(o *client.ContainerCreateOptions) { o.HostConfig.AutoRemove = true }), worker.ContainerSpec{Image: "inmate:1"}, nil, "the shape set AutoRemove"},
		"restarts itself": {shaped(func(o *client.ContainerCreateOptions) {
			o.HostConfig.RestartPolicy = container.RestartPolicy{Name: "always"}
		}), worker.ContainerSpec{Image: "inmate:1"}, nil, `the shape set RestartPolicy "always"`},
		"has a terminal": {shaped(func(o *client.ContainerCreateOptions) { o.Config.Tty = true }), worker.ContainerSpec{Image: "inmate:1"}, nil, "the shape set Tty"},
		"shaped to nil":  {shaped(func(o *client.ContainerCreateOptions) { o.Config = nil }), worker.ContainerSpec{Image: "inmate:1"}, nil, "the shape set Config, HostConfig or Config.Labels to nil"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			before := len(r.all(t))
			w := worker.NewContainer("c", test.engine, test.spec)
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			ended(t, w)
			gone(t, w)
			if err := w.Err(); w.Status() != worker.StatusFailed || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(fmt.Sprint(err), test.says) {
				t.Errorf("it is %s, %v", w.Status(), err)
			}
			if after := len(r.all(t)); after != before {
				t.Errorf("%d containers before, %d after", before, after)
			}
		})
	}
}

func TestNameInUse(t *testing.T) {
	r := onShared(t)
	spec := worker.ContainerSpec{Name: "taken", Image: "inmate:1", Command: []string{"deaf"}}
	tests := map[string]struct {
		old, own *docker.Engine
		says     string // "" when the old container is replaced
	}{
		"of a former run":           {r.of(), r.of(), `of the owner ""`},
		"of another owner":          {r.of(docker.WithOwner("a")), r.of(docker.WithOwner("b"), docker.WithReplace()), `of the owner "a"`},
		"unmanaged":                 {nil, r.of(docker.WithReplace()), "not a worker's"},
		"of a former run, replaced": {r.of(docker.WithOwner("a")), r.of(docker.WithOwner("a"), docker.WithReplace()), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var old string
			if test.old == nil {
				made, err := r.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: spec.Name, Image: spec.Image, Config: &container.Config{Cmd: spec.Command}, HostConfig: &container.HostConfig{NetworkMode: "none"}})
				if err != nil {
					t.Fatal(err)
				}
				old = made.ID
			} else {
				made, err := test.old.Create(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				old = made.ID
			}
			if err := r.of().Start(t.Context(), old); err != nil {
				t.Fatal(err)
			}
			made, err := test.own.Create(t.Context(), spec)
			defer func() {
				for _, id := range []string{old, made.ID} {
					if id != "" {
						_ = r.of().Remove(context.Background(), id)
					}
				}
			}()
			switch {
			case test.says == "" && (err != nil || r.state(t, old) != nil || made.ID == old):
				t.Errorf("Create: %v, the old one is %v", err, r.state(t, old))
			case test.says != "" && (!errors.Is(err, docker.ErrNameInUse) || !strings.Contains(err.Error(), test.says) || r.state(t, old) == nil || !r.state(t, old).Running):
				t.Errorf("Create: %v, the old one is %+v", err, r.state(t, old))
			}
		})
	}
}

func TestTheCallersShape(t *testing.T) {
	r := onShared(t)
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("mounted"), 0o644); err != nil {
		t.Fatal(err)
	}
	engine := r.of(docker.WithOwner("me"), docker.WithShape(func(o *client.ContainerCreateOptions) {
		o.HostConfig.Mounts = []mount.Mount{{Type: mount.TypeBind, Source: file, Target: "/config", ReadOnly: true}}
		o.Config.Hostname = "shaped"
	}))
	out := &output{}
	w := worker.NewContainer("c", engine, worker.ContainerSpec{
		Image: "inmate:1", Command: []string{"read", "/config"}, Labels: map[string]string{"team": "red"},
	}, worker.WithContainerOutput(out, nil))
	start(t, w)
	ended(t, w)
	if out.String() != "mounted <nil>\n" {
		t.Errorf("it read %q, %v", out, w.Err())
	}
	made, err := engine.Create(t.Context(), worker.ContainerSpec{Image: "inmate:1", Labels: map[string]string{"team": "red"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Remove(context.Background(), made.ID) }()
	found, err := r.ContainerInspect(t.Context(), made.ID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c := found.Container.Config; c.Labels["team"] != "red" || c.Labels[docker.LabelManaged] != "me" || c.Labels[docker.LabelInstance] == "" || c.Hostname != "shaped" {
		t.Errorf("it was made as %+v", c)
	}
}

func TestContainerGetsTheSignalOfItsImage(t *testing.T) {
	r := onShared(t)
	r.image(t, "quits:1", "STOPSIGNAL SIGQUIT")
	tests := map[string]struct{ spec, number string }{
		"the image's":  {"", "3"},
		"the caller's": {"SIGINT", "2"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out := &output{}
			w := worker.NewContainer("c", r.of(), worker.ContainerSpec{Image: "quits:1", Command: []string{"until", test.number, "0"}, StopSignal: test.spec},
				worker.WithContainerOutput(out, out))
			start(t, w)
			out.says(t, "ready")
			if err := stop(t, w); err != nil || w.Status() != worker.StatusStopped {
				t.Errorf("Stop: %v, it is %s, %v", err, w.Status(), w.Err())
			}
			out.says(t, "bye")
		})
	}
}

func TestSuspendedContainerIsFrozen(t *testing.T) {
	r := onShared(t)
	out := &output{}
	w := worker.NewContainer("c", r.of(), worker.ContainerSpec{Image: "inmate:1", Command: []string{"count"}},
		worker.WithContainerOutput(out, out), worker.WithContainerGrace(time.Second))
	start(t, w)
	out.says(t, "1\n")
	for range 2 { // the second does nothing
		if err := w.Suspend(t.Context()); err != nil || w.Status() != worker.StatusSuspended || !r.state(t, w.ID()).Paused {
			t.Fatalf("Suspend: %v, it is %s", err, w.Status())
		}
	}
	if err := w.Resume(t.Context()); err != nil || w.Status() != worker.StatusRunning || r.state(t, w.ID()).Paused {
		t.Fatalf("Resume: %v, it is %s", err, w.Status())
	}
	seen := len(out.String())
	eventually(t, "it goes on", func() bool { return len(out.String()) > seen })

	// A frozen container can be stopped.
	quick, quiet := r.inmate("until", "15", "0")
	start(t, quick)
	quiet.says(t, "ready")
	if err := quick.Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stop(t, quick); err != nil || quick.Status() != worker.StatusStopped {
		t.Errorf("Stop: %v, it is %s, %v", err, quick.Status(), quick.Err())
	}

	// A container that another client has paused or unpaused is not an error.
	e := r.of()
	for _, call := range []func(context.Context, string) error{e.Unpause, e.Pause, e.Pause, e.Unpause, e.Unpause} {
		if err := call(t.Context(), w.ID()); err != nil {
			t.Error(err)
		}
	}
}

func TestContainerIsHandedOver(t *testing.T) {
	r := onShared(t)
	out := &output{}
	s := worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff: worker.Backoff{Min: time.Millisecond, Max: time.Millisecond, MaxRestarts: 1000},
		Children: []worker.Spec{{Name: "c", New: func(name string) (worker.Worker, error) {
			return worker.NewContainer(name, r.of(), worker.ContainerSpec{
				Name: "stable", Image: "inmate:1", Command: []string{"env"}, Env: []string{"TEST_MINE=1", worker.EnvSession + "=mine"},
			}, worker.WithContainerOutput(out, out)), nil
		}}},
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	out.says(t, `LIFECYCLE_PREVIOUS_EXIT={"status":"Failed"`)
	if err := stop(t, s); err != nil {
		t.Error(err)
	}
	text := out.String()
	for _, want := range []string{"TEST_MINE=1\n", "LIFECYCLE_RESTARTS=0\n", "LIFECYCLE_RESTARTS=1\n", `"code":3`} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "SESSION=mine") {
		t.Errorf("the process's own session hides the session handed over:\n%s", text)
	}
}
