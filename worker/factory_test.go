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

func TestFailedFactoryIsAFailedStart(t *testing.T) {
	for kind, fail := range map[string]func(string) (worker.Worker, error){
		"error":      func(string) (worker.Worker, error) { return nil, errBoom },
		"nil":        func(string) (worker.Worker, error) { return nil, nil },
		"typed nil":  func(string) (worker.Worker, error) { var f *worker.Func; return f, nil },
		"panic":      func(string) (worker.Worker, error) { panic(errBoom) },
		"wrong name": func(string) (worker.Worker, error) { return worker.NewFunc("other", nil), nil },
		"used": func(name string) (worker.Worker, error) {
			w := worker.NewFunc(name, func(context.Context) error { return nil })
			return w, w.Stop(context.Background())
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				good, calls := d.child("a", nil), 0
				spec := worker.Spec{Name: "a", New: func(name string) (worker.Worker, error) {
					if calls++; calls < 3 {
						return fail(name)
					}
					return good.New(name)
				}}
				s := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
				sub := s.Watch(64)
				_ = s.Start(t.Context())
				synctest.Wait()
				if got := s.State(); statuses(got) != "a=Pending b=Created" || got.Status != worker.StatusStarting || got.Children[0].Exit == nil || got.Children[0].Exit.Error == "" {
					t.Errorf("it is %s, %s, %+v", got.Status, statuses(got), got.Children[0])
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got := s.State(); statuses(got) != "a=Running b=Running" || got.Children[0].Restarts != 2 {
					t.Errorf("it is %s, %+v", statuses(got), got.Children[0])
				}
				stop(t, s)
				sub.Close()
				onlyTableEdges(t, sub)
			})
		})
	}
	t.Run("for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{{Name: "a", New: func(string) (worker.Worker, error) { return nil, errBoom }}}})
			<-s.Done()
			if !errors.Is(s.Err(), worker.ErrRestartIntensity) || !errors.Is(s.Err(), errBoom) {
				t.Errorf("it ended with %v", s.Err())
			}
		})
	})
}

func TestBlockedFactoryHoldsUpSiblingsForItsStartTimeoutOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release, calls := make(chan struct{}), 0
		good := d.child("a", nil)
		spec := worker.Spec{Name: "a", StartTimeout: 2 * time.Second, New: func(name string) (worker.Worker, error) {
			if calls++; calls == 1 {
				<-release
			}
			return good.New(name)
		}}
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
		time.Sleep(time.Second)
		synctest.Wait()
		if got := statuses(s.State()); got != "a=Created b=Created" {
			t.Errorf("while the factory blocks: %s", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := s.State()
		if statuses(got) != "a=Pending b=Running" || !strings.Contains(got.Children[0].Reason, "has not returned") || calls != 1 {
			t.Errorf("it is %s, %+v, %d calls", statuses(got), got.Children[0], calls)
		}
		close(release) // the late worker is never started; a new one is
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.State(); statuses(got) != "a=Running b=Running" || calls != 2 || d.take() != "+b +a +a" {
			t.Errorf("it is %s, %d calls", statuses(got), calls)
		}
		stop(t, s)
	})
}

func TestStopWhileAFactoryBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		made := worker.NewFunc("a", func(context.Context) error { t.Error("the late worker was started"); return nil })
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{{Name: "a", New: func(string) (worker.Worker, error) {
			<-release
			return made, nil
		}}}})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_ = s.Stop(ctx)
		if took := time.Since(began); took > 10*time.Second || !s.Status().Terminal() {
			t.Errorf("Stop took %v, it is %s", took, s.Status())
		}
		close(release)
		<-s.Gone()
		if made.Status() != worker.StatusStopped {
			t.Errorf("the late worker is %s", made.Status())
		}
	})
}

func TestHandoverBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []worker.Handover
		fn := func(ctx context.Context) error {
			h, ok := worker.HandoverFrom(ctx)
			if !ok {
				t.Error("nothing was handed over")
			}
			got = append(got, h)
			return errBoom
		}
		backoff := everySecond
		backoff.MaxRestarts = 3
		var first []worker.Handover
		for range 2 {
			// A tree that is made again passes the same session to its children.
			ctx := worker.WithHandover(t.Context(), worker.Handover{Session: "outer"})
			s := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{worker.FuncSpec("a", fn)}})
			_ = s.Start(ctx)
			<-s.Done()
			if len(got) != 4 {
				t.Fatalf("%d instances", len(got))
			}
			for i, h := range got {
				if h.Session == "" || h.Session != got[0].Session || h.Restarts != i || (h.Previous == nil) != (i == 0) {
					t.Errorf("instance %d got %+v", i, h)
				}
				if i > 0 && (h.Previous.Status != worker.StatusFailed || h.Previous.Error != "boom") {
					t.Errorf("instance %d got %+v", i, h.Previous)
				}
			}
			if first != nil && first[0].Session != got[0].Session {
				t.Error("another session")
			}
			first, got = got, nil
		}
	})
}

// The error of a New that is not one says what is wrong.
func TestFactoryThatIsNoneIsNamed(t *testing.T) {
	var none *worker.Func
	for want, spec := range map[string]worker.Spec{
		"make a: the function New returned a nil *worker.Func, want a worker": {Name: "a", New: func(string) (worker.Worker, error) { return none, nil }},
		"make b: there is no function that makes the command":                 worker.CommandSpec("b", nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
			synctest.Wait()
			if got := s.State().Children[0].Exit; got == nil || got.Error != want {
				t.Errorf("%+v, want %s", got, want)
			}
			stop(t, s)
		})
	}
}
