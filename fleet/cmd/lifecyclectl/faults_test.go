package main

import (
	"bytes"
	"context"
	"errors"
	"html"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ctl runs a command against a server.
func ctl(t *testing.T, url string, args ...string) (int, string) {
	t.Helper()
	t.Setenv("LIFECYCLECTL_SERVER", url)
	var out bytes.Buffer
	code := Run(t.Context(), args, strings.NewReader(""), &out, &out)
	return code, out.String()
}

// frontPage returns the text of the front page.
func frontPage(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/ui/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(html.UnescapeString(string(text)), "<wbr>", "")
}

// fault is a fault that a test injects into a fleet of real processes.
type fault struct {
	name   string
	about  string // the subject without its kind
	rule   string
	cause  string // a part of the cause, written down before
	inject func(t *testing.T, s *site)
}

// app runs an App that announces itself, without waiting until it is ready.
func (s *site) app(t *testing.T, id string, cfg lifecycle.Config, add func(*lifecycle.App)) *lifecycle.App {
	t.Helper()
	cfg.Name, cfg.HealthAddr = "shop", lifecycle.HealthOff
	if cfg.DrainInterval == 0 {
		cfg.DrainInterval = lifecycle.Off
	}
	app, err := lifecycle.New(cfg, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	presence.Announce(app, s.js, presence.Config{ID: id, Version: "1.2.3", Log: brokertest.Quiet()})
	add(app)
	done := make(chan struct{})
	go func() { defer close(done); _ = app.Run(context.Background()) }()
	s.mu.Lock()
	s.apps = append(s.apps, func() { app.Stop(nil); <-done })
	s.mu.Unlock()
	return app
}

// seen waits until a process is in the fleet and ready.
func (s *site) seen(t *testing.T, id string) {
	t.Helper()
	brokertest.Await(t, id, func() bool {
		p, err := s.fleet.Get(t.Context(), id)
		return err == nil && p.Ready
	})
}

// shell returns a spec of a child that runs a script.
func shell(name, script string) worker.Spec {
	spec := worker.CommandSpec(name, func() *exec.Cmd { return exec.Command("/bin/sh", "-c", script) })
	spec.Restart = worker.Always
	return spec
}

// quick is a backoff for tests.
var quick = worker.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}

// faults returns the faults that real processes have.
func faults(away *atomic.Bool) []fault {
	return []fault{
		{"a crash loop", "loop-1", "crash-loop", "unit poller was started again", func(t *testing.T, s *site) {
			s.app(t, "loop-1", lifecycle.Config{}, func(app *lifecycle.App) {
				app.Supervise("poller", func(ctx context.Context) error { return errors.New("connection refused") }, worker.Backoff{Min: 50 * time.Millisecond, Max: time.Second, MaxRestarts: 1 << 20})
			})
		}},
		{"a typo in a configuration", "typo-1", "crash-loop", "exit status 2", func(t *testing.T, s *site) {
			s.app(t, "typo-1", lifecycle.Config{}, func(app *lifecycle.App) {
				tree := worker.NewSupervisor("children", worker.SupervisorConfig{Backoff: worker.Backoff{Min: 50 * time.Millisecond, Max: time.Second, MaxRestarts: 1 << 20}})
				if err := tree.Add(shell("web", "echo unknown key: adress >&2; exit 2")); err != nil {
					t.Error(err)
				}
				app.Add(tree)
			})
		}},
		{"a slow probe", "slow-1", "probe-slow", "probe db is down", func(t *testing.T, s *site) {
			never := make(chan struct{})
			t.Cleanup(func() { close(never) })
			s.app(t, "slow-1", lifecycle.Config{}, func(app *lifecycle.App) {
				app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { <-never; return nil }), lifecycle.WithPeriodic(50*time.Millisecond), health.WithTimeout(20*time.Millisecond))
			})
		}},
		{"a probe that fails", "down-1", "probe-down", "connection refused", func(t *testing.T, s *site) {
			s.app(t, "down-1", lifecycle.Config{}, func(app *lifecycle.App) {
				app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return errors.New("connection refused") }), lifecycle.WithPeriodic(50*time.Millisecond))
			})
		}},
		{"a hook that hangs", "hook-1", "stop-hung", "hook flush", func(t *testing.T, s *site) {
			never := make(chan struct{})
			t.Cleanup(func() { close(never) })
			app := s.app(t, "hook-1", lifecycle.Config{ShutdownGrace: 3 * time.Second}, func(app *lifecycle.App) {
				app.OnShutdown("flush", func(context.Context) error { <-never; return nil })
			})
			s.seen(t, "hook-1")
			app.Stop(nil)
		}},
		{"a unit that fails", "unit-1", "unit-failed", "no such table", func(t *testing.T, s *site) {
			s.app(t, "unit-1", lifecycle.Config{}, func(app *lifecycle.App) {
				tree := worker.NewSupervisor("children", worker.SupervisorConfig{})
				spec := worker.FuncSpec("indexer", func(context.Context) error { return errors.New("no such table") })
				spec.Restart = worker.Never
				if err := tree.Add(spec); err != nil {
					t.Error(err)
				}
				app.Add(tree)
			})
		}},
		{"an end with an error", "end-1", "process-failed", "disk full", func(t *testing.T, s *site) {
			app := s.app(t, "end-1", lifecycle.Config{}, func(app *lifecycle.App) {
				app.OnShutdown("flush", func(context.Context) error { return errors.New("disk full") })
			})
			s.seen(t, "end-1")
			app.Stop(nil)
		}},
		{"a worker that ignores SIGTERM", "deaf-1", "worker-ignores-stop", "unit deaf", func(t *testing.T, s *site) {
			tree := worker.NewSupervisor("children", worker.SupervisorConfig{})
			ready := make(chan struct{}, 1)
			spec := worker.Spec{Name: "deaf", Restart: worker.Never, New: func(name string) (worker.Worker, error) {
				cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
				cmd.Stdout = told{ready}
				return worker.NewProcess(name, cmd, worker.WithGrace(200*time.Millisecond), worker.WithStopSignal(syscall.SIGTERM)), nil
			}}
			if err := tree.Add(spec); err != nil {
				t.Error(err)
			}
			app := s.app(t, "deaf-1", lifecycle.Config{}, func(app *lifecycle.App) { app.Add(tree) })
			<-ready
			s.seen(t, "deaf-1")
			app.Stop(nil)
		}},
		{"a process that disappears", "lost-1", "process-lost", "it was running", func(t *testing.T, s *site) {
			kv, err := s.js.KeyValue(t.Context(), "FLEET")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kv.Put(t.Context(), "lost-1", []byte(`{"service":"shop","status":{"report":{"phase":"running"}}}`)); err != nil {
				t.Fatal(err)
			}
		}},
		{"a poison message", "poison", "dead-letters", "json", func(t *testing.T, s *site) {
			if _, err := s.workers.Create(t.Context(), &operatorv1.CreateWorkerRequest{
				Id: "poison", MimeType: "text/x-starlark", Topics: []string{"orders.poison"},
				Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte("def handle(message):\n  fail(\"json: unexpected end\")\n")}},
			}, "test"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.js.Publish(t.Context(), "orders.poison", []byte("{")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a hot entity", "drone-survey", "entity-hot", "entity hot was written", func(t *testing.T, s *site) {
			if err := s.mgr.Create(t.Context(), &survey{ID: "hot", State: "planning"}); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := uint32(0); ctx.Err() == nil; i++ {
					_ = s.mgr.UpdateFromOperator(ctx, "drone-survey", "hot", map[string]any{"priority": i})
					time.Sleep(20 * time.Millisecond)
				}
			}()
			t.Cleanup(func() { stop(); <-done })
		}},
		{"a stuck entity", "drone-survey", "entity-stuck", "have been planning for longer", func(t *testing.T, s *site) {
			if err := s.mgr.Create(t.Context(), &survey{ID: "stuck", State: "planning"}); err != nil {
				t.Fatal(err)
			}
		}},
		{"NATS is away", "NATS", "dependency-away", "no route to host", func(*testing.T, *site) { away.Store(true) }},
	}
}

// told closes nothing: it says once that a program wrote something.
type told struct{ ready chan struct{} }

func (w told) Write(b []byte) (int, error) {
	select {
	case w.ready <- struct{}{}:
	default:
	}
	return len(b), nil
}

// Each fault is injected into real processes on a real NATS. Then the front page, doctor
// and describe name it, with the cause that was written down before. Before the faults,
// nothing is wrong: also with what only looks like a fault.
func TestFaultsAreNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFaults and TestLookalikes in fleet/internal/diagnosis are the short version")
	}
	s := newSite(t)
	var away atomic.Bool
	cfg := s.config()
	cfg.StuckAfter = 3 * time.Second
	cfg.Dependencies = []operator.Dependency{{Name: "NATS", Check: func(context.Context) error {
		if away.Load() {
			return errors.New("no route to host")
		}
		return nil
	}}}
	url, err := s.serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	harmless(t, s)
	if code, out := ctl(t, url, "doctor"); code != 0 || !strings.Contains(out, "nothing is wrong") {
		t.Fatalf("doctor about a fleet that is well: %d\n%s", code, out)
	}
	if page := frontPage(t, url); !strings.Contains(page, "Nothing is wrong.") {
		t.Errorf("the front page of a fleet that is well:\n%s", page)
	}
	all := faults(&away)
	for _, f := range all {
		f.inject(t, s)
	}
	named := func(text string, f fault) bool {
		for line := range strings.Lines(text) {
			if strings.Contains(line, f.rule) && strings.Contains(line, f.about) && strings.Contains(line, f.cause) {
				return true
			}
		}
		return false
	}
	var out string
	var missing []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("not named: %q\n%s", missing, out)
		}
	})
	brokertest.Await(t, "all faults in doctor", func() bool {
		var code int
		code, out = ctl(t, url, "doctor")
		missing = nil
		for _, f := range all {
			if !named(out, f) {
				missing = append(missing, f.name)
			}
		}
		return code == 1 && len(missing) == 0
	})
	page := strings.ReplaceAll(frontPage(t, url), "\n", " ")
	for _, f := range all {
		found := false
		for _, r := range strings.Split(page, "<tr ") {
			found = found || strings.Contains(r, f.rule) && strings.Contains(r, f.about) && strings.Contains(r, f.cause)
		}
		if !found {
			t.Errorf("%s: the front page has no row with %s, %s and %q", f.name, f.rule, f.about, f.cause)
		}
		if f.rule == "dependency-away" || strings.HasPrefix(f.rule, "entity") || f.rule == "dead-letters" {
			continue
		}
		if code, text := ctl(t, url, "describe", f.about); code != 0 || !named(text, f) {
			t.Errorf("%s: describe %s does not name it: %d\n%s", f.name, f.about, code, text)
		}
	}
}

// harmless runs processes that only look as if something were wrong.
func harmless(t *testing.T, s *site) {
	t.Helper()
	s.app(t, "finished", lifecycle.Config{}, func(app *lifecycle.App) {
		app.Go("migrate", func(context.Context) error { return nil })
	})
	s.app(t, "restarted-once", lifecycle.Config{}, func(app *lifecycle.App) {
		var first atomic.Bool
		app.Supervise("poller", func(ctx context.Context) error {
			if !first.Swap(true) {
				return errors.New("once")
			}
			<-ctx.Done()
			return nil
		}, quick)
	})
	s.app(t, "side", lifecycle.Config{}, func(app *lifecycle.App) {
		app.Probe("cache", lifecycle.ProbeFunc(func(context.Context) error { return errors.New("cold") }), lifecycle.WithPeriodic(50*time.Millisecond), health.WithNonCritical())
	})
	suspended := s.app(t, "suspended", lifecycle.Config{}, func(*lifecycle.App) {})
	for _, id := range []string{"finished", "restarted-once", "side", "suspended"} {
		s.seen(t, id)
	}
	suspended.Suspend("deploy")
	let := make(chan struct{})
	t.Cleanup(func() { close(let) })
	slow := s.app(t, "draining", lifecycle.Config{DrainInterval: time.Minute, DrainMin: lifecycle.Off}, func(app *lifecycle.App) {
		app.OnDrain("streams", lifecycle.DrainFunc(func(ctx context.Context) error {
			select {
			case <-let:
			case <-ctx.Done():
			}
			return nil
		}))
	})
	s.seen(t, "draining")
	slow.Stop(nil)
	s.app(t, "starting", lifecycle.Config{}, func(app *lifecycle.App) {
		app.Go("cache", func(ctx context.Context) error { <-ctx.Done(); return nil }, lifecycle.WithStartCondition())
	})
	gone := s.app(t, "gone", lifecycle.Config{}, func(*lifecycle.App) {})
	s.seen(t, "gone")
	gone.Stop(nil)
	<-gone.Reached(lifecycle.PhaseStopped)
	for _, id := range []string{"draining", "starting"} {
		brokertest.Await(t, id, func() bool {
			p, err := s.fleet.Get(t.Context(), id)
			return err == nil && string(p.Status.Report.Phase) == id
		})
	}
	if err := s.mgr.Create(t.Context(), &survey{ID: "landed", State: "completed"}); err != nil {
		t.Fatal(err)
	}
}
