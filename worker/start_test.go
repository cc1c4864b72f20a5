package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// setter is a worker that ends by SetStatus, without Finish.
type setter struct{ worker.BaseWorker }

func (w *setter) Start(ctx context.Context) error {
	if err := w.Begin(ctx); err != nil {
		return err
	}
	w.MarkRunning()
	return nil
}

func (w *setter) Stop(context.Context) error {
	if w.RequestStop(worker.ErrStopRequested) {
		return w.SetStatus(worker.StatusStopped)
	}
	return nil
}

// The supervisor also notices an end that a worker reports with SetStatus,
// without Finish.
func TestAWorkerThatEndsBySetStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*setter
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{{Name: "w", New: func(name string) (worker.Worker, error) {
			w := &setter{}
			w.Init("setter", name)
			all = append(all, w)
			return w, nil
		}}}})
		synctest.Wait()
		if err := all[0].SetStatus(worker.StatusFailed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(all) != 2 || statuses(s.State()) != "w=Running" {
			t.Errorf("%d instances, %s", len(all), statuses(s.State()))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
}

// The status of a worker that cannot be started is Failed, and its Start says why.
func TestAWorkerThatCannotStartIsFailed(t *testing.T) {
	idle := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for want, w := range map[string]worker.Worker{
		"start f: there is no function":     worker.NewFunc("f", nil),
		"start r: there is no function":     worker.NewRestarter("r", nil, worker.Backoff{}),
		"start b: backoff Min is -1ns":      worker.NewRestarter("b", idle, worker.Backoff{Min: -1}),
		"start p: there is no command":      worker.NewProcess("p", nil),
		"start c: there is no engine":       worker.NewContainer("c", nil, worker.ContainerSpec{Image: "i"}),
		"start s: strategy is \"sideways\"": worker.NewSupervisor("s", worker.SupervisorConfig{Strategy: "sideways"}),
	} {
		err := w.Start(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Start: %v, want %s", err, want)
		}
		if got := w.State().Status; got != worker.StatusFailed {
			t.Errorf("%s is %s", w.Name(), got)
		}
		if again := w.Start(t.Context()); !errors.Is(again, worker.ErrNotStartable) {
			t.Errorf("a second Start of %s: %v", w.Name(), again)
		}
		if stop := w.Stop(t.Context()); stop != nil {
			t.Errorf("Stop of %s: %v", w.Name(), stop)
		}
		<-w.Done()
	}
}

// FuncSpec's New never blocks. The caller may wrap it with one that does.
func TestWrappedNewMayBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		spec := worker.FuncSpec("wrapped", idle)
		spec.StartTimeout = time.Second
		plain := spec.New
		spec.New = func(name string) (worker.Worker, error) { <-release; return plain(name) }
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec, worker.FuncSpec("sibling", idle)}})
		if _, err := s.Await(t.Context(), func(s worker.Status) bool { return s == worker.StatusRunning }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		state := s.State()
		if state.Children[0].Status == worker.StatusRunning || state.Children[1].Status != worker.StatusRunning {
			t.Errorf("a New that blocks: %s, its sibling %s", state.Children[0].Status, state.Children[1].Status)
		}
		close(release)
		time.Sleep(time.Minute)
		if got := s.State().Children[0].Status; got != worker.StatusRunning {
			t.Errorf("once it returns it is %s", got)
		}
	})
}

// The caller gets the error of the start, also when a sibling fails while it is under way.
func TestRestartChildTellsItsOwnErrorWhenASiblingFails(t *testing.T) {
	fails := errors.Join(errBoom, worker.ErrDoNotRestart)
	for policy, own := range map[worker.Restart]error{worker.Never: errBoom, worker.OnFailure: fails, worker.Always: fails} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				end, fail := make(chan error), make(chan error)
				spec := worker.Spec{Name: "a", Restart: policy, New: func(name string) (worker.Worker, error) { return nil, <-fail }}
				s := supervise(t, worker.SupervisorConfig{Strategy: worker.OneForAll, Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", end)}})
				fail <- worker.ErrDoNotRestart
				synctest.Wait()
				told := make(chan error, 1)
				go func() { told <- s.RestartChild(t.Context(), "a") }()
				synctest.Wait()
				end <- errors.New("of the sibling")
				synctest.Wait()
				fail <- own
				if err := <-told; !errors.Is(err, errBoom) {
					t.Errorf("RestartChild: %v", err)
				}
				time.Sleep(time.Minute)
				if got := statuses(s.State()); got != "a=Failed b=Running" {
					t.Errorf("it is %s", got)
				}
				stop(t, s)
			})
		})
	}
}

// A worker that gives signs of progress shows the last one, and the longest time between two.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worker.Progress(t.Context()) // of no worker
		w := worker.NewFunc("loop", func(ctx context.Context) error {
			for _, d := range []time.Duration{time.Minute, time.Second, time.Hour} {
				worker.Progress(ctx)
				time.Sleep(d)
			}
			return nil
		})
		if s := w.State(); !s.Progress.IsZero() {
			t.Errorf("before its start: %+v", s)
		}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.Sleep(10 * time.Minute)
		if s := w.State(); !s.Progress.Equal(began.Add(61*time.Second).Truncate(10*time.Second)) || s.ProgressGap != time.Minute {
			t.Errorf("the last sign was at %v, the longest gap %v", s.Progress, s.ProgressGap)
		}
		<-w.Done()
	})
}
