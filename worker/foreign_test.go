package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// foreign is a worker without BaseWorker.
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
		late  bool // it runs on after the stop
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
				synctest.Wait() // Gone closes just after Done
				select {
				case <-s.Gone():
					if test.late {
						t.Error("the supervisor is gone while a child runs")
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

// rude is a foreign worker whose methods panic on request.
type rude struct {
	foreign
	panics map[string]bool
	mu     sync.Mutex
}

func (r *rude) rage(method string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.panics[method] {
		panic(errBoom)
	}
}

func (r *rude) Name() string          { r.rage("Name"); return r.foreign.Name() }
func (r *rude) State() worker.State   { r.rage("State"); return r.foreign.State() }
func (r *rude) Err() error            { r.rage("Err"); return r.foreign.Err() }
func (r *rude) Done() <-chan struct{} { r.rage("Done"); return r.foreign.Done() }
func (r *rude) HoldRestarts()         { r.rage("HoldRestarts") }
func (r *rude) SetHealth(worker.Health) {
	r.rage("SetHealth")
}
func (r *rude) Probe(context.Context) worker.ProbeResult {
	r.rage("Probe")
	return worker.ProbeResult{Health: worker.HealthHealthy}
}

// A supervisor and its other children go on when a child's methods panic.
func TestForeignWorkersThatPanic(t *testing.T) {
	for _, method := range []string{"Name", "Done", "State", "Err", "HoldRestarts", "SetHealth", "Probe", "State Err"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				var mu sync.Mutex
				var all []*rude
				made := func() (n int, last *rude) {
					mu.Lock()
					defer mu.Unlock()
					return len(all), all[len(all)-1]
				}
				panics := make(map[string]bool)
				for _, m := range strings.Fields(method) {
					panics[m] = true
				}
				spec := worker.Spec{Name: "f", StopTimeout: time.Second, ProbePeriod: time.Second, New: func(name string) (worker.Worker, error) {
					r := &rude{foreign: foreign{name: name, done: make(chan struct{}), stop: func(_ context.Context, end func()) error { end(); return nil }}, panics: panics}
					mu.Lock()
					defer mu.Unlock()
					all = append(all, r)
					return r, nil
				}}
				s := supervise(t, worker.SupervisorConfig{
					Backoff:  worker.Backoff{Min: time.Second, Max: time.Second, MaxRestarts: worker.NoLimit},
					Children: []worker.Spec{d.child("a", nil), spec},
				})
				time.Sleep(3500 * time.Millisecond)
				synctest.Wait()
				_ = s.Inspect(t.Context())
				n, last := made()
				if lives := method != "Name" && method != "Done"; lives && n != 1 || !lives && n < 3 {
					t.Errorf("after 3.5 s there were %d instances", n)
				}
				if strings.Contains(method, "State") {
					if f := s.State().Children[1]; f.Status != worker.StatusRunning || !strings.Contains(f.Error, "State: panic: boom") {
						t.Errorf("it is shown as %+v", f)
					}
				}
				last.end() // by itself: it is restarted
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if now, _ := made(); now == n {
					t.Error("it is not restarted")
				}
				if got := s.State().Children[0].Status; got != worker.StatusRunning {
					t.Errorf("its sibling is %s", got)
				}
				if strings.Contains(method, "Err") && !strings.Contains(s.State().Children[1].Exit.Error, "Err: panic: boom") {
					t.Errorf("its exit is %+v", s.State().Children[1].Exit)
				}
				s.HoldRestarts()
				if err := s.Stop(t.Context()); err != nil {
					t.Errorf("Stop: %v", err)
				}
				<-s.Gone()
			})
		})
	}
}

// A Stop that ends its worker and does not return delays no other child.
func TestStopThatEndsItAndBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{{Name: "f", StopTimeout: time.Second, New: func(name string) (worker.Worker, error) {
			return &foreign{name: name, done: make(chan struct{}), stop: func(_ context.Context, end func()) error { end(); <-release; return nil }}, nil
		}}}})
		synctest.Wait()
		began := time.Now()
		err := s.Stop(context.Background())
		var left *worker.AbandonedError
		if !errors.As(err, &left) || left.Name != "f" || time.Since(began) > 5*time.Second {
			t.Errorf("Stop took %v: %v", time.Since(began), err)
		}
		select {
		case <-s.Gone():
			t.Error("the supervisor is gone while a child's Stop runs")
		default:
		}
		close(release)
		<-s.Gone()
	})
}

// odd is a foreign worker with arbitrary answers.
type odd struct {
	foreign
	state func() worker.State
	err   func() error
	other func()
}

func (o *odd) State() worker.State                          { return o.state() }
func (o *odd) Err() error                                   { return o.err() }
func (o *odd) HoldRestarts()                                { o.other() }
func (o *odd) SetHealth(worker.Health)                      { o.other() }
func (o *odd) PublishTo(*fsm.Dispatcher)                    { o.other() }
func (o *odd) Probe(context.Context) (r worker.ProbeResult) { return r }

// oddBase is a worker that embeds BaseWorker and has arbitrary answers.
type oddBase struct {
	worker.BaseWorker
	odd *odd
}

func (o *oddBase) Start(ctx context.Context) error {
	if err := o.Begin(ctx); err != nil {
		return err
	}
	o.MarkRunning()
	return nil
}
func (o *oddBase) Stop(context.Context) error {
	o.RequestStop(worker.ErrStopRequested)
	o.Finish(nil)
	return nil
}
func (o *oddBase) State() worker.State     { return o.odd.State() }
func (o *oddBase) Err() error              { return o.odd.Err() }
func (o *oddBase) HoldRestarts()           { o.odd.other() }
func (o *oddBase) SetHealth(worker.Health) { o.odd.other() }

// unreadable is an error type. The Error of a nil pointer to it panics.
type unreadable struct{ text string }

func (e *unreadable) Error() string { return e.text }

// The supervisor goes on after any answer of a child, and after none.
func TestForeignWorkersThatDoNotAnswer(t *testing.T) {
	var block chan struct{}
	running := func() worker.State { return worker.State{Name: "f", Status: worker.StatusRunning} }
	fine, nothing := func() error { return nil }, func() {}
	wait := func() { <-block }
	for name, says := range map[string]*odd{
		"Running for ever": {state: running, err: fine, other: nothing},
		"no status":        {state: func() worker.State { return worker.State{Name: "f", Status: "Banana"} }, err: fine, other: nothing},
		"unreadable error": {state: running, err: func() error { return (*unreadable)(nil) }, other: nothing},
		"State exits":      {state: func() worker.State { runtime.Goexit(); return worker.State{} }, err: fine, other: nothing},
		"State blocks":     {state: func() worker.State { wait(); return worker.State{} }, err: fine, other: nothing},
		"Err exits":        {state: running, err: func() error { runtime.Goexit(); return nil }, other: nothing},
		"Err blocks":       {state: running, err: func() error { wait(); return nil }, other: nothing},
		"the others exit":  {state: running, err: fine, other: runtime.Goexit},
		"the others block": {state: running, err: fine, other: wait},
	} {
		for _, based := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with a base %v", name, based), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					block = make(chan struct{})
					var d diary
					var mu sync.Mutex
					var ends []func()
					spec := worker.Spec{Name: "f", StopTimeout: time.Second, ProbePeriod: time.Second, New: func(name string) (worker.Worker, error) {
						o := &odd{foreign: foreign{name: name, done: make(chan struct{}), stop: func(_ context.Context, end func()) error { end(); return nil }}, state: says.state, err: says.err, other: says.other}
						mu.Lock()
						defer mu.Unlock()
						if !based {
							ends = append(ends, o.end)
							return o, nil
						}
						b := &oddBase{odd: o}
						b.Init("odd", name)
						ends = append(ends, func() { b.Finish(errBoom) })
						return b, nil
					}}
					s := supervise(t, worker.SupervisorConfig{
						Backoff:  worker.Backoff{Min: time.Second, Max: time.Second, MaxRestarts: worker.NoLimit},
						Children: []worker.Spec{d.child("a", nil), spec},
					})
					time.Sleep(time.Second)
					synctest.Wait()
					mu.Lock()
					ends[len(ends)-1]() // by itself: it is restarted
					before := len(ends)
					mu.Unlock()
					time.Sleep(20 * time.Second)
					synctest.Wait()
					mu.Lock()
					if after := len(ends); after <= before {
						t.Errorf("there were %d instances, and are %d", before, after)
					}
					mu.Unlock()
					began := time.Now()
					if got := s.State(); got.Children[0].Status != worker.StatusRunning || time.Since(began) > 3*time.Second {
						t.Errorf("after %v it is %+v", time.Since(began), got)
					}
					s.HoldRestarts()
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					if err := s.Stop(ctx); err != nil {
						t.Errorf("Stop: %v", err)
					}
					close(block)
					<-s.Gone()
				})
			})
		}
	}
}
