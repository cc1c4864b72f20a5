package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// pausing returns a function that can be suspended and counts its steps.
func pausing(n *atomic.Int64) func(context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n.Add(1)
			case <-worker.PauseRequested(ctx):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := worker.Pause(ctx); err != nil {
				return err
			}
		}
	}
}

func TestFuncSuspendsAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		w := worker.NewFunc("w", pausing(&n))
		if err := w.Suspend(t.Context()); !errors.Is(err, worker.ErrNotSuspendable) {
			t.Errorf("Suspend before Start: %v", err)
		}
		got := path(t, w, func(ctx context.Context, _ context.CancelFunc) {
			_ = w.Start(ctx)
			for range 2 {
				time.Sleep(2500 * time.Millisecond)
				for range 2 {
					if err := w.Suspend(ctx); err != nil || w.Status() != worker.StatusSuspended {
						t.Errorf("Suspend: %v, it is %s", err, w.Status())
					}
				}
				before := n.Load()
				time.Sleep(time.Hour)
				if n.Load() != before {
					t.Error("it worked while it was suspended")
				}
				for range 2 {
					if err := w.Resume(ctx); err != nil || w.Status() != worker.StatusRunning {
						t.Errorf("Resume: %v, it is %s", err, w.Status())
					}
				}
				time.Sleep(2500 * time.Millisecond)
				if n.Load() == before {
					t.Error("it does not work after Resume")
				}
			}
			_ = w.Suspend(ctx)
			stop(t, w)
		})
		if got != "Starting Running Suspended Running Suspended Running Suspended Stopping Stopped" {
			t.Errorf("went %q", got)
		}
		if err := w.Resume(t.Context()); err == nil {
			t.Error("Resume after the end")
		}
	})
}

func TestSuspendThatTimesOutLeavesItRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		w := worker.NewFunc("w", func(ctx context.Context) error {
			<-busy
			if err := worker.Pause(ctx); err != nil { // the Suspend has timed out
				return err
			}
			<-ctx.Done()
			return nil
		})
		_ = w.Start(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Suspend(ctx); !errors.Is(err, context.DeadlineExceeded) || w.Status() != worker.StatusRunning {
			t.Errorf("Suspend: %v, it is %s", err, w.Status())
		}
		close(busy)
		synctest.Wait()
		if w.Status() != worker.StatusRunning {
			t.Errorf("later it is %s", w.Status())
		}
		stop(t, w)
	})
}

func TestSupervisorSuspendsInReverseAndResumesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n [3]atomic.Int64
		end := make(chan error)
		var d diary
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{
			d.child("d", end), worker.FuncSpec("a", pausing(&n[0])), worker.FuncSpec("b", pausing(&n[1])), worker.FuncSpec("c", pausing(&n[2])),
		}})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// c, b and a pause, d cannot, and the three go on.
		if err := s.Suspend(ctx); err == nil || s.Status() != worker.StatusRunning || statuses(s.State()) != "d=Running a=Running b=Running c=Running" {
			t.Errorf("with one that cannot pause: %v, it is %s: %s", err, s.Status(), statuses(s.State()))
		}
		end <- errBoom // d is pending now, and must not start while the tree is suspended
		sub := s.Watch(16)
		if err := s.Suspend(t.Context()); err != nil || s.Status() != worker.StatusSuspended {
			t.Errorf("Suspend: %v, it is %s", err, s.Status())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := statuses(s.State()); got != "d=Pending a=Suspended b=Suspended c=Suspended" {
			t.Errorf("it is %s", got)
		}
		if err := s.Resume(t.Context()); err != nil || s.Status() != worker.StatusRunning {
			t.Errorf("Resume: %v, it is %s", err, s.Status())
		}
		synctest.Wait()
		if got := statuses(s.State()); got != "d=Running a=Running b=Running c=Running" {
			t.Errorf("it is %s", got)
		}
		sub.Close()
		var order []string
		for e := range sub.All(t.Context()) {
			if e.To == "Suspended" || e.From == "Suspended" {
				order = append(order, e.Name+":"+e.To)
			}
		}
		if got := strings.Join(order, " "); got != "c:Suspended b:Suspended a:Suspended tree:Suspended a:Running b:Running c:Running tree:Running" {
			t.Errorf("in the order %s", got)
		}
		stop(t, s)
	})
}

// ill is a worker with a Probe.
type ill struct {
	*worker.Func
	probe func(context.Context) worker.ProbeResult
}

func (w ill) Probe(ctx context.Context) worker.ProbeResult { return w.probe(ctx) }

func TestUnhealthyChildIsRestartedByPolicy(t *testing.T) {
	for _, policy := range []worker.Restart{worker.Always, worker.OnFailure, worker.Never} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				var bad atomic.Bool
				inner := d.child("a", nil).New
				spec := worker.Spec{Name: "a", Restart: policy, ProbePeriod: time.Second, RestartUnhealthy: 3, New: func(name string) (worker.Worker, error) {
					w, err := inner(name)
					return ill{w.(*worker.Func), func(context.Context) worker.ProbeResult {
						if bad.Load() {
							return worker.ProbeResult{Health: worker.HealthUnhealthy, Err: errBoom}
						}
						return worker.ProbeResult{Health: worker.HealthHealthy}
					}}, err
				}}
				s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec}})
				time.Sleep(90*time.Second + 500*time.Millisecond)
				if got := s.State().Children[0]; got.Health != worker.HealthHealthy || got.Restarts != 0 {
					t.Errorf("it is %+v", got)
				}
				bad.Store(true)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got := s.State().Children[0]; got.Health != worker.HealthUnhealthy || got.Status != worker.StatusRunning {
					t.Errorf("unhealthy is not ended: %+v", got)
				}
				time.Sleep(1100 * time.Millisecond)
				synctest.Wait()
				bad.Store(false)
				got := s.State().Children[0]
				if policy == worker.Never {
					if got.Status != worker.StatusRunning || d.take() != "+a" {
						t.Errorf("it is %+v", got)
					}
				} else if got.Status != worker.StatusPending || !strings.Contains(got.Reason, "unhealthy after 3 probes: boom") || d.take() != "+a -a" {
					t.Errorf("it is %+v", got)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if got := s.State().Children[0]; got.Status != worker.StatusRunning || got.Health != worker.HealthHealthy {
					t.Errorf("in the end it is %+v", got)
				}
				stop(t, s)
			})
		})
	}
}

func TestInspectProbesTheTreeNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var calls atomic.Int32
		a := d.child("a", nil)
		a.ProbePeriod = worker.NoLimit
		a.Probe = func(context.Context) worker.ProbeResult {
			calls.Add(1)
			return worker.ProbeResult{Health: worker.HealthUnhealthy}
		}
		inner := worker.Spec{Name: "inner", New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{a}}), nil
		}}
		hung := d.child("hung", nil)
		release := make(chan struct{})
		hung.Probe = func(context.Context) worker.ProbeResult { <-release; return worker.ProbeResult{} }
		hung.ProbePeriod, hung.ProbeTimeout = worker.NoLimit, 2*time.Second
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{inner, hung}})
		synctest.Wait()
		if s.State(); calls.Load() != 0 {
			t.Error("State probed")
		}
		began := time.Now()
		got := s.Inspect(t.Context())
		if calls.Load() != 1 || got.Children[0].Children[0].Health != worker.HealthUnhealthy || time.Since(began) != 2*time.Second {
			t.Errorf("%d calls in %v: %+v", calls.Load(), time.Since(began), got)
		}
		close(release)
		stop(t, s)
	})
}

func TestProbeThatHangsIsUnhealthyAndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var calls atomic.Int32
		release := make(chan struct{})
		a := d.child("a", nil)
		a.ProbePeriod, a.RestartUnhealthy = 2*time.Second, 2
		a.Probe = func(context.Context) worker.ProbeResult {
			calls.Add(1)
			<-release
			return worker.ProbeResult{Health: worker.HealthHealthy}
		}
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{a}})
		time.Sleep(5 * time.Second)
		if got := s.State().Children[0]; got.Health != worker.HealthUnhealthy {
			t.Errorf("it is %+v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.State().Children[0]; got.Restarts != 1 || calls.Load() != 1 {
			t.Errorf("%d probes at once, it is %+v", calls.Load(), got)
		}
		close(release)
		stop(t, s)
	})
}
