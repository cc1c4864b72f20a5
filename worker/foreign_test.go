package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// foreign is a worker of somebody else's making, without BaseWorker.
type foreign struct {
	name string
	stop func(ctx context.Context, end func()) error
	done chan struct{}
	once sync.Once
}

func (f *foreign) Name() string                { return f.name }
func (f *foreign) Start(context.Context) error { return nil }
func (f *foreign) Done() <-chan struct{}       { return f.done }
func (f *foreign) Err() error                  { return nil }
func (f *foreign) end()                        { f.once.Do(func() { close(f.done) }) }
func (f *foreign) Stop(ctx context.Context) error {
	return f.stop(ctx, f.end)
}

func (f *foreign) State() worker.State {
	s := worker.State{Name: f.name, Kind: "foreign", Status: worker.StatusRunning}
	select {
	case <-f.done:
		s.Status = worker.StatusStopped
	default:
	}
	return s
}

func TestForeignWorkers(t *testing.T) {
	release := make(chan struct{})
	tests := map[string]struct {
		stop  func(ctx context.Context, end func()) error
		late  bool // it lives on after the stop
		says  string
		ended worker.Status
	}{
		"well behaved":            {func(_ context.Context, end func()) error { end(); return nil }, false, "", worker.StatusStopped},
		"Stop blocks":             {func(_ context.Context, end func()) error { <-release; end(); return nil }, true, "did not keep to its context", worker.StatusKilled},
		"Stop returns before":     {func(context.Context, func()) error { return nil }, true, "returned before it had ended", worker.StatusKilled},
		"Stop panics":             {func(context.Context, func()) error { panic(errBoom) }, true, "boom", worker.StatusKilled},
		"Stop ends it and panics": {func(_ context.Context, end func()) error { end(); panic(errBoom) }, false, "", worker.StatusStopped},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release = make(chan struct{})
				var d diary
				var all []*foreign
				spec := worker.Spec{Name: "f", StopTimeout: time.Second, New: func(name string) (worker.Worker, error) {
					f := &foreign{name: name, stop: test.stop, done: make(chan struct{})}
					all = append(all, f)
					return f, nil
				}}
				s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", nil), spec}})
				synctest.Wait()
				all[0].end() // by itself: it is restarted
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got := statuses(s.State()); got != "a=Running f=Running" || len(all) != 2 {
					t.Errorf("it is %s, %d instances", got, len(all))
				}
				began := time.Now()
				err := s.Stop(context.Background())
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("Stop took %v", took)
				}
				if s.Status() != test.ended || (err != nil) != (test.says != "") || err != nil && !strings.Contains(err.Error(), test.says) {
					t.Errorf("Stop: %v, it is %s", err, s.Status())
				}
				var left *worker.AbandonedError
				if test.late && (!errors.As(err, &left) || left.Name != "f") {
					t.Errorf("Stop: %v", err)
				}
				select {
				case <-s.Gone():
					if test.late {
						t.Error("it is gone while a child of it lives")
					}
				default:
					if !test.late {
						t.Error("it is not gone")
					}
				}
				close(release)
				all[1].end()
				<-s.Gone()
			})
		})
	}
}
