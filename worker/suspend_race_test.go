package worker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Suspend of a supervisor waits for a factory or Start that is under way, and its worker
// does not run before Resume.
func TestSuspendWaitsForAStartThatIsUnderWay(t *testing.T) {
	for _, slow := range []string{"factory", "Start", "start condition"} {
		t.Run(slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				end := make(chan error)
				made := 0
				wait := func(method string) {
					if made > 1 && method == slow {
						time.Sleep(3 * time.Second)
					}
				}
				spec := worker.Spec{Name: "a", New: func(name string) (worker.Worker, error) {
					made++
					wait("factory")
					var opts []worker.FuncOption
					if slow == "start condition" {
						opts = append(opts, worker.WithStartCondition())
					}
					fn := worker.NewFunc(name, func(ctx context.Context) error {
						wait("start condition")
						worker.MarkStarted(ctx)
						if made == 1 {
							return <-end
						}
						return pausing(&n)(ctx)
					}, opts...)
					if slow == "Start" {
						return slowStart{fn, func() { wait("Start") }}, nil
					}
					return fn, nil
				}}
				s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec}})
				synctest.Wait()
				end <- errBoom
				time.Sleep(1500 * time.Millisecond) // the restart has begun, and takes three seconds
				if err := s.Suspend(t.Context()); err != nil || s.Status() != worker.StatusSuspended {
					t.Errorf("Suspend: %v, it is %s", err, s.Status())
				}
				for range 2 {
					if got := statuses(s.State()); got != "a=Suspended" {
						t.Errorf("it is %s", got)
					}
					time.Sleep(time.Hour)
					synctest.Wait()
				}
				if n.Load() != 0 {
					t.Error("it worked while its supervisor was suspended")
				}
				if err := s.Resume(t.Context()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if got := statuses(s.State()); got != "a=Running" || made != 2 || s.State().Children[0].Restarts != 1 {
					t.Errorf("after Resume it is %s, %d were made, %+v", got, made, s.State())
				}
				stop(t, s)
			})
		})
	}
}

// slowStart is a worker of a user whose Start takes time.
type slowStart struct {
	*worker.Func
	wait func()
}

func (w slowStart) Start(ctx context.Context) error {
	w.wait()
	return w.Func.Start(ctx)
}

// suspends calls Suspend with each of the contexts at once, and returns the errors.
func suspends(w worker.Suspender, ctxs ...context.Context) []error {
	errs := make([]error, len(ctxs))
	var calls sync.WaitGroup
	for i, ctx := range ctxs {
		calls.Go(func() { errs[i] = w.Suspend(ctx) })
	}
	calls.Wait()
	return errs
}

// Of two callers of Suspend, the one that gives up withdraws only its own request.
func TestSuspendThatGivesUpWithdrawsOnlyItself(t *testing.T) {
	// busy does not pause during its first second.
	busy := func(ctx context.Context) error {
		time.Sleep(time.Second)
		var n atomic.Int64
		return pausing(&n)(ctx)
	}
	kinds := map[string]func() worker.Worker{
		"func": func() worker.Worker { return worker.NewFunc("w", busy) },
		"supervisor": func() worker.Worker {
			return worker.NewSupervisor("w", worker.SupervisorConfig{Children: []worker.Spec{worker.FuncSpec("a", busy)}})
		},
		"container": func() worker.Worker {
			return worker.NewContainer("w", &slowEngine{engine: newEngine(), pause: time.Second}, worker.ContainerSpec{Image: "img"})
		},
	}
	for kind, make := range kinds {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := make()
				if err := w.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				hasty, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				patient, cancelPatient := context.WithTimeout(t.Context(), time.Minute)
				defer cancelPatient()
				began := time.Now()
				var first, second error
				var calls sync.WaitGroup
				calls.Go(func() { first = w.(worker.Suspender).Suspend(hasty); began = time.Now() })
				calls.Go(func() { second = w.(worker.Suspender).Suspend(patient) })
				calls.Wait()
				if !errors.Is(first, context.DeadlineExceeded) || second != nil || w.State().Status != worker.StatusSuspended {
					t.Errorf("the hasty one: %v; the patient one: %v; it is %s", first, second, w.State().Status)
				}
				if at, _ := hasty.Deadline(); began.Sub(at) > 200*time.Millisecond {
					t.Errorf("the hasty one returned %v after its deadline", began.Sub(at))
				}
				if err := w.(worker.Suspender).Resume(t.Context()); err != nil || w.State().Status != worker.StatusRunning {
					t.Errorf("Resume: %v, it is %s", err, w.State().Status)
				}
				stop(t, w)
			})
		})
	}
}

// A caller waits no longer than its own context allows, even while a call of another
// caller takes long.
func TestSuspendAndResumeKeepToTheirContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worker.NewFunc("w", idle) // it never pauses
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		long, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var calls sync.WaitGroup
		calls.Go(func() { _ = w.Suspend(long) })
		synctest.Wait()
		for name, call := range map[string]func(context.Context) error{"Suspend": w.Suspend, "Resume": w.Resume} {
			began := time.Now()
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_ = call(short)
			cancel()
			if took := time.Since(began); took > 200*time.Millisecond {
				t.Errorf("%s took %v with a deadline of 50 ms", name, took)
			}
		}
		calls.Wait()
		stop(t, w)
	})
}

// slowEngine takes a while to pause a container.
type slowEngine struct {
	*engine
	pause time.Duration
}

func (e *slowEngine) Pause(ctx context.Context, id string) error {
	timer := time.NewTimer(e.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return e.engine.Pause(ctx, id)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ten callers suspend one container at once: all succeed, and the container is frozen
// in the end.
func TestConcurrentSuspendsAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		fakes(t, e, worker.ContainerSpec{}, func(w *worker.Container) {
			for range 12 {
				ctxs := make([]context.Context, 10)
				for i := range ctxs {
					ctxs[i] = t.Context()
				}
				if err := errors.Join(suspends(w, ctxs...)...); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				e.set(func() {
					if !e.frozen["id1"] || w.Status() != worker.StatusSuspended {
						t.Errorf("it is %s, frozen: %v", w.Status(), e.frozen["id1"])
					}
				})
				if err := w.Resume(t.Context()); err != nil {
					t.Error(err)
				}
			}
			stop(t, w)
		})
	})
}

// A Stop ends a Suspend that waits, and the worker that was about to pause stops.
func TestStopEndsASuspendThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slowEngine{engine: newEngine(), pause: time.Second}
		w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "img"})
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var suspended error
		var calls sync.WaitGroup
		calls.Go(func() { suspended = w.Suspend(t.Context()) })
		time.Sleep(500 * time.Millisecond)
		e.set(func() { e.took = time.Second })
		stop(t, w)
		calls.Wait()
		if !errors.Is(suspended, worker.ErrNotSuspendable) || w.Status() != worker.StatusStopped || e.frozen["id1"] {
			t.Errorf("Suspend: %v, it is %s, frozen: %v", suspended, w.Status(), e.frozen["id1"])
		}
	})
}

// When a Suspend that failed could not be undone, the next Resume does it, though the
// worker is Running.
func TestResumeUndoesWhatASuspendCouldNot(t *testing.T) {
	for _, how := range []string{"error", "panic"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &rudeEngine{engine: newEngine()}
				w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "img"})
				if err := w.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				e.set(func() { e.how = how })
				if err := w.Suspend(t.Context()); err == nil || w.Status() != worker.StatusRunning || !e.frozen["id1"] {
					t.Errorf("Suspend: %v, it is %s, frozen: %v", err, w.Status(), e.frozen["id1"])
				}
				if err := w.Resume(t.Context()); err == nil {
					t.Error("Resume returns no error, though the engine does not answer")
				}
				e.set(func() { e.how = "" })
				if err := w.Resume(t.Context()); err != nil || w.Status() != worker.StatusRunning || e.frozen["id1"] {
					t.Errorf("Resume: %v, it is %s, frozen: %v", err, w.Status(), e.frozen["id1"])
				}
				if err := w.Suspend(t.Context()); err != nil || w.Status() != worker.StatusSuspended || !e.frozen["id1"] {
					t.Errorf("Suspend: %v, it is %s, frozen: %v", err, w.Status(), e.frozen["id1"])
				}
				stop(t, w)
			})
		})
	}
}

// An engine that exits the goroutine of the caller does not hold up the callers after it.
func TestSuspendThatExitsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &rudeEngine{engine: newEngine()}
		w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "img"})
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		e.set(func() { e.how = "Goexit" })
		exited := make(chan struct{})
		go func() {
			defer close(exited)
			_ = w.Suspend(t.Context())
		}()
		<-exited
		e.set(func() { e.how = "" })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Resume(ctx); err != nil || w.Status() != worker.StatusRunning || e.frozen["id1"] {
			t.Errorf("Resume: %v, it is %s, frozen: %v", err, w.Status(), e.frozen["id1"])
		}
		stop(t, w)
	})
}

// rudeEngine pauses a container and then does not say so, and does not resume it.
type rudeEngine struct {
	*engine
	how string // guarded by engine.mu; "" for an engine that works
}

func (e *rudeEngine) fail() error {
	e.mu.Lock()
	how := e.how
	e.mu.Unlock()
	switch how {
	case "error":
		return errBoom
	case "panic":
		panic(errBoom)
	case "Goexit":
		runtime.Goexit()
	}
	return nil
}

func (e *rudeEngine) Pause(ctx context.Context, id string) error {
	return errors.Join(e.engine.Pause(ctx, id), e.fail())
}

func (e *rudeEngine) Unpause(ctx context.Context, id string) error {
	if err := e.fail(); err != nil {
		return err
	}
	return e.engine.Unpause(ctx, id)
}
