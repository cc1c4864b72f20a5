package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// A supervised unit of a running App is restarted by its path, and the App goes on; any
// other unit is refused, and so is every unit once the App drains.
func TestRestartUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		runs := map[string]*atomic.Int64{}
		run := func(name string) func(context.Context) error {
			n := new(atomic.Int64)
			runs[name] = n
			return func(ctx context.Context) error { n.Add(1); <-ctx.Done(); return ctx.Err() }
		}
		did := func(name string) int64 { return runs[name].Load() }
		r.Supervise("poller", run("poller"), lifecycle.DefaultBackoff()).
			Go("go", run("go")).
			Job("job", run("job")).
			Add(worker.NewSupervisor("pool", worker.SupervisorConfig{Children: []worker.Spec{worker.FuncSpec("w1", run("w1")), worker.FuncSpec("w2", run("w2"))}}))
		if err := r.RestartUnit(t.Context(), "poller"); !errors.Is(err, worker.ErrNotRestartable) || !strings.Contains(err.Error(), "the app is created") {
			t.Errorf("before Run: %v", err)
		}
		over := make(chan error, 1)
		go func() { over <- r.Run(context.Background()) }()
		<-r.Reached(lifecycle.PhaseRunning)
		synctest.Wait()
		for _, path := range []string{"poller", "pool/w2"} {
			if err := r.RestartUnit(t.Context(), path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		synctest.Wait()
		if did("poller") != 2 || did("w2") != 2 || did("w1") != 1 || did("go") != 1 || did("job") != 1 || r.Phase() != lifecycle.PhaseRunning {
			t.Errorf("runs: %d %d %d %d %d; the app is %s", did("poller"), did("w2"), did("w1"), did("go"), did("job"), r.Phase())
		}
		for path, want := range map[string]error{"go": worker.ErrNotRestartable, "job": worker.ErrNotRestartable, "pool": worker.ErrNotRestartable, "": worker.ErrNoChild, "poll": worker.ErrNoChild, "pool/w3": worker.ErrNoChild} {
			if err := r.RestartUnit(t.Context(), path); !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "restart "+path+": ") {
				t.Errorf("%q: %v, want %v", path, err, want)
			}
		}
		r.signalAfter(time.Second, syscall.SIGTERM)
		<-r.Reached(lifecycle.PhaseStopping)
		if err := r.RestartUnit(t.Context(), "poller"); !errors.Is(err, worker.ErrNotRestartable) || !strings.Contains(err.Error(), "the app is ") {
			t.Errorf("while it drains: %v", err)
		}
		if err := <-over; !errors.Is(err, context.Canceled) && err != nil && !strings.Contains(err.Error(), "job") {
			t.Error(err)
		}
		if n := did("poller"); n != 2 {
			t.Errorf("%d runs", n)
		}
	})
}
