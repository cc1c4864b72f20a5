package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestRandomOperations does random operations on trees. CHAOS_STEPS sets their
// number ("make chaos" does a million), CHAOS_SEED the seed of the first tree.
func TestRandomOperations(t *testing.T) {
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	const each = 250 // operations on one tree
	seed := uint64(number("CHAOS_SEED", 1))
	for done := 0; done < number("CHAOS_STEPS", 5000) && !t.Failed(); done += each {
		synctest.Test(t, func(t *testing.T) {
			c := newChaos(t, seed)
			for range each {
				c.step()
			}
			c.end()
		})
		if t.Failed() {
			t.Logf("repeat with CHAOS_SEED=%d", seed)
		}
		seed++
	}
}

type chaos struct {
	t       *testing.T
	rand    *rand.Rand
	diary   diary
	tree    *worker.Supervisor
	crowd   *worker.Dynamic[string] // the arguments are names of the diary
	events  fsm.Dispatcher
	sub     *fsm.Subscription
	release chan struct{} // closed to release the functions that hang
	calls   sync.WaitGroup
	direct  bool         // children are suspended and resumed by others than the tree too
	asking  atomic.Int32 // calls of the tree's Suspend and Resume that have not returned

	mu     sync.Mutex // guards everything below
	orders map[string]chan string
	made   map[string]worker.Suspender // the last instance of each name
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, rand: rand.New(rand.NewPCG(seed, 0)), release: make(chan struct{}), orders: make(map[string]chan string), made: make(map[string]worker.Suspender)}
	c.direct = c.rand.IntN(2) == 0
	strategies := []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne}
	cfg := worker.SupervisorConfig{
		Strategy: strategies[c.rand.IntN(3)], AutoShutdown: worker.AnySignificant,
		Backoff: worker.Backoff{Min: time.Millisecond, Max: time.Second, MaxRestarts: []int{3, 100, worker.NoLimit}[c.rand.IntN(3)], Window: time.Second},
	}
	for i := range c.rand.IntN(5) {
		cfg.Children = append(cfg.Children, c.spec(fmt.Sprint("c", i)))
	}
	c.tree = worker.NewSupervisor("tree", cfg)
	c.sub = c.events.Subscribe(1 << 16)
	c.tree.PublishTo(&c.events)
	if err := c.tree.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.newCrowd()
	return c
}

// spec returns a child. The seed decides how it is made, and orders decide how it
// ends.
func (c *chaos) spec(name string) worker.Spec {
	policies := []worker.Restart{worker.Always, worker.OnFailure, worker.Never, worker.Temporary}
	spec := worker.Spec{
		Name: name, Restart: policies[c.rand.IntN(4)],
		StartTimeout: 100 * time.Millisecond, StopTimeout: 50 * time.Millisecond, ProbePeriod: 20 * time.Millisecond,
	}
	if c.rand.IntN(8) == 0 {
		spec.StopTimeout = worker.BrutalKill
	}
	spec.Significant = spec.Restart != worker.Always && c.rand.IntN(100) == 0
	kind := c.rand.IntN(16)
	switch kind {
	case 0:
		inner := c.cfgOf(name)
		spec.New = func(name string) (worker.Worker, error) { return c.keep(worker.NewSupervisor(name, inner)), nil }
		return spec
	case 12:
		slow := time.Duration(c.rand.IntN(60)) * time.Millisecond
		spec.New = func(name string) (worker.Worker, error) {
			return c.keep(worker.NewContainer(name, &slowEngine{engine: newEngine(), pause: slow}, worker.ContainerSpec{Image: "img"})), nil
		}
		return spec
	}
	order := make(chan string, 1)
	c.mu.Lock()
	c.orders[name] = order
	c.mu.Unlock()
	if spec.Restart != worker.Temporary && c.rand.IntN(4) == 0 {
		spec.RestartUnhealthy = 2
		spec.Probe = func(context.Context) worker.ProbeResult { return worker.ProbeResult{Err: errBoom} }
	}
	fn := func(ctx context.Context) error {
		c.diary.enter(name, 1)
		defer c.diary.enter(name, -1)
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-worker.PauseRequested(ctx):
				if err := worker.Pause(ctx); err != nil {
					return err
				}
			case what := <-order:
				switch what {
				case "fail":
					return errBoom
				case "panic":
					panic(errBoom)
				case "finish":
					return nil
				case "hang":
					<-c.release
					return nil
				case "slow":
					time.Sleep(40 * time.Millisecond)
				}
			}
		}
	}
	if kind > 7 && kind < 12 { // a supervisor starts it in another way than a worker that may block
		plain := worker.FuncSpec(name, fn)
		plain.Restart, plain.StartTimeout, plain.StopTimeout = spec.Restart, spec.StartTimeout, spec.StopTimeout
		plain.ProbePeriod, plain.Probe, plain.RestartUnhealthy = spec.ProbePeriod, spec.Probe, spec.RestartUnhealthy
		plain.Significant = spec.Significant
		return plain
	}
	calls := 0
	spec.New = func(name string) (worker.Worker, error) {
		calls++
		switch {
		case kind == 1 && calls%2 == 1:
			return nil, errBoom
		case kind == 2 && calls%3 == 1:
			panic(errBoom)
		case kind == 3 && calls == 1:
			<-c.release
		}
		if kind > 12 {
			return worker.NewRestarter(name, fn, worker.Backoff{Min: time.Millisecond, MaxRestarts: 5}), nil
		}
		return c.keep(worker.NewFunc(name, fn)), nil
	}
	return spec
}

// keep keeps a worker for operations on it alone.
func (c *chaos) keep(w interface {
	worker.Worker
	worker.Suspender
}) worker.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made[w.Name()] = w
	return w
}

func (c *chaos) cfgOf(name string) worker.SupervisorConfig {
	return worker.SupervisorConfig{
		Backoff:  worker.Backoff{Min: time.Millisecond, MaxRestarts: 2, Window: time.Second},
		Children: []worker.Spec{c.leaf(name + ".x"), c.leaf(name + ".y")},
	}
}

func (c *chaos) leaf(name string) worker.Spec {
	for {
		if spec := c.spec(name); spec.RestartUnhealthy == 0 && !spec.Significant {
			return spec
		}
	}
}

// step does one operation. It does not wait for operations that may block.
func (c *chaos) step() {
	name := fmt.Sprint("c", c.rand.IntN(8))
	background := func(do func(context.Context)) {
		limit := time.Duration(c.rand.IntN(200)) * time.Millisecond
		c.calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			do(ctx)
		})
	}
	switch n := c.rand.IntN(120); {
	case n >= 100:
		c.stepCrowd(background)
	case n < 15:
		spec := c.spec(name)
		background(func(context.Context) { _ = c.tree.Add(spec) })
	case n < 22:
		background(func(ctx context.Context) { _ = c.tree.Remove(ctx, name) })
	case n < 26:
		background(func(ctx context.Context) { _ = c.tree.StopChild(ctx, name) })
	case n < 32:
		background(func(ctx context.Context) { _ = c.tree.RestartChild(ctx, name) })
	case n < 35:
		spec := c.spec(name)
		background(func(context.Context) { _ = c.tree.Replace(spec) })
	case n < 64:
		what := []string{"fail", "fail", "fail", "panic", "finish", "slow", "hang"}[c.rand.IntN(7)]
		c.mu.Lock()
		order := c.orders[name]
		c.mu.Unlock()
		if order != nil {
			select {
			case order <- what:
			default:
			}
		}
	case n < 67:
		c.asking.Add(1)
		background(func(ctx context.Context) { _ = c.tree.Suspend(ctx); c.asking.Add(-1) })
	case n < 70:
		c.asking.Add(1)
		background(func(ctx context.Context) { _ = c.tree.Resume(ctx); c.asking.Add(-1) })
	case n < 73 && c.direct:
		c.mu.Lock()
		w := c.made[name]
		c.mu.Unlock()
		if suspend := c.rand.IntN(2) == 0; w != nil && suspend {
			background(func(ctx context.Context) { _ = w.Suspend(ctx) })
		} else if w != nil {
			background(func(ctx context.Context) { _ = w.Resume(ctx) })
		}
	case n < 76:
		background(func(ctx context.Context) { _ = c.tree.Inspect(ctx).Mermaid() })
		_, _ = c.tree.Child(name)
		_, _ = c.tree.ChildSpec(name)
		_ = c.tree.Counts()
	case n < 85:
		synctest.Wait()
		if state := c.tree.State(); state.Status == worker.StatusSuspended && !c.direct && c.asking.Load() == 0 {
			c.quiescent(state)
		}
	default:
		time.Sleep(time.Duration(c.rand.IntN(50)) * time.Millisecond)
	}
	_ = c.tree.State()
}

// quiescent checks that no child of a suspended tree runs.
func (c *chaos) quiescent(s worker.State) {
	for _, child := range s.Children {
		if child.Status == worker.StatusRunning || child.Status == worker.StatusStarting {
			c.t.Errorf("%s is %s under %s, which is %s", child.Name, child.Status, s.Name, s.Status)
		}
		if child.Status == worker.StatusSuspended && child.Kind == "supervisor" {
			c.quiescent(child)
		}
	}
}

// end stops the tree and checks what is left of it.
func (c *chaos) end() {
	t := c.t
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.rand.IntN(300))*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := c.tree.Stop(ctx)
	if end, _ := ctx.Deadline(); time.Now().After(end) && !began.Equal(time.Now()) {
		t.Errorf("Stop took %v", time.Since(began))
	}
	if !c.tree.Status().Terminal() {
		t.Errorf("after Stop it is %s, %v", c.tree.Status(), err)
	}
	_ = c.crowd.Stop(ctx)
	if !c.crowd.Status().Terminal() {
		t.Errorf("after Stop the crowd is %s", c.crowd.Status())
	}
	close(c.release)
	<-c.tree.Gone()
	<-c.crowd.Gone()
	c.calls.Wait()
	synctest.Wait()
	for _, child := range slices.Concat(c.tree.State().Children, c.crowd.State().Children) {
		if !child.Status.Terminal() && child.Status != worker.StatusCreated {
			t.Errorf("%s is %s in the end", child.Name, child.Status)
		}
	}
	if c.diary.most > 1 {
		t.Errorf("%d instances of one name at once", c.diary.most)
	}
	for name, n := range c.diary.live {
		if n != 0 {
			t.Errorf("%d of %s live on", n, name)
		}
	}
	c.sub.Close()
	onlyTableEdges(t, c.sub)
}
