package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func names(s worker.State) []string {
	var names []string
	for _, c := range s.Children {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

func dynamic[A any](t *testing.T, cfg worker.DynamicConfig, run func(context.Context, A) error) *worker.Dynamic[A] {
	t.Helper()
	d := worker.NewDynamic("jobs", cfg, run)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func add[A any](t *testing.T, d *worker.Dynamic[A], arg A) string {
	t.Helper()
	name, err := d.Add(arg)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Each child has its argument, and is forgotten when it ends.
func TestDynamicChildrenComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dynamic(t, worker.DynamicConfig{Template: worker.Spec{Name: "job"}}, func(ctx context.Context, end chan error) error {
			select {
			case err := <-end:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		synctest.Wait()
		if d.Status() != worker.StatusRunning || d.Counts() != (worker.Counts{}) || d.State().Kind != "dynamic" {
			t.Errorf("it is %+v", d.State())
		}
		ends := map[string]chan error{}
		for i := range 4 {
			end := make(chan error)
			name := add(t, d, end)
			if want := fmt.Sprint("job-", i+1); name != want {
				t.Errorf("the name is %q, want %q", name, want)
			}
			ends[name] = end
		}
		synctest.Wait()
		if got := d.Counts(); got != (worker.Counts{Specs: 4, Active: 4, Workers: 4}) {
			t.Errorf("%+v", got)
		}
		ends["job-1"] <- nil
		ends["job-3"] <- errBoom
		if err := d.StopChild(t.Context(), "job-2"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := names(d.State()); !slices.Equal(got, []string{"job-4"}) {
			t.Errorf("there are %v", got)
		}
		for verb, err := range map[string]error{"Remove": d.Remove(t.Context(), "job-1"), "RestartChild": d.RestartChild(t.Context(), "job-2")} {
			if !errors.Is(err, worker.ErrNoChild) {
				t.Errorf("%s of one that is gone: %v", verb, err)
			}
		}
		if err := d.RestartChild(t.Context(), "job-4"); err == nil || !strings.Contains(err.Error(), "it is temporary, and its argument was not kept") {
			t.Errorf("RestartChild: %v", err)
		}
		if name := add(t, d, make(chan error)); name != "job-5" {
			t.Errorf("the next name is %q", name)
		}
		if err := d.Remove(t.Context(), "job-5"); err != nil {
			t.Error(err)
		}
		stop(t, d)
		if got := d.State(); got.Status != worker.StatusStopped || statuses(got) != "job-4=Stopped" {
			t.Errorf("it is %+v", got)
		}
		if _, err := d.Add(nil); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Errorf("Add after the end: %v", err)
		}
	})
}

func TestDynamicMaxChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dynamic(t, worker.DynamicConfig{MaxChildren: 2}, func(ctx context.Context, d time.Duration) error {
			time.Sleep(d)
			return nil
		})
		add(t, d, time.Second)
		add(t, d, time.Minute)
		if name, err := d.Add(0); !errors.Is(err, worker.ErrTooManyChildren) || name != "" || !strings.Contains(err.Error(), "add to jobs") {
			t.Errorf("Add of a third: %q, %v", name, err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		add(t, d, time.Second)
		if _, err := d.Add(0); !errors.Is(err, worker.ErrTooManyChildren) {
			t.Errorf("Add of another third: %v", err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		stop(t, d)
	})
}

// Children that are restarted keep their argument, are restarted alone, and share the
// restart intensity.
func TestDynamicRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		limit := everySecond
		limit.MaxRestarts, limit.Window = 2, time.Hour
		tree := dynamic(t, worker.DynamicConfig{Template: worker.Spec{Restart: worker.OnFailure}, Backoff: limit}, func(ctx context.Context, end chan error) error {
			d.note("+")
			return <-end
		})
		a, b := make(chan error), make(chan error)
		first, second := add(t, tree, a), add(t, tree, b)
		a <- errBoom
		synctest.Wait()
		if c, _ := tree.Child(first); c.Status != worker.StatusPending || !strings.Contains(c.Reason, "boom") {
			t.Errorf("%s is %+v", first, c)
		}
		if c, _ := tree.Child(second); c.Status != worker.StatusRunning || c.Restarts != 0 {
			t.Errorf("%s is %+v", second, c)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if c, _ := tree.Child(first); c.Status != worker.StatusRunning || c.Restarts != 1 || d.take() != "+ + +" {
			t.Errorf("%s is %+v", first, c)
		}
		b <- nil
		synctest.Wait()
		if got := names(tree.State()); !slices.Equal(got, []string{first}) {
			t.Errorf("one that has finished is still there: %v", got)
		}
		a <- errBoom
		third := add(t, tree, b)
		synctest.Wait()
		b <- errBoom // the third restart of all
		<-tree.Done()
		if !errors.Is(tree.Err(), worker.ErrRestartIntensity) || !strings.Contains(tree.Err().Error(), third) {
			t.Errorf("it ended with %v", tree.Err())
		}
	})
}

func TestDynamicStopsAllAtOnce(t *testing.T) {
	for _, limited := range []bool{false, true} {
		t.Run(fmt.Sprint("limited ", limited), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := dynamic(t, worker.DynamicConfig{}, func(ctx context.Context, needs time.Duration) error {
					<-ctx.Done()
					time.Sleep(needs)
					return nil
				})
				for i := range 1000 {
					add(t, d, time.Duration(i%10)*time.Second)
				}
				synctest.Wait()
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if limited {
					ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
				}
				defer cancel()
				began := time.Now()
				if err := d.Stop(ctx); err != nil || time.Since(began) != 9*time.Second || d.Status() != worker.StatusStopped {
					t.Errorf("it took %v, %v, it is %s", time.Since(began), err, d.Status())
				}
			})
		})
	}
}

// A Dynamic is a child like any other, and its children may be trees.
func TestDynamicInATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var inner *worker.Dynamic[string]
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{{Name: "jobs", New: func(name string) (worker.Worker, error) {
			inner = worker.NewDynamicOf(name, worker.DynamicConfig{}, func(name, arg string) (worker.Worker, error) {
				if arg == "refused" {
					return nil, errBoom
				}
				return worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{d.child(arg, nil)}}), nil
			})
			return inner, nil
		}}}})
		synctest.Wait()
		first := inner
		name := add(t, first, "x")
		add(t, first, "refused") // it is forgotten when it does not start
		synctest.Wait()
		got := s.State().Children[0]
		if names(got)[0] != name || len(got.Children) != 1 || statuses(got.Children[0]) != "x=Running" {
			t.Errorf("it is %+v", got)
		}
		if got := first.Counts(); got != (worker.Counts{Specs: 1, Active: 1, Supervisors: 1}) {
			t.Errorf("%+v", got)
		}
		if got := s.Counts(); got.Supervisors != 1 {
			t.Errorf("%+v", got)
		}
		if err := s.RestartChild(t.Context(), "jobs"); err != nil {
			t.Fatal(err)
		}
		if got := s.State().Children[0]; first == inner || len(got.Children) != 0 || d.take() != "+x -x" {
			t.Errorf("a new one has the children of the old one: %+v", got)
		}
		if err := s.Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		later := add(t, inner, "y")
		synctest.Wait()
		if c, _ := inner.Child(later); c.Status != worker.StatusPending {
			t.Errorf("one that was added while suspended is %s", c.Status)
		}
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c, _ := inner.Child(later); c.Status != worker.StatusRunning {
			t.Errorf("after Resume it is %s", c.Status)
		}
		stop(t, s)
	})
}

// While an App drains, requests arrive that may need a child. Children start then as
// before, and none is started again.
func TestDynamicAddsWhileItDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dynamic(t, worker.DynamicConfig{Template: worker.Spec{Restart: worker.Always}, Backoff: everySecond}, func(_ context.Context, end chan error) error {
			return <-end
		})
		first, second, third := make(chan error), make(chan error), make(chan error)
		waits, runs := add(t, d, first), add(t, d, second)
		first <- errBoom
		synctest.Wait()
		d.HoldRestarts()
		later := add(t, d, third)
		third <- errBoom // it has begun
		time.Sleep(time.Minute)
		for name, want := range map[string]worker.Status{waits: worker.StatusStopped, runs: worker.StatusRunning} {
			if c, _ := d.Child(name); c.Status != want {
				t.Errorf("%s is %s, want %s", name, c.Status, want)
			}
		}
		if c, ok := d.Child(later); ok {
			t.Errorf("one that failed while it drains is not forgotten: %+v", c)
		}
		if err := d.RestartChild(t.Context(), runs); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Errorf("RestartChild: %v", err)
		}
		second <- nil
		stop(t, d)
	})
}

func TestDynamicConfigIsValidated(t *testing.T) {
	run := func(context.Context, int) error { return nil }
	tests := map[string]struct {
		cfg  worker.DynamicConfig
		run  func(context.Context, int) error
		says string
	}{
		"no function": {worker.DynamicConfig{}, nil, "the function is nil"},
		"max":         {worker.DynamicConfig{MaxChildren: -1}, run, "MaxChildren is -1, want 0 or more"},
		"backoff":     {worker.DynamicConfig{Backoff: worker.Backoff{Min: -1}}, run, "Min is -1ns"},
		"factory":     {worker.DynamicConfig{Template: worker.FuncSpec("x", nil)}, run, "the Template has a New, want none"},
		"significant": {worker.DynamicConfig{Template: worker.Spec{Significant: true}}, run, "a Dynamic has no AutoShutdown"},
		"template":    {worker.DynamicConfig{Template: worker.Spec{StopTimeout: -7}}, run, `child "jobs": StopTimeout is -7ns`},
		"unhealthy":   {worker.DynamicConfig{Template: worker.Spec{RestartUnhealthy: 1}}, run, "a Temporary child is never restarted"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := test.cfg.Validate(); test.run != nil && (err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "template", "jobs"), test.says)) {
				t.Errorf("Validate: %v", err)
			}
			d := worker.NewDynamic("jobs", test.cfg, test.run)
			if err := d.Start(t.Context()); err == nil || !strings.Contains(err.Error(), test.says) || d.Status() != worker.StatusFailed {
				t.Errorf("Start: %v, it is %s", err, d.Status())
			}
		})
	}
	if err := (worker.DynamicConfig{}).Validate(); err != nil {
		t.Errorf("Validate of the zero value: %v", err)
	}
	d := worker.NewDynamic("jobs", worker.DynamicConfig{}, run)
	if _, err := d.Add(1); err == nil || !strings.Contains(err.Error(), "it is Created") {
		t.Errorf("Add before Start: %v", err)
	}
	spec := worker.FuncSpec("x", idle)
	for verb, err := range map[string]error{"Add": d.Supervisor.Add(spec), "Replace": d.Replace(spec)} {
		if err == nil || !strings.Contains(err.Error(), "share its Template") {
			t.Errorf("%s of a spec: %v", verb, err)
		}
	}
	stop(t, d)
}

// The arguments and names of children that have ended leave nothing behind.
// WORKER_CHILDREN=1000000 is the full number.
func TestDynamicDoesNotGrow(t *testing.T) {
	n := scaled("WORKER_CHILDREN", 30_000)
	const most = 100
	var ran atomic.Int64
	over := make(chan struct{}, most)
	d := worker.NewDynamic("jobs", worker.DynamicConfig{MaxChildren: 2 * most}, func(_ context.Context, arg []byte) error {
		defer func() { over <- struct{}{} }()
		ran.Add(int64(len(arg)))
		if rand.IntN(3) == 0 {
			return errBoom
		}
		return nil
	})
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	run := func(n int) {
		for i := range n {
			if i >= most {
				<-over
			}
			for {
				_, err := d.Add(make([]byte, 1<<10))
				if err == nil {
					break
				}
				if !errors.Is(err, worker.ErrTooManyChildren) {
					t.Fatal(err)
				}
			}
		}
		for range min(n, most) {
			<-over
		}
	}
	began := time.Now()
	run(n / 2)
	before, _ := inUse()
	run(n / 2)
	after, _ := inUse()
	t.Logf("%d children, %.0f a second, heap %d KiB after half of them and %d KiB after all", n, float64(n)/time.Since(began).Seconds(), before>>10, after>>10)
	if after > before+512<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	if ran.Load() != int64(n/2*2)<<10 {
		t.Errorf("%d bytes of arguments arrived", ran.Load())
	}
	stop(t, d)
	<-d.Gone()
}

func ExampleDynamic() {
	sent := make(chan string)
	mails := worker.NewDynamic("mail", worker.DynamicConfig{MaxChildren: 100}, func(ctx context.Context, to string) error {
		sent <- "sent to " + to
		return nil
	})
	if err := mails.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	for _, to := range []string{"ada", "joe"} {
		name, err := mails.Add(to)
		if errors.Is(err, worker.ErrTooManyChildren) {
			fmt.Println("try again later")
			return
		}
		fmt.Println(name, <-sent)
	}
	fmt.Println(mails.Stop(context.Background()))
	// Output:
	// mail-1 sent to ada
	// mail-2 sent to joe
	// <nil>
}

// A session of a user who signs out is stopped by the name that Add returned, and the oldest one
// by its state.
func ExampleDynamic_State() {
	type session struct {
		user   string
		serves chan bool
	}
	sessions := worker.NewDynamic("session", worker.DynamicConfig{}, func(ctx context.Context, s session) error {
		close(s.serves)
		<-ctx.Done()
		return nil
	})
	ctx := context.Background()
	if err := sessions.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	sessionOf := map[string]string{}
	for _, user := range []string{"ada", "joe", "eve"} {
		s := session{user: user, serves: make(chan bool)}
		name, err := sessions.Add(s)
		if err != nil {
			fmt.Println(err)
			return
		}
		<-s.serves
		sessionOf[user] = name
	}
	fmt.Println(sessions.StopChild(ctx, sessionOf["joe"]))
	oldest := slices.MinFunc(sessions.State().Children, func(a, b worker.State) int {
		return a.StartedAt.Compare(b.StartedAt)
	})
	fmt.Println(sessions.StopChild(ctx, oldest.Name))
	for _, left := range sessions.State().Children {
		fmt.Println(left.Name)
	}
	fmt.Println(sessions.Stop(ctx))
	// Output:
	// <nil>
	// <nil>
	// session-3
	// <nil>
}
