package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestContainerEnds(t *testing.T) {
	tests := map[string]struct {
		set  func(*engine)
		stop bool
		want worker.Status
		says string
		path string
	}{
		"exits at once":    {func(e *engine) { e.exitSoon = &worker.ContainerExit{} }, false, worker.StatusFinished, "", "Starting Running Finished"},
		"exits with 3":     {func(e *engine) { e.exitSoon = &worker.ContainerExit{Code: 3} }, false, worker.StatusFailed, "exit code 3", "Starting Running Failed"},
		"out of memory":    {func(e *engine) { e.exitSoon = &worker.ContainerExit{Code: 137, OOM: true} }, false, worker.StatusFailed, "out of memory", "Starting Running Failed"},
		"obeys":            {func(e *engine) { e.took = 3 * time.Second }, true, worker.StatusStopped, "interrupted", "Starting Running Stopping Stopped"},
		"obeys, exits 0":   {func(e *engine) { e.code = 0 }, true, worker.StatusStopped, "", "Starting Running Stopping Stopped"},
		"obeys, exits 1":   {func(e *engine) { e.code = 1 }, true, worker.StatusFailed, "exit code 1", "Starting Running Stopping Failed"},
		"deaf":             {func(e *engine) { e.deaf = true }, true, worker.StatusKilled, "was killed", "Starting Running Stopping Killed"},
		"create fails":     {func(e *engine) { e.fail["Create"] = errBoom }, false, worker.StatusFailed, "create container: boom", "Starting Failed"},
		"start fails":      {func(e *engine) { e.fail["Start"] = errBoom }, false, worker.StatusFailed, "start container id1: boom", "Starting Failed"},
		"engine goes away": {func(e *engine) { time.AfterFunc(time.Second, func() { e.mu.Lock(); e.away = true; e.mu.Unlock() }) }, false, worker.StatusFailed, "id1 may still run", "Starting Running Failed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine()
				test.set(e)
				w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "img"})
				got := path(t, w, func(ctx context.Context, _ context.CancelFunc) {
					if err := w.Start(context.WithoutCancel(ctx)); err != nil {
						t.Error(err)
					}
					synctest.Wait()
					if test.stop {
						_ = w.Stop(ctx)
					}
				})
				if got != test.path || w.Status() != test.want {
					t.Errorf("went %q", got)
				}
				if err := w.Err(); (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
					t.Errorf("Err() is %v", err)
				}
				if name == "engine goes away" { // and comes back
					select {
					case <-w.Gone():
						t.Error("it is gone while its container runs")
					default:
					}
					e.mu.Lock()
					e.away = false
					e.mu.Unlock()
				}
				<-w.Gone()
				if running, there := e.left(); running != 0 || there != 0 {
					t.Errorf("%d containers run and %d exist after the end", running, there)
				}
			})
		})
	}
}

func TestEngineThatIsAwayForAWhileCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		away := func(b bool) { e.mu.Lock(); e.away = b; e.mu.Unlock() }
		w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "img"})
		_ = w.Start(t.Context())
		synctest.Wait()
		away(true)
		time.Sleep(30 * time.Second)
		away(false)
		time.Sleep(time.Minute)
		if w.Status() != worker.StatusRunning {
			t.Errorf("it is %s, %v", w.Status(), w.Err())
		}
		// The engine is away during the stop: the worker is not Stopped while the
		// container runs.
		away(true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var left *worker.AbandonedError
		if err := w.Stop(ctx); !errors.As(err, &left) || !strings.Contains(left.Where, "id1") || w.Status() != worker.StatusKilled {
			t.Errorf("Stop: %v, it is %s", err, w.Status())
		}
		select {
		case <-w.Gone():
			t.Error("it is gone while its container runs")
		default:
		}
		away(false)
		<-w.Gone()
		if running, there := e.left(); running != 0 || there != 0 {
			t.Errorf("%d run, %d there", running, there)
		}
	})
}

func TestContainerSuspendsAndIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "img", Env: []string{worker.EnvSession + "=mine", "MINE=1"}})
		_ = w.Start(worker.WithHandover(t.Context(), worker.Handover{Session: "s"}))
		synctest.Wait()
		if !slices.Contains(e.env, "MINE=1") || !slices.Contains(e.env, worker.EnvSession+"=s") || slices.Contains(e.env, worker.EnvSession+"=mine") {
			t.Errorf("its environment is %q", e.env)
		}
		if err := w.Suspend(t.Context()); err != nil || w.Status() != worker.StatusSuspended || !e.frozen["id1"] {
			t.Errorf("Suspend: %v, it is %s", err, w.Status())
		}
		if err := w.Resume(t.Context()); err != nil || w.Status() != worker.StatusRunning || e.frozen["id1"] {
			t.Errorf("Resume: %v, it is %s", err, w.Status())
		}
		_ = w.Suspend(t.Context())
		stop(t, w)
		if w.Status() != worker.StatusStopped || e.frozen["id1"] {
			t.Errorf("it is %s", w.Status())
		}
	})
	for _, spec := range []worker.ContainerSpec{{}, {Image: "img"}} {
		var e worker.Engine
		if spec.Image == "" {
			e = newEngine()
		}
		w := worker.NewContainer("c", e, spec)
		if err := w.Start(t.Context()); err == nil || w.Status() != worker.StatusFailed {
			t.Errorf("Start of %+v: %v", spec, err)
		}
	}
}

func TestContainerThatWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		w := fakes(t, e, worker.ContainerSpec{}, func(*worker.Container) {
			e.set(func() { e.fail["Wait"] = worker.ErrNoContainer })
		})
		<-w.Gone()
		if err := w.Err(); w.Status() != worker.StatusFailed || !errors.Is(err, worker.ErrNoContainer) || !strings.Contains(err.Error(), "id1 was removed by another program") {
			t.Errorf("it is %s, %v", w.Status(), err)
		}
	})
}

func TestEngineThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		e.panics = true
		w := fakes(t, e, worker.ContainerSpec{}, func(*worker.Container) {})
		<-w.Gone()
		var panicked *worker.PanicError
		if w.Status() != worker.StatusFailed || !errors.As(w.Err(), &panicked) {
			t.Errorf("it is %s, %v", w.Status(), w.Err())
		}
		if running, there := e.left(); running != 0 || there != 0 {
			t.Errorf("%d run, %d there", running, there)
		}
	})
}

// The supervisor starts no other instance while a container cannot be removed.
func TestContainerThatCannotBeRemoved(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine()
			e.fail["Remove"] = errBoom
			e.exitSoon = &worker.ContainerExit{}
			if lost { // the engine starts the container, and the answer is lost
				e.fail["Start"] = errAway
			}
			w := fakes(t, e, worker.ContainerSpec{}, func(*worker.Container) {})
			if want := map[bool]worker.Status{false: worker.StatusFinished, true: worker.StatusFailed}[lost]; w.Status() != want {
				t.Errorf("it is %s, %v, want %s", w.Status(), w.Err(), want)
			}
			if lost && !strings.Contains(w.Err().Error(), "remove it: boom") {
				t.Errorf("Err() is %v", w.Err())
			}
			time.Sleep(time.Minute)
			select {
			case <-w.Gone():
				t.Error("the worker is gone while its container exists")
			default:
			}
			e.set(func() { delete(e.fail, "Remove") })
			<-w.Gone()
		})
	}
}

func TestContainerGetsTheSignalOfItsImage(t *testing.T) {
	for _, test := range []struct {
		image, spec, want string
		code              int
	}{{"", "", "SIGTERM", 143}, {"SIGQUIT", "", "SIGQUIT", 131}, {"SIGQUIT", "SIGINT", "SIGINT", 130}, {"SIGRTMIN+4", "", "SIGRTMIN+4", 0}} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine()
			e.stopBy, e.code = test.image, test.code
			w := fakes(t, e, worker.ContainerSpec{StopSignal: test.spec}, func(w *worker.Container) { stop(t, w) })
			if w.Status() != worker.StatusStopped || !slices.Equal(e.signals, []string{test.want}) {
				t.Errorf("it is %s, %v, after %q, want %s", w.Status(), w.Err(), e.signals, test.want)
			}
		})
	}
	w := worker.NewContainer("c", newEngine(), worker.ContainerSpec{Image: "img", StopSignal: "TERM"})
	if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), `StopSignal is "TERM", want a name such as SIGTERM`) {
		t.Errorf("Start: %v", err)
	}
}

// stubborn is a writer that fails, or that does not return.
type stubborn struct{ block chan struct{} }

func (s stubborn) Write(b []byte) (int, error) {
	if s.block != nil {
		<-s.block
		return len(b), nil
	}
	return 0, errBoom
}

// The output of a container that has ended is copied to its end. An engine that does not give
// it is not waited for longer than its patience, and the exit says that output is missing.
func TestOutputIsCopiedToItsEnd(t *testing.T) {
	for rest, want := range map[int]struct {
		lines int
		cut   bool
	}{
		0:  {4, false},
		30: {34, false},
		-1: {4, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine()
			e.rest = rest
			var out strings.Builder
			w := fakes(t, e, worker.ContainerSpec{}, func(*worker.Container) {
				time.Sleep(3*time.Second + time.Millisecond)
				e.exit("id1", worker.ContainerExit{})
			}, worker.WithContainerOutput(&out, nil))
			exit := w.State().Exit
			if got := strings.Count(out.String(), "line"); got != want.lines || exit == nil || exit.Cut != want.cut || w.Status() != worker.StatusFinished {
				t.Errorf("with a rest of %d: %d lines, the exit is %+v, it is %s", rest, got, exit, w.Status())
			}
		})
	}
}

// An engine that gives no output of a container that has ended does not delay Stop.
func TestStopDoesNotWaitForTheOutput(t *testing.T) {
	tests := map[string]struct {
		deaf, first bool // ignores SIGTERM; ends before Stop
		rest        int
		timeout     time.Duration // of Stop, 0 for none
		atMost      time.Duration
		status      worker.Status
	}{
		"obeys":               {false, false, -1, 30 * time.Second, 5 * time.Second, worker.StatusStopped},
		"has ended":           {false, true, -1, 30 * time.Second, 5 * time.Second, worker.StatusStopped},
		"is killed":           {true, false, -1, 0, 13 * time.Second, worker.StatusKilled},
		"writes all the time": {false, false, 1000, 30 * time.Second, 29 * time.Second, worker.StatusStopped},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine()
				e.rest, e.deaf = test.rest, test.deaf
				var out strings.Builder
				w := worker.NewContainer("c", e, worker.ContainerSpec{Image: "a"}, worker.WithContainerOutput(&out, nil))
				_ = w.Start(context.Background())
				time.Sleep(3500 * time.Millisecond)
				if test.first {
					e.exit("id1", worker.ContainerExit{})
					time.Sleep(5 * time.Second)
				}
				ctx, cancel := context.WithCancel(context.Background())
				if test.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, test.timeout)
				}
				defer cancel()
				began := time.Now()
				err := w.Stop(ctx)
				exit := w.State().Exit
				if took := time.Since(began); took > test.atMost || w.Status() != test.status || exit == nil || !exit.Cut {
					t.Errorf("Stop took %v: %v, it is %s, %+v", took, err, w.Status(), exit)
				}
				if e.there["id1"] {
					t.Error("it was not removed")
				}
			})
		})
	}
}

func TestOutputWhoseWriterFailsOrBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		w := fakes(t, e, worker.ContainerSpec{}, func(*worker.Container) {
			time.Sleep(3 * time.Second)
			e.exit("id1", worker.ContainerExit{})
		}, worker.WithContainerOutput(stubborn{}, nil))
		if err := w.Err(); w.Status() != worker.StatusFailed || !strings.Contains(err.Error(), "copy the output of container id1: boom") {
			t.Errorf("a write that fails: it is %s, %v", w.Status(), err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		block := make(chan struct{})
		w := fakes(t, e, worker.ContainerSpec{}, func(*worker.Container) {
			time.Sleep(3 * time.Second)
			e.exit("id1", worker.ContainerExit{})
		}, worker.WithContainerOutput(stubborn{block}, nil))
		if err := w.Err(); w.Status() != worker.StatusFailed || !strings.Contains(err.Error(), "a write did not return") {
			t.Errorf("a write that blocks: it is %s, %v", w.Status(), err)
		}
		if running, there := e.left(); running != 0 || there != 0 {
			t.Error("the container still exists, although only its output is stuck")
		}
		select {
		case <-w.Gone():
			t.Error("the worker is gone although its writer has not returned")
		default:
		}
		close(block)
		<-w.Gone()
	})
}

// When the engine cannot say whether it has frozen a container, the worker
// resumes the container.
func TestSuspendThatIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		e.fail["Pause"] = context.DeadlineExceeded
		fakes(t, e, worker.ContainerSpec{}, func(w *worker.Container) {
			if err := w.Suspend(t.Context()); !errors.Is(err, context.DeadlineExceeded) || w.Status() != worker.StatusRunning {
				t.Errorf("Suspend: %v, it is %s", err, w.Status())
			}
			if e.frozen["id1"] {
				t.Error("the container stays frozen")
			}
			stop(t, w)
		})
	})
}
