package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

func TestDrainersHooksAndReloadsAreAmongTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fine := func(context.Context) error { return nil }
		app := lifecycletest.New(t, lifecycle.Config{HookSlice: time.Second, MinSlice: lifecycle.Off, ShutdownGrace: 5 * time.Second, DrainWait: lifecycle.WaitAlways})
		app.OnReload("again", func(context.Context) error { return errBoom }).
			OnDrain("panics", lifecycle.DrainFunc(func(context.Context) error { panic("boom") })).
			OnShutdown("skipped", fine).
			OnShutdown("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(50 * time.Millisecond); return errBoom }).
			OnShutdown("fine", fine)
		app.Start()
		for range 2 {
			if err := app.Reload(t.Context()); !errors.Is(err, errBoom) {
				t.Error(err)
			}
		}
		app.Stop(nil)
		_ = app.Wait()
		var seen []string
		for _, e := range app.Recorded() {
			switch e.Kind {
			case lifecycle.KindDrainer, lifecycle.KindHook, lifecycle.KindReload:
				seen = append(seen, e.Kind+" "+e.Name+" "+e.From+" "+e.To)
				if ended := e.To != string(lifecycle.ResultRunning); ended == (e.Cause == nil) && e.Name != "fine" {
					t.Errorf("%s: the cause is %v", seen[len(seen)-1], e.Cause)
				}
			}
		}
		want := []string{
			"reload again pending running", "reload again running failed", "reload again pending running", "reload again running failed",
			"drainer panics pending running", "drainer panics running panicked",
			"hook fine pending running", "hook fine running ok", "hook slow pending running", "hook slow running failed", "hook skipped pending skipped",
		}
		if !slices.Equal(seen, want) {
			t.Errorf("seen\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestSetup(t *testing.T) {
	var got *lifecycle.App
	app, err := lifecycle.New(lifecycle.Config{}, lifecycle.WithSetup(func(a *lifecycle.App) error { got = a; return nil }))
	if err != nil || got != app || got == nil {
		t.Errorf("setup was called with %v, and New returned %v, %v", got, app, err)
	}
	_, err = lifecycle.New(lifecycle.Config{}, lifecycle.WithSetup(func(*lifecycle.App) error { return errBoom }),
		lifecycle.WithSetup(func(*lifecycle.App) error { t.Error("a later setup was called"); return nil }))
	if !errors.Is(err, errBoom) {
		t.Errorf("error is %v, want that of the setup", err)
	}
	_, err = lifecycle.New(lifecycle.Config{ShutdownGrace: -5}, lifecycle.WithSetup(nil), lifecycle.WithSetup(func(*lifecycle.App) error { t.Error("setup was called without an App"); return nil }))
	if err == nil || !strings.Contains(err.Error(), "WithSetup: the function is nil") {
		t.Errorf("error is %v", err)
	}
}
