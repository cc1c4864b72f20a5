package docker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/pleme-io/lifecycle-go/worker/docker"
)

// isWhatTheEngineHas checks that copied is what the engine's own log has from the beginning.
func (r rig) isWhatTheEngineHas(t *testing.T, id, copied string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log, read := &output{}, make(chan struct{})
	go func() {
		defer close(read)
		_, _ = r.of().Logs(ctx, id, time.Time{}, log, io.Discard) // it follows the log until ctx ends
	}()
	defer func() { cancel(); <-read }()
	eventually(t, "the engine's log to be read", func() bool { return len(log.String()) >= len(copied) })
	if !strings.HasPrefix(log.String(), copied) {
		t.Errorf("copied is\n%s\nand the engine has\n%s", copied, log)
	}
}

// goneOnceBack checks that an ended worker is not gone while its engine is away.
// Once the engine is back, the container is removed and the worker is gone.
func (r rig) goneOnceBack(t *testing.T, w *worker.Container, back func() error) {
	t.Helper()
	select {
	case <-w.Gone():
		t.Error("it is gone while its container runs")
	default:
	}
	if err := back(); err != nil {
		t.Fatal(err)
	}
	gone(t, w)
	if s := r.state(t, w.ID()); s != nil {
		t.Errorf("the container is %s", s.Status)
	}
}

// Containers outlive an engine with --live-restore, which most production
// engines have.
func TestRestartOfTheEngineCostsNothing(t *testing.T) {
	r := onOwn(t, "--live-restore")
	out := &output{}
	w := worker.NewContainer("c", r.of(), worker.ContainerSpec{Image: "inmate:1", Command: []string{"count"}},
		worker.WithContainerOutput(out, nil), worker.WithContainerGrace(time.Second))
	start(t, w)
	pid := r.state(t, w.ID()).Pid
	for _, way := range []struct {
		name string
		end  func() error
	}{{"ends as it should", r.engine.Shutdown}, {"is killed", r.engine.Kill}} {
		name := way.name
		out.says(t, "\n")
		if err := way.end(); err != nil {
			t.Fatal(err)
		}
		seen := len(out.String())
		if err := r.engine.Again(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "output goes on after an engine "+name, func() bool { return len(out.String()) > seen })
		if w.Status() != worker.StatusRunning || r.state(t, w.ID()).Pid != pid {
			t.Fatalf("after an engine that %s it is %s, %v, %+v", name, w.Status(), w.Err(), r.state(t, w.ID()))
		}
	}
	r.isWhatTheEngineHas(t, w.ID(), out.String())
	_ = stop(t, w)
	gone(t, w)
	// An engine that ends may lose the line that it has read and not written to its log.
	last := -1
	for line := range strings.Lines(out.String()) {
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || n <= last {
			t.Fatalf("%q follows %d: output was copied twice", line, last)
		}
		last = n
	}
}

// An engine without --live-restore stops its containers when it shuts down.
func TestEngineTakesItsContainersAlong(t *testing.T) {
	r := onOwn(t)
	w, out := r.inmate("until", "15", "0")
	start(t, w)
	out.says(t, "ready")
	if err := r.engine.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Again(); err != nil {
		t.Fatal(err)
	}
	ended(t, w)
	gone(t, w)
	// The worker was not asked to stop, and its container ended by itself with 0.
	if w.Status() != worker.StatusFinished {
		t.Errorf("it is %s, %v", w.Status(), w.Err())
	}
	out.says(t, "bye")
	if left := r.all(t); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

func TestEngineThatStaysAway(t *testing.T) {
	r := onOwn(t, "--live-restore")
	out := &output{}
	w := worker.NewContainer("c", r.of(), worker.ContainerSpec{Image: "inmate:1", Command: []string{"deaf"}},
		worker.WithEnginePatience(2*time.Second), worker.WithContainerOutput(out, out))
	start(t, w)
	out.says(t, "ready")
	if err := r.engine.Kill(); err != nil {
		t.Fatal(err)
	}
	ended(t, w)
	if err := w.Err(); w.Status() != worker.StatusFailed || !strings.Contains(err.Error(), w.ID()+" may still run") {
		t.Errorf("it is %s, %v", w.Status(), err)
	}
	r.goneOnceBack(t, w, r.engine.Again)
}

// An engine that accepts connections and never answers must not delay a Stop.
func TestEngineThatHangs(t *testing.T) {
	r := onOwn(t)
	w, out := r.inmate("until", "15", "0")
	start(t, w)
	out.says(t, "ready")
	if err := r.engine.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var left *worker.AbandonedError
	if err := w.Stop(ctx); !errors.As(err, &left) || !strings.Contains(left.Where, w.ID()) || w.Status() != worker.StatusKilled {
		t.Errorf("Stop: %v, it is %s", err, w.Status())
	}
	r.goneOnceBack(t, w, r.engine.Thaw)
}

// A Create whose answer is lost must leave no container. The engine is real; a proxy
// drops the answer.
func TestCreationWhoseAnswerIsLost(t *testing.T) {
	r := onOwn(t)
	var made atomic.Int64
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(req *httputil.ProxyRequest) { req.Out.URL.Scheme, req.Out.URL.Host = "http", "docker" },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(r.engine.Host(), "unix://"))
		}},
		ModifyResponse: func(resp *http.Response) error {
			if strings.HasSuffix(resp.Request.URL.Path, "/containers/create") && resp.StatusCode == http.StatusCreated {
				made.Add(1)
				panic(http.ErrAbortHandler) // the connection ends
			}
			return nil
		},
	})
	defer proxy.Close()
	cli, err := client.New(client.WithHost("tcp://" + strings.TrimPrefix(proxy.URL, "http://")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cli.Close() }()
	_, err = docker.New(cli).Create(t.Context(), worker.ContainerSpec{Name: "unheard", Image: "inmate:1"})
	if err == nil || made.Load() != 1 {
		t.Errorf("Create: %v, %d were made", err, made.Load())
	}
	if left := r.all(t); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// A Stop while the engine makes the container cancels the request.
func TestStopDuringTheCreation(t *testing.T) {
	r := onOwn(t)
	w, _ := r.inmate("deaf")
	if err := r.engine.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stop(t, w); err != nil || w.Status() != worker.StatusStopped {
		t.Errorf("Stop: %v, it is %s, %v", err, w.Status(), w.Err())
	}
	if err := r.engine.Thaw(); err != nil {
		t.Fatal(err)
	}
	gone(t, w)
	if left := r.all(t); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

func TestContainerThatIsNotThere(t *testing.T) {
	r := onShared(t)
	if _, err := r.of().Wait(t.Context(), "unknown"); !errors.Is(err, worker.ErrNoContainer) {
		t.Errorf("Wait: %v", err)
	}
	if err := r.of().Start(t.Context(), "unknown"); !errors.Is(err, worker.ErrNoContainer) {
		t.Errorf("Start: %v", err)
	}
	if err := r.of().Remove(t.Context(), "unknown"); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func TestNoEngine(t *testing.T) {
	cli, err := client.New(client.WithHost("unix:///nowhere/docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cli.Close() }()
	w := worker.NewContainer("c", docker.New(cli), worker.ContainerSpec{Image: "inmate:1"})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended(t, w)
	gone(t, w)
	if err := w.Err(); w.Status() != worker.StatusFailed || !strings.Contains(err.Error(), "create container: look for image inmate:1: ") || !client.IsErrConnectionFailed(err) {
		t.Errorf("it is %s, %v", w.Status(), err)
	}
}
