package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// lookalike is a state of a fleet that looks like a fault and is none.
type lookalike struct {
	name string
	make func(t *testing.T, s *site)
}

func waits(ctx context.Context) error { <-ctx.Done(); return nil }

// failing returns a function of a unit that fails so many times, and then runs.
func failing(times int64) func(context.Context) error {
	var n atomic.Int64
	return func(ctx context.Context) error {
		if n.Add(1) <= times {
			return errors.New("not yet")
		}
		return waits(ctx)
	}
}

// ends stops an app, and waits for its end.
func ends(app *lifecycle.App) {
	app.Stop(nil)
	<-app.Reached(lifecycle.PhaseStopped)
}

// is waits until a process is in the fleet in a state.
func (s *site) is(t *testing.T, id, what string, is func(lifecycle.Status) bool) {
	t.Helper()
	brokertest.Await(t, id+" "+what, func() bool {
		p, err := s.get(id)
		return err == nil && is(p.Status)
	})
}

// lookalikes returns them all.
func lookalikes() []lookalike {
	running := func(s *site, t *testing.T, id string, add func(*lifecycle.App)) *lifecycle.App {
		t.Helper()
		app := s.app(t, id, lifecycle.Config{}, add)
		s.seen(t, id)
		return app
	}
	supervised := func(id string, fails ...int64) func(*testing.T, *site) {
		return func(t *testing.T, s *site) {
			running(s, t, id, func(app *lifecycle.App) {
				for i, n := range fails {
					app.Supervise(fmt.Sprint("poller-", i), failing(n), quick)
				}
			})
			s.is(t, id, "has restarted", func(st lifecycle.Status) bool {
				n := 0
				for _, u := range st.Units {
					n += u.Restarts
				}
				return n == len(fails)*int(fails[0])
			})
		}
	}
	probed := func(id string, up func() bool, opts ...health.Option) func(*testing.T, *site) {
		return func(t *testing.T, s *site) {
			s.app(t, id, lifecycle.Config{}, func(app *lifecycle.App) {
				app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error {
					if up() {
						return nil
					}
					return errors.New("cold")
				}), append(opts, lifecycle.WithPeriodic(50*time.Millisecond))...)
			})
			s.seen(t, id)
		}
	}
	var asked atomic.Int64
	return []lookalike{
		{"a unit that finished on purpose", func(t *testing.T, s *site) {
			running(s, t, "finished", func(app *lifecycle.App) { app.Go("migrate", func(context.Context) error { return nil }) })
		}},
		{"a unit that was removed", func(t *testing.T, s *site) {
			tree := worker.NewSupervisor("children", worker.SupervisorConfig{})
			if err := tree.Add(worker.FuncSpec("old", waits)); err != nil {
				t.Fatal(err)
			}
			running(s, t, "removed", func(app *lifecycle.App) { app.Add(tree) })
			if err := tree.Remove(t.Context(), "old"); err != nil {
				t.Fatal(err)
			}
		}},
		{"one restart", supervised("restarted-once", 1)},
		{"two restarts", supervised("restarted-twice", 2)},
		{"a restart of each of three units", supervised("restarted-each", 1, 1, 1)},
		{"a slow start within its time", func(t *testing.T, s *site) {
			s.app(t, "starting", lifecycle.Config{}, func(app *lifecycle.App) { app.Go("cache", waits, lifecycle.WithStartCondition()) })
			s.is(t, "starting", "starts", func(st lifecycle.Status) bool { return st.Report.Phase == lifecycle.PhaseStarting })
		}},
		{"a rolling restart", func(t *testing.T, s *site) {
			for i := range 2 {
				old := s.appOf(t, "roll", "1", fmt.Sprint("roll-old-", i), lifecycle.Config{}, func(*lifecycle.App) {})
				s.seen(t, fmt.Sprint("roll-old-", i))
				s.appOf(t, "roll", "2", fmt.Sprint("roll-new-", i), lifecycle.Config{}, func(*lifecycle.App) {})
				s.seen(t, fmt.Sprint("roll-new-", i))
				if i == 0 { // the other one is still there
					ends(old)
				}
			}
		}},
		{"two services with two versions", func(t *testing.T, s *site) {
			s.appOf(t, "other", "7", "other-1", lifecycle.Config{}, func(*lifecycle.App) {})
			s.seen(t, "other-1")
		}},
		{"a long drain", func(t *testing.T, s *site) {
			let := make(chan struct{})
			t.Cleanup(func() { close(let) })
			app := s.app(t, "draining", lifecycle.Config{DrainInterval: 5 * time.Minute, DrainMin: lifecycle.Off}, func(app *lifecycle.App) {
				app.OnDrain("streams", lifecycle.DrainFunc(func(ctx context.Context) error {
					select {
					case <-let:
					case <-ctx.Done():
					}
					return nil
				}))
			})
			s.seen(t, "draining")
			app.Stop(nil)
			s.is(t, "draining", "drains", func(st lifecycle.Status) bool { return st.Report.Phase == lifecycle.PhaseDraining })
		}},
		{"a process that ended as it was asked to", func(t *testing.T, s *site) {
			ends(running(s, t, "gone", func(*lifecycle.App) {}))
		}},
		{"a service that was made smaller", func(t *testing.T, s *site) {
			for i := range 4 {
				ends(running(s, t, fmt.Sprint("smaller-", i), func(*lifecycle.App) {}))
			}
		}},
		{"a process that ended at SIGTERM", func(t *testing.T, s *site) {
			cmd, _ := s.child(t, "till.term-1")
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
		}},
		{"a process that started again under its id", func(t *testing.T, s *site) {
			ends(running(s, t, "again", func(*lifecycle.App) {}))
			running(s, t, "again", func(*lifecycle.App) {})
		}},
		{"a check that is not critical", probed("side", func() bool { return false }, health.WithNonCritical())},
		{"a probe that failed and is up again", probed("recovered", func() bool { return asked.Add(1) > 3 })},
		{"a suspension for a deployment", func(t *testing.T, s *site) {
			running(s, t, "suspended", func(*lifecycle.App) {}).Suspend("deploy")
		}},
		{"a suspension that is over", func(t *testing.T, s *site) {
			app := running(s, t, "resumed", func(*lifecycle.App) {})
			app.Suspend("deploy")
			app.Resume()
		}},
		{"a reload that was refused, and one that worked after it", func(t *testing.T, s *site) {
			var bad atomic.Bool
			bad.Store(true)
			app := running(s, t, "reloaded", func(app *lifecycle.App) {
				app.OnReload("config", func(context.Context) error {
					if bad.Load() {
						return errors.New("unknown key adress")
					}
					return nil
				})
			})
			first := app.Reload(t.Context())
			bad.Store(false)
			if second := app.Reload(t.Context()); first == nil || second != nil {
				t.Errorf("the reloads returned %v and %v", first, second)
			}
		}},
		{"a child that needs its grace", func(t *testing.T, s *site) {
			ready := make(chan struct{}, 1)
			app := s.app(t, "patient", lifecycle.Config{ShutdownGrace: time.Minute}, func(app *lifecycle.App) {
				under(t, app, worker.Spec{Name: "slow", Restart: worker.Never, New: func(name string) (worker.Worker, error) {
					cmd := exec.Command("/bin/sh", "-c", "trap 'sleep 1; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
					cmd.Stdout = written{ready}
					return worker.NewProcess(name, cmd, worker.WithGrace(50*time.Second), worker.WithStopSignal(syscall.SIGTERM)), nil
				}})
			})
			<-ready
			s.seen(t, "patient")
			ends(app)
		}},
		{"many events, and fewer than the journal takes", func(t *testing.T, s *site) {
			running(s, t, "busy", func(app *lifecycle.App) {
				for i := range 50 {
					app.Go(fmt.Sprint("unit-", i), waits)
				}
			})
		}},
		{"a hosted worker that is stopped while messages wait", func(t *testing.T, s *site) {
			if _, err := s.workers.Create(t.Context(), &operatorv1.CreateWorkerRequest{
				Id: "stopped", MimeType: "text/x-starlark", Topics: []string{"orders.stopped"},
				Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte("def handle(message):\n  pass\n")}},
			}, "test"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.workers.Stop(t.Context(), "stopped", "test"); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if _, err := s.js.Publish(t.Context(), "orders.stopped", []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"an entity that stays in its last phase", func(t *testing.T, s *site) {
			if err := s.mgr.Create(t.Context(), &survey{ID: "landed", State: "completed"}); err != nil {
				t.Fatal(err)
			}
		}},
		{"an entity that is written now and then", func(t *testing.T, s *site) {
			if err := s.mgr.Create(t.Context(), &survey{ID: "calm", State: "aborted"}); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if err := s.mgr.UpdateFromOperator(t.Context(), "drone-survey", "calm", map[string]any{"priority": uint32(i + 1)}); err != nil {
					t.Fatal(err)
				}
			}
		}},
	}
}
