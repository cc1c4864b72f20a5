package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A Temporary child is gone when it ends, in each way to end, and its name is free.
func TestTemporaryChildIsForgotten(t *testing.T) {
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		for how, finish := range map[string]func(t *testing.T, s *worker.Supervisor, sibling, end chan<- error){
			"finished":    func(_ *testing.T, _ *worker.Supervisor, _, end chan<- error) { end <- nil },
			"failed":      func(_ *testing.T, _ *worker.Supervisor, _, end chan<- error) { end <- errBoom },
			"stopped":     func(t *testing.T, s *worker.Supervisor, _, _ chan<- error) { _ = s.StopChild(t.Context(), "temp") },
			"removed":     func(t *testing.T, s *worker.Supervisor, _, _ chan<- error) { _ = s.Remove(t.Context(), "temp") },
			"with others": func(_ *testing.T, _ *worker.Supervisor, sibling, _ chan<- error) { sibling <- errBoom },
		} {
			if how == "with others" && strategy == worker.OneForOne {
				continue
			}
			t.Run(fmt.Sprint(strategy, "/", how), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var d diary
					sibling, end := make(chan error), make(chan error)
					temp := d.child("temp", end)
					temp.Restart = worker.Temporary
					s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Backoff: everySecond, Children: []worker.Spec{d.child("a", sibling), temp}})
					for range 3 {
						synctest.Wait()
						finish(t, s, sibling, end)
						time.Sleep(2 * time.Second)
						synctest.Wait()
						if got := statuses(s.State()); got != "a=Running" {
							t.Fatalf("it is %s", got)
						}
						if _, ok := s.ChildSpec("temp"); ok {
							t.Error("its spec is still there")
						}
						if err := s.Add(temp); err != nil {
							t.Fatalf("Add of its name: %v", err)
						}
					}
					stop(t, s)
				})
			})
		}
	}
	t.Run("does not start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var d diary
			temp := worker.Spec{Name: "temp", Restart: worker.Temporary, New: func(string) (worker.Worker, error) { return nil, errBoom }}
			s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{temp, d.child("b", nil)}})
			synctest.Wait()
			if got := s.State(); statuses(got) != "b=Running" || got.Status != worker.StatusRunning {
				t.Errorf("it is %s, %s", got.Status, statuses(got))
			}
			stop(t, s)
		})
	})
}

// The end of a significant child ends its supervisor when it is not started again.
func TestSignificantChildren(t *testing.T) {
	type step struct {
		child string
		end   error
		ends  bool // the supervisor
	}
	tests := map[string]struct {
		mode    worker.AutoShutdown
		restart worker.Restart
		steps   []step
	}{
		"any, temporary finishes":  {worker.AnySignificant, worker.Temporary, []step{{"s1", nil, true}}},
		"any, temporary fails":     {worker.AnySignificant, worker.Temporary, []step{{"s1", errBoom, true}}},
		"any, never fails":         {worker.AnySignificant, worker.Never, []step{{"s2", errBoom, true}}},
		"any, transient finishes":  {worker.AnySignificant, worker.OnFailure, []step{{"s1", errBoom, false}, {"s1", nil, true}}},
		"any, the other ones":      {worker.AnySignificant, worker.OnFailure, []step{{"other", nil, false}, {"s2", nil, true}}},
		"all, temporary":           {worker.AllSignificant, worker.Temporary, []step{{"s1", nil, false}, {"s2", errBoom, true}}},
		"all, transient":           {worker.AllSignificant, worker.OnFailure, []step{{"s2", nil, false}, {"s1", errBoom, false}, {"s1", nil, true}}},
		"all, in spite of another": {worker.AllSignificant, worker.Never, []step{{"other", nil, false}, {"s2", nil, false}, {"s1", nil, true}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				ends := map[string]chan error{}
				spec := func(name string, significant bool) worker.Spec {
					ends[name] = make(chan error)
					spec := d.child(name, ends[name])
					spec.Restart, spec.Significant = test.restart, significant
					return spec
				}
				s := supervise(t, worker.SupervisorConfig{AutoShutdown: test.mode, Backoff: everySecond, Children: []worker.Spec{
					d.child("first", nil), spec("s1", true), spec("s2", true), spec("other", false), d.child("last", nil)}})
				for _, step := range test.steps {
					synctest.Wait()
					d.take()
					ends[step.child] <- step.end
					time.Sleep(2 * time.Second)
					synctest.Wait()
					if s.Status().Terminal() != step.ends {
						t.Fatalf("after the end of %s with %v it is %s", step.child, step.end, s.Status())
					}
				}
				if got := d.take(); s.Status() != worker.StatusFinished || s.Err() != nil || !strings.Contains(got, "-last") || !strings.HasSuffix(got, "-first") {
					t.Errorf("it is %s, %v, the children %q", s.Status(), s.Err(), got)
				}
				if err := s.Add(d.child("x", nil)); !errors.Is(err, worker.ErrSupervisorEnded) {
					t.Errorf("Add: %v", err)
				}
			})
		})
	}
}

// A significant child that a caller or a sibling stops does not end the supervisor.
func TestSignificantBystander(t *testing.T) {
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		for _, mode := range []worker.AutoShutdown{worker.AnySignificant, worker.AllSignificant} {
			for _, restart := range []worker.Restart{worker.OnFailure, worker.Never, worker.Temporary} {
				t.Run(fmt.Sprint(strategy, "/", mode, "/", restart), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var d diary
						end := make(chan error)
						sig := d.child("sig", nil)
						sig.Restart, sig.Significant = restart, true
						s := supervise(t, worker.SupervisorConfig{Strategy: strategy, AutoShutdown: mode, Backoff: everySecond, Children: []worker.Spec{d.child("a", end), sig}})
						synctest.Wait()
						end <- errBoom
						time.Sleep(2 * time.Second)
						synctest.Wait()
						if restart == worker.OnFailure {
							if err := s.RestartChild(t.Context(), "sig"); err != nil {
								t.Error(err)
							}
						}
						if err := s.StopChild(t.Context(), "sig"); err != nil && !errors.Is(err, worker.ErrNoChild) {
							t.Error(err)
						}
						synctest.Wait()
						if s.Status() != worker.StatusRunning {
							t.Errorf("it is %s", s.Status())
						}
						stop(t, s)
					})
				})
			}
		}
	}
}

// A supervisor that ended because of a significant child has finished by itself. The one
// above it decides by its own spec of it.
func TestAutoShutdownEscalates(t *testing.T) {
	for _, significant := range []bool{true, false} {
		t.Run(fmt.Sprint("significant ", significant), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				end := make(chan error)
				leaf := d.child("leaf", end)
				leaf.Restart, leaf.Significant = worker.OnFailure, true
				inner := worker.Spec{Name: "inner", Restart: worker.OnFailure, Significant: significant, New: func(name string) (worker.Worker, error) {
					return worker.NewSupervisor(name, worker.SupervisorConfig{AutoShutdown: worker.AnySignificant, Children: []worker.Spec{leaf}}), nil
				}}
				s := supervise(t, worker.SupervisorConfig{AutoShutdown: worker.AnySignificant, Children: []worker.Spec{inner, d.child("b", nil)}})
				synctest.Wait()
				end <- nil
				synctest.Wait()
				if c, _ := s.Child("inner"); c.Status != worker.StatusFinished || s.Status().Terminal() != significant {
					t.Errorf("inner is %s, the supervisor %s", c.Status, s.Status())
				}
				stop(t, s)
			})
		})
	}
}

func TestReplaceChangesSignificance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		plain := d.child("a", end)
		plain.Restart = worker.Never
		significant := plain
		significant.Significant = true
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{plain}})
		for verb, err := range map[string]error{"Add": s.Add(significant), "Replace": s.Replace(significant)} {
			if err == nil || !strings.Contains(err.Error(), `child "a": it is Significant`) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		stop(t, s)

		s = supervise(t, worker.SupervisorConfig{AutoShutdown: worker.AnySignificant, Children: []worker.Spec{significant, d.child("b", nil)}})
		synctest.Wait()
		if err := s.Replace(plain); err != nil {
			t.Fatal(err)
		}
		end <- nil
		synctest.Wait()
		if s.Status() != worker.StatusRunning {
			t.Errorf("it was replaced by one that is not significant, and the supervisor is %s", s.Status())
		}
		if err := s.RestartChild(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := s.Replace(significant); err != nil {
			t.Fatal(err)
		}
		end <- nil
		<-s.Done()
		if s.Status() != worker.StatusFinished {
			t.Errorf("it is %s", s.Status())
		}
	})
}

// A child that is unhealthy and is not restarted for that has not ended.
func TestUnhealthySignificantChildHasNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := worker.FuncSpec("a", idle)
		spec.Restart, spec.Significant = worker.Never, true
		spec.ProbePeriod, spec.RestartUnhealthy = time.Second, 3
		spec.Probe = func(context.Context) worker.ProbeResult { return worker.ProbeResult{Health: worker.HealthUnhealthy} }
		s := supervise(t, worker.SupervisorConfig{AutoShutdown: worker.AnySignificant, Children: []worker.Spec{spec}})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := statuses(s.State()); got != "a=Running" || s.Status() != worker.StatusRunning {
			t.Errorf("it is %s, its supervisor %s", got, s.Status())
		}
		stop(t, s)
	})
}
