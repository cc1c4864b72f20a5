package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A supervisor that gets children for ever keeps the last of the children that are
// done, and forgets the others.
func TestChildrenThatAreDoneAreForgotten(t *testing.T) {
	const children = 6_000
	ends := []func(string) worker.Spec{
		func(name string) worker.Spec { // finishes
			spec := worker.FuncSpec(name, func(context.Context) error { return nil })
			spec.Restart = worker.OnFailure
			return spec
		},
		func(name string) worker.Spec { // fails
			spec := worker.FuncSpec(name, func(context.Context) error { return errBoom })
			spec.Restart = worker.Never
			return spec
		},
		func(name string) worker.Spec { // does not start
			return worker.Spec{Name: name, Restart: worker.Never, New: func(string) (worker.Worker, error) { return nil, errBoom }}
		},
	}
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Children: []worker.Spec{d.child("stays", nil)}})
				for i := range children {
					if err := s.Add(ends[i%len(ends)](fmt.Sprint("n", i))); err != nil {
						t.Fatal(err)
					}
					if i%400 == 0 {
						synctest.Wait()
						if n := len(s.State().Children); n > 1001 {
							t.Fatalf("%d children after %d", n, i)
						}
					}
				}
				synctest.Wait()
				got := s.State().Children
				if len(got) < 501 || len(got) > 1001 || got[0].Name != "stays" || got[0].Status != worker.StatusRunning {
					t.Errorf("%d children, the first is %+v", len(got), got[0])
				}
				for i, c := range slices.Backward(got[1:]) {
					if !c.Status.Terminal() {
						t.Errorf("%s is %s", c.Name, c.Status)
					}
					// Children may end in another order than they were added. The last
					// 400 are among the last 500 to end.
					if back := len(got) - 1 - i; back <= 400 && c.Name != fmt.Sprint("n", children-back) {
						t.Fatalf("number %d from the end is %s", back, c.Name)
					}
				}
				if err := s.Remove(t.Context(), "n0"); !errors.Is(err, worker.ErrNoChild) {
					t.Errorf("Remove of a forgotten one: %v", err)
				}
				if err := s.Add(d.child("n0", nil)); err != nil {
					t.Errorf("Add of a forgotten name: %v", err)
				}
				stop(t, s)
			})
		})
	}
}

func TestNameOfAChildThatIsDoneIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		spec := d.child("a", end)
		spec.Restart = worker.OnFailure
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
		synctest.Wait()
		for range 2000 { // more often than the history is long
			if err := s.Add(spec); !errors.Is(err, worker.ErrNameTaken) {
				t.Fatalf("Add while it runs: %v", err)
			}
			end <- nil
			synctest.Wait()
			if got := statuses(s.State()); got != "a=Finished b=Running" && got != "b=Running a=Finished" {
				t.Fatalf("it is %s", got)
			}
			if err := s.Add(spec); err != nil {
				t.Fatalf("Add once it is done: %v", err)
			}
			synctest.Wait()
			if got := statuses(s.State()); got != "b=Running a=Running" || d.most != 1 {
				t.Fatalf("it is %s, %d at once", got, d.most)
			}
		}
		end <- errBoom // and it is still restarted
		synctest.Wait()
		if err := s.Add(spec); !errors.Is(err, worker.ErrNameTaken) {
			t.Errorf("Add while it is Pending: %v", err)
		}
		stop(t, s)
	})
}

// A child that is done and started again by name, as often as one likes, takes one place
// of those that are done.
func TestChildThatIsStartedAgainIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := worker.FuncSpec("job", func(context.Context) error { return nil })
		job.Restart = worker.Never
		other := job
		other.Name = "other"
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{other, job}})
		for i := range 1500 {
			if err := s.RestartChild(t.Context(), "job"); err != nil {
				t.Fatalf("after %d times: %v", i, err)
			}
			synctest.Wait()
		}
		if got := statuses(s.State()); got != "other=Finished job=Finished" {
			t.Errorf("they are %s", got)
		}
		stop(t, s)
	})
}
