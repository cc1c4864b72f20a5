package otel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
	"go.opentelemetry.io/otel/codes"
)

// TestSpansTellWorkersOfOneNameApart runs two supervisors with a child "w" each.
// Only the child of b fails, which begins a second later. The span of a's child
// must not show that.
func TestSpansTellWorkersOfOneNameApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app, exporter := traced(t, lifecycle.Config{Name: "svc"})
		fail, began := make(chan struct{}), time.Now()
		tree := func(name string, after time.Duration, fn func(context.Context) error) {
			app.Add(worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{
				{Name: "w", Restart: worker.Never, New: func(name string) (worker.Worker, error) {
					time.Sleep(after)
					return worker.NewFunc(name, fn), nil
				}},
			}}))
		}
		tree("a", 0, func(ctx context.Context) error { <-ctx.Done(); return nil })
		tree("b", time.Second, func(context.Context) error { <-fail; return errBoom })
		app.Start()
		time.Sleep(2 * time.Second)
		close(fail)
		synctest.Wait()
		app.Stop(nil)
		app.WantClean()

		all := exported(t, exporter)
		lives := all.all["lifecycle.unit w"]
		if len(lives) != 2 {
			t.Fatalf("%d spans of workers named w, want 2", len(lives))
		}
		for _, life := range lives {
			of, want := all.one("lifecycle.unit a"), codes.Unset
			if life.StartTime.After(began) {
				of, want = all.one("lifecycle.unit b"), codes.Error
			}
			if life.Status.Code != want {
				t.Errorf("the child that began after %v has the status %v %q, want %v", life.StartTime.Sub(began), life.Status.Code, life.Status.Description, want)
			}
			id, parent := attr(life, "lifecycle.id").AsInt64(), attr(life, "lifecycle.parent").AsInt64()
			if id == 0 || parent == 0 || parent != attr(of, "lifecycle.id").AsInt64() {
				t.Errorf("life %d has the parent %d, want its supervisor, %d", id, parent, attr(of, "lifecycle.id").AsInt64())
			}
		}
	})
}
