package worker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// The crowd of a chaos is a Dynamic beside its tree.

const crowdMax = 6

func (c *chaos) newCrowd() {
	policies := []worker.Restart{worker.Always, worker.OnFailure, worker.Never, worker.Temporary}
	cfg := worker.DynamicConfig{
		Template: worker.Spec{
			Name: "d", Restart: policies[c.rand.IntN(4)], StartTimeout: 100 * time.Millisecond, StopTimeout: 50 * time.Millisecond, ProbePeriod: 20 * time.Millisecond,
		},
		Backoff:     worker.Backoff{Min: time.Millisecond, Max: time.Second, MaxRestarts: []int{3, 100, worker.NoLimit}[c.rand.IntN(3)], Window: time.Second},
		MaxChildren: crowdMax,
	}
	if c.rand.IntN(2) == 0 {
		c.crowd = worker.NewDynamic("crowd", cfg, c.inCrowd)
	} else {
		cfg.Template.Probe = func(context.Context) worker.ProbeResult { return worker.ProbeResult{Health: worker.HealthHealthy} }
		calls := 0
		c.crowd = worker.NewDynamicOf("crowd", cfg, func(name, arg string) (worker.Worker, error) {
			c.mu.Lock()
			calls++
			n := calls
			c.mu.Unlock()
			switch {
			case n%5 == 1:
				return nil, errBoom
			case n%17 == 0:
				panic(errBoom)
			case n%23 == 0:
				<-c.release
			}
			return worker.NewFunc(name, func(ctx context.Context) error { return c.inCrowd(ctx, arg) }), nil
		})
	}
	c.crowd.PublishTo(&c.events)
	if err := c.crowd.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// inCrowd ends as its argument says.
func (c *chaos) inCrowd(ctx context.Context, arg string) error {
	c.diary.enter(arg, 1)
	defer c.diary.enter(arg, -1)
	var after time.Duration
	var how string
	_, _ = fmt.Sscanf(arg, "%s in %v", &how, &after)
	timer := time.NewTimer(after)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-worker.PauseRequested(ctx):
			if err := worker.Pause(ctx); err != nil {
				return err
			}
		case <-timer.C:
			switch how {
			case "fail":
				return errBoom
			case "panic":
				panic(errBoom)
			case "hang":
				<-c.release
			}
			return nil
		}
	}
}

func (c *chaos) stepCrowd(background func(func(context.Context))) {
	name := fmt.Sprint("d-", 1+c.rand.IntN(30))
	switch n := c.rand.IntN(20); {
	case n < 11:
		how := []string{"fail", "fail", "panic", "finish", "hang"}[c.rand.IntN(5)]
		arg := fmt.Sprintf("%s in %dms, %d", how, c.rand.IntN(60), c.rand.Uint64())
		background(func(context.Context) { _, _ = c.crowd.Add(arg) })
	case n < 13:
		background(func(ctx context.Context) { _ = c.crowd.Remove(ctx, name) })
	case n < 14:
		background(func(ctx context.Context) { _ = c.crowd.StopChild(ctx, name) })
	case n < 16:
		background(func(ctx context.Context) { _ = c.crowd.RestartChild(ctx, name) })
	case n < 17:
		background(func(ctx context.Context) { _ = c.crowd.Suspend(ctx) })
	case n < 19:
		background(func(ctx context.Context) { _ = c.crowd.Resume(ctx) })
	default:
		if n := c.crowd.Counts(); n.Specs > crowdMax || len(c.crowd.State().Children) > crowdMax {
			c.t.Errorf("the crowd has %+v", n)
		}
	}
}
