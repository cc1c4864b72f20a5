package worker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// muteError is an error whose Error blocks until release is closed.
type muteError struct{ release chan struct{} }

func (e muteError) Error() string {
	<-e.release
	return "at last"
}

// mute is a foreign worker that ends with a muteError.
type mute struct {
	foreign
	err error
}

func (m *mute) Err() error { return m.err }

// TestErrorWithoutATextStopsNoSupervisor has a foreign child whose Err returns an
// error that blocks in Error. The supervisor goes on, restarts the child and stops
// in time.
func TestErrorWithoutATextStopsNoSupervisor(t *testing.T) {
	for _, based := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var mu sync.Mutex // guards last and made
			var last func()
			made := 0
			spec := worker.Spec{Name: "f", New: func(name string) (worker.Worker, error) {
				mu.Lock()
				defer mu.Unlock()
				made++
				m := &mute{foreign: foreign{name: name, done: make(chan struct{}), stop: func(_ context.Context, end func()) error { end(); return nil }}, err: muteError{release}}
				last = m.end
				if !based {
					return m, nil
				}
				b := &mutedBase{mute: m}
				b.Init("muted", name)
				last = func() { b.Finish(nil) }
				return b, nil
			}}
			s := worker.NewSupervisor("s", worker.SupervisorConfig{Backoff: steady(), Children: []worker.Spec{
				spec,
				worker.FuncSpec("healthy", func(ctx context.Context) error { <-ctx.Done(); return nil }),
			}})
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			mu.Lock()
			last()
			mu.Unlock()
			time.Sleep(20 * time.Second)
			mu.Lock()
			if made < 2 {
				t.Errorf("based %v: the child was made %d times, want a restart", based, made)
			}
			mu.Unlock()
			if exit := s.State().Children[0].Exit; exit == nil || !strings.Contains(exit.Error, "did not return") {
				t.Errorf("based %v: its exit is %+v, want one that says that the error did not return", based, exit)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := s.Stop(ctx); err != nil {
				t.Errorf("based %v: Stop: %v", based, err)
			}
			close(release)
			<-s.Gone()
		})
	}
}

// mutedBase is such a worker that embeds BaseWorker.
type mutedBase struct {
	worker.BaseWorker
	*mute
}

func (b *mutedBase) Name() string { return b.BaseWorker.Name() }
func (b *mutedBase) Start(ctx context.Context) error {
	if err := b.Begin(ctx); err != nil {
		return err
	}
	b.MarkRunning()
	return nil
}
func (b *mutedBase) Stop(context.Context) error { b.RequestStop(nil); b.Finish(nil); return nil }
func (b *mutedBase) Done() <-chan struct{}      { return b.BaseWorker.Done() }
func (b *mutedBase) Err() error                 { return b.mute.Err() }
func (b *mutedBase) State() worker.State        { return b.BaseWorker.State() }
