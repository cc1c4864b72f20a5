package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// engine is a container engine in memory.
type engine struct {
	mu       sync.Mutex // guards everything below
	away     bool
	fail     map[string]error // by method
	deaf     bool             // containers ignore SIGTERM
	took     time.Duration    // for a container to end after SIGTERM
	code     int              // the exit code after SIGTERM
	running  map[string]chan worker.ContainerExit
	frozen   map[string]bool
	there    map[string]bool
	env      []string
	stopBy   string // the image's stop signal
	signals  []string
	panics   bool                  // in Wait
	rest     int                   // lines that Logs writes after the container's end, -1 for none and no end
	exitSoon *worker.ContainerExit // each container ends at once, with this exit
}

func newEngine() *engine {
	return &engine{code: 143, fail: map[string]error{}, running: map[string]chan worker.ContainerExit{}, frozen: map[string]bool{}, there: map[string]bool{}}
}

var errAway = errors.New("cannot connect to the engine")

func (e *engine) call(method string) error {
	if e.away {
		return errAway
	}
	return e.fail[method]
}

func (e *engine) Create(_ context.Context, spec worker.ContainerSpec) (worker.Created, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("Create"); err != nil {
		return worker.Created{}, err
	}
	e.there["id1"], e.env = true, spec.Env
	return worker.Created{ID: "id1", StopSignal: e.stopBy}, nil
}

// Logs writes a line every second, and nothing while the engine is away.
func (e *engine) Logs(ctx context.Context, id string, after time.Time, stdout, _ io.Writer) (time.Time, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		e.mu.Lock()
		err, running, rest := e.call("Logs"), e.running[id] != nil, e.rest
		if !running && e.rest > 0 {
			e.rest--
		}
		e.mu.Unlock()
		if err != nil || !running && rest == 0 {
			return after, err
		}
		if !running && rest < 0 {
			<-ctx.Done()
			return after, ctx.Err()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return after, ctx.Err()
		}
		if _, err := fmt.Fprintln(stdout, "line"); err != nil {
			return after, err
		}
		after = time.Now()
	}
}

func (e *engine) Start(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("Start"); err != nil {
		return err
	}
	e.running[id] = make(chan worker.ContainerExit, 1)
	if e.exitSoon != nil {
		e.running[id] <- *e.exitSoon
	}
	return nil
}

func (e *engine) Wait(ctx context.Context, id string) (worker.ContainerExit, error) {
	for {
		e.mu.Lock()
		err, ch, panics := e.call("Wait"), e.running[id], e.panics
		e.mu.Unlock()
		if panics {
			panic(errBoom)
		}
		if err != nil {
			return worker.ContainerExit{}, err
		}
		tick := time.NewTimer(100 * time.Millisecond) // to notice that the engine went away
		select {
		case exit := <-ch:
			tick.Stop()
			e.mu.Lock()
			delete(e.running, id)
			e.mu.Unlock()
			return exit, nil
		case <-ctx.Done():
			tick.Stop()
			return worker.ContainerExit{}, ctx.Err()
		case <-tick.C:
		}
	}
}

func (e *engine) exit(id string, exit worker.ContainerExit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.running[id] <- exit:
	default:
	}
}

func (e *engine) Signal(_ context.Context, id, name string) error {
	e.mu.Lock()
	e.signals = append(e.signals, name)
	err, deaf, frozen := e.call("Signal"), e.deaf, e.frozen[id]
	e.mu.Unlock()
	switch {
	case err != nil:
		return err
	case name == "SIGKILL":
		e.exit(id, worker.ContainerExit{Code: 137})
	case !deaf && !frozen || !deaf && name == "SIGTERM":
		time.AfterFunc(e.took, func() { e.exit(id, worker.ContainerExit{Code: e.code}) })
	}
	return nil
}

func (e *engine) Pause(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.frozen[id] = true
	return e.call("Pause")
}

func (e *engine) Unpause(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.frozen[id] = false
	return e.call("Unpause")
}

func (e *engine) Remove(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("Remove"); err != nil {
		return err
	}
	delete(e.there, id)
	delete(e.running, id)
	return nil
}

func (e *engine) left() (running, there int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.running), len(e.there)
}

// fakes runs a container on the engine in memory until it has ended, and returns
// the worker.
func fakes(t *testing.T, e *engine, spec worker.ContainerSpec, do func(w *worker.Container), opts ...worker.ContainerOption) *worker.Container {
	t.Helper()
	spec.Image = "img"
	w := worker.NewContainer("c", e, spec, opts...)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	do(w)
	<-w.Done()
	return w
}

func (e *engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}
