package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A failure that no restart answers is in the log: the child may be forgotten, and its
// supervisor goes on or ends as if nothing had happened.
func TestFailuresWithoutARestartAreLogged(t *testing.T) {
	late := func(ctx context.Context) error { <-ctx.Done(); return errBoom } // fails as it stops
	ends := func(err error, policy worker.Restart) worker.Spec {
		spec := worker.FuncSpec("c", func(context.Context) error { return err })
		spec.Restart = policy
		return spec
	}
	none := worker.Spec{Name: "c", Restart: worker.Never, New: func(string) (worker.Worker, error) { return nil, errBoom }}
	for name, test := range map[string]struct {
		spec worker.Spec
		want string
	}{
		"as it stops":        {worker.FuncSpec("c", late), `level=ERROR msg="child failed as it stopped" supervisor=tree child=c error=boom`},
		"never":              {ends(errBoom, worker.Never), `level=ERROR msg="child failed, and is not started again" supervisor=tree child=c error=boom`},
		"temporary":          {ends(errBoom, worker.Temporary), `level=ERROR msg="child failed, and is not started again" supervisor=tree child=c error=boom`},
		"do not restart":     {ends(errors.Join(errBoom, worker.ErrDoNotRestart), worker.Always), `child=c error="boom\ndo not restart"`},
		"a start":            {none, `level=ERROR msg="child failed, and is not started again" supervisor=tree child=c error="make c: boom"`},
		"done":               {ends(worker.ErrDoNotRestart, worker.Always), ""},
		"finished":           {ends(nil, worker.Never), ""},
		"stopped":            {worker.FuncSpec("c", idle), ""},
		"it ends everything": {ends(worker.ErrTerminate, worker.Always), ""}, // the error of the supervisor says so
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{test.spec}})
				s.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
				if err := s.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				stop(t, s)
				if got := strings.TrimSpace(log.String()); !strings.HasSuffix(got, test.want) || test.want == "" && got != "" || strings.Count(got, "\n") > 0 {
					t.Errorf("the log has %q, want %q", got, test.want)
				}
			})
		})
	}
}

// The line about a panic has its stack, whether a restart answers it or not.
func TestStackOfAPanicIsLogged(t *testing.T) {
	explode := func(context.Context) error { panic("boom") }
	never := worker.FuncSpec("never", explode)
	never.Restart = worker.Never
	run := worker.Spec{Name: "run", New: func(name string) (worker.Worker, error) {
		return worker.NewRestarter(name, explode, worker.Backoff{}), nil
	}}
	for _, spec := range []worker.Spec{never, worker.FuncSpec("always", explode), run} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{spec}})
			s.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			stop(t, s)
			if got := strings.TrimSpace(log.String()); !strings.Contains(got, "stack=") || !strings.Contains(got, "failurelog_test.go:") || strings.Count(got, "\n") > 0 {
				t.Errorf("%s: the log has\n%s", spec.Name, got)
			}
		})
	}
}

// Many failures are one line a second.
func TestManyFailuresAreFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		d := worker.NewDynamic("jobs", worker.DynamicConfig{}, func(context.Context, int) error { return errBoom })
		d.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
		if err := d.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		add := func() {
			for i := range 100 {
				if _, err := d.Add(i); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		add()
		time.Sleep(2 * time.Second)
		add()
		stop(t, d)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[1], "child failed, and is not started again") {
			t.Errorf("the log is\n%s", log.String())
		}
	})
}
