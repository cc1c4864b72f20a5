package lifecycletest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Two supervisors have a child "w" each, and a function runs twice. A test can name each
// of them.
func TestWantOrderTellsLivesOfOneNameApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := lifecycletest.New(t, lifecycle.Config{})
		tree := func(name string, fn func(context.Context) error) {
			app.Add(worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{
				{Name: "w", Restart: worker.Never, New: worker.FuncSpec("w", fn).New},
			}}))
		}
		tree("a", func(ctx context.Context) error { <-ctx.Done(); return nil })
		tree("b", func(context.Context) error { time.Sleep(time.Minute); return errors.New("boom") })
		runs := 0
		app.Supervise("poller", func(ctx context.Context) error {
			if runs++; runs == 1 {
				return errors.New("boom")
			}
			<-ctx.Done()
			return nil
		}, lifecycle.Backoff{Min: time.Second, Max: time.Second, Jitter: worker.NoJitter})
		app.Start()
		time.Sleep(time.Hour)
		app.Stop(nil)
		app.WantClean()
		app.WantOrder("worker poller#1 Failed", "worker poller#2 Pending", "worker poller#2 Running", "worker b/w Failed", "app draining", "worker a/w Stopped", "app stopped")
		app.WantOrder("worker w Failed", "worker w Stopped")
		if at := app.When("worker poller#2 Running"); at != time.Second {
			t.Errorf("the second run began after %v, want 1s", at)
		}
		if got := app.Timeline(); strings.Contains(got, "a/w Failed") || !strings.Contains(got, "worker b/w Failed (boom)") {
			t.Errorf("the timeline is\n%s", got)
		}
	})
}
