package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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

// quick is a backoff for tests, and endless one for what never comes up.
var (
	quick   = worker.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}
	endless = worker.Backoff{Min: 50 * time.Millisecond, Max: time.Second, MaxRestarts: 1 << 20}
)

// written reports once that a program wrote something.
type written struct{ ready chan struct{} }

func (w written) Write(b []byte) (int, error) {
	select {
	case w.ready <- struct{}{}:
	default:
	}
	return len(b), nil
}

// under adds a supervisor with one child to an app.
func under(t *testing.T, app *lifecycle.App, spec worker.Spec) {
	t.Helper()
	tree := worker.NewSupervisor("children", worker.SupervisorConfig{Backoff: endless})
	if err := tree.Add(spec); err != nil {
		t.Error(err)
	}
	app.Add(tree)
}

// faults returns the faults of one process, of one entity and of one hosted worker, with
// the causes that were written down before. The first eleven come from the operators'
// trial, without two: NATS goes away last, and memory needs a cgroup.
func faults() []fault {
	return append([]fault{
		{
			name: "a start that blocks", about: "blocked-1",
			rule: "start-blocked", cause: "waits for unit cache",
			inject: func(t *testing.T, s *site) {
				s.app(t, "blocked-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Go("cache", func(ctx context.Context) error { <-ctx.Done(); return nil }, lifecycle.WithStartCondition())
				})
			}},
		{
			name: "a crash loop", about: "loop-1",
			rule: "crash-loop", cause: "unit poller was started again",
			inject: func(t *testing.T, s *site) {
				s.app(t, "loop-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Supervise("poller", func(ctx context.Context) error { return errors.New("connection refused") }, endless)
				})
			}},
		{
			name: "a unit in a long backoff", about: "backoff-1",
			rule: "unit-failed", cause: "unit ledger/ledger does not run: it has waited for",
			inject: func(t *testing.T, s *site) {
				long := worker.Backoff{Min: time.Hour, Max: time.Hour, MaxRestarts: worker.NoLimit}
				s.app(t, "backoff-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Supervise("ledger", func(context.Context) error { return errors.New("connection refused") }, long)
				})
			}},
		{
			name: "a typo in a configuration", about: "typo-1",
			rule: "crash-loop", cause: "exit status 2; last line of stderr: ",
			inject: func(t *testing.T, s *site) {
				file := filepath.Join(t.TempDir(), "shop.yaml")
				if err := os.WriteFile(file, []byte("adress: :8080\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				s.app(t, "typo-1", lifecycle.Config{}, func(app *lifecycle.App) {
					spec := worker.CommandSpec("web", func() *exec.Cmd {
						cmd := s.command("typo-2", "FAULT_CONFIG="+file)
						cmd.Stderr = io.Discard
						return cmd
					})
					spec.Restart = worker.Always
					under(t, app, spec)
				})
			}},
		{
			name: "a deadlock", about: "deadlock-1",
			rule: "unit-stands-still", cause: "unit consumer has given no sign of progress",
			inject: func(t *testing.T, s *site) {
				s.app(t, "deadlock-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Go("consumer", func(ctx context.Context) error {
						for range 5 {
							lifecycle.Progress(ctx)
						}
						<-ctx.Done() // for a lock that nothing gives back
						return nil
					})
				})
			}},
		{
			name: "a deadlock in a server", about: "server-1",
			rule: "unit-stands-still", cause: "server http has finished no request and sent nothing for",
			inject: func(t *testing.T, s *site) {
				never := make(chan struct{}) // a lock that nothing gives back
				app := s.app(t, "server-1", lifecycle.Config{ShutdownGrace: 5 * time.Second}, func(app *lifecycle.App) {
					app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-never })})
				})
				s.seen(t, "server-1")
				ctx, stop := context.WithCancel(context.Background())
				var clients sync.WaitGroup
				for range 5 {
					clients.Go(func() {
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+app.Addr("http").String(), nil)
						if err != nil {
							return
						}
						if resp, err := http.DefaultClient.Do(req); err == nil {
							resp.Body.Close()
						}
					})
				}
				t.Cleanup(func() { stop(); clients.Wait(); close(never) })
			},
		},
		{
			name: "handlers that panic", about: "panics-1",
			rule: "requests-panic", cause: "handlers of server http have panicked 4 times",
			inject: func(t *testing.T, s *site) {
				app := s.app(t, "panics-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Serve("http", &http.Server{
						Addr:     "127.0.0.1:0",
						Handler:  http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no such order") }),
						ErrorLog: log.New(io.Discard, "", 0),
					})
				})
				s.seen(t, "panics-1")
				for range 4 {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+app.Addr("http").String(), http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					if resp, err := http.DefaultClient.Do(req); err == nil {
						resp.Body.Close()
						t.Errorf("a handler that panics answers %s", resp.Status)
					}
				}
			},
		},
		{
			name: "a leak of goroutines", about: "till.leak-1",
			rule: "goroutines-grow", cause: "its goroutines have only grown for",
			inject: func(t *testing.T, s *site) {
				_, in := s.child(t, "till.leak-1")
				fmt.Fprintln(in, "leak")
			}},
		{
			name: "many open files", about: "till.files-1",
			rule: "descriptors-high", cause: "of at most 200 open files",
			inject: func(t *testing.T, s *site) {
				_, in := s.child(t, "till.files-1")
				fmt.Fprintln(in, "files")
			}},
		{
			name: "a slow probe", about: "slow-1",
			rule: "probe-slow", cause: "probe db is down",
			inject: func(t *testing.T, s *site) {
				never := make(chan struct{})
				t.Cleanup(func() { close(never) })
				s.app(t, "slow-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { <-never; return nil }), lifecycle.WithPeriodic(50*time.Millisecond), health.WithTimeout(20*time.Millisecond))
				})
			}},
		{
			name: "a hook that hangs", about: "hook-1",
			rule: "stop-hung", cause: "hook flush",
			inject: func(t *testing.T, s *site) {
				// In a process of its own, which the watchdog ends 2 s later when the machine stands still.
				cmd, _ := s.child(t, "hook-1", "FAULT_HANG=yes")
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}},
		{
			name: "a grace that is too short", about: "till.short-1",
			rule: "grace-too-short", cause: "it was killed about",
			inject: func(t *testing.T, s *site) {
				cmd, _ := s.child(t, "till.short-1", "FAULT_DRAIN=yes")
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				brokertest.Await(t, "the drain", func() bool {
					p, err := s.fleet.Get(t.Context(), "till.short-1")
					return err == nil && p.Status.Report.Phase == lifecycle.PhaseDraining
				})
				_ = cmd.Process.Kill() // as the kubelet does when the grace is over
			}},
		{
			name: "a worker that ignores SIGTERM", about: "deaf-1",
			rule: "worker-ignores-stop", cause: "unit deaf",
			inject: func(t *testing.T, s *site) {
				ready := make(chan struct{}, 1)
				app := s.app(t, "deaf-1", lifecycle.Config{}, func(app *lifecycle.App) {
					under(t, app, worker.Spec{Name: "deaf", Restart: worker.Never, New: func(name string) (worker.Worker, error) {
						cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
						cmd.Stdout = written{ready}
						return worker.NewProcess(name, cmd, worker.WithGrace(200*time.Millisecond), worker.WithStopSignal(syscall.SIGTERM)), nil
					}})
				})
				<-ready
				s.seen(t, "deaf-1")
				app.Stop(nil)
			}},
		{
			name: "a poison message", about: "worker/poison",
			rule: "dead-letters", cause: "json",
			inject: func(t *testing.T, s *site) {
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
		{
			name: "a stuck entity", about: "drone-survey",
			rule: "entity-stuck", cause: "in the phase planning for longer",
			inject: func(t *testing.T, s *site) {
				if err := s.mgr.Create(t.Context(), &survey{ID: "stuck", State: "planning"}); err != nil {
					t.Fatal(err)
				}
			}},
		{
			name: "a hot entity", about: "drone-survey",
			rule: "entity-hot", cause: "entity hot was written",
			inject: func(t *testing.T, s *site) {
				if err := s.mgr.Create(t.Context(), &survey{ID: "hot", State: "flying"}); err != nil {
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
	}, moreFaults()...)
}

// moreFaults returns the faults that were not in the operators' trial.
func moreFaults() []fault {
	return []fault{
		{
			name: "a process that disappears for good", about: "till.lost-1",
			rule: "process-lost", cause: "it was running; its last known memory was ",
			inject: func(t *testing.T, s *site) {
				cmd, _ := s.child(t, "till.lost-1")
				_ = cmd.Process.Kill()
			}},
		{
			name: "a process that is frozen", about: "freezer.frozen-1",
			rule: "process-lost", cause: "it was running; its last known memory was ",
			inject: func(t *testing.T, s *site) {
				cmd, _ := s.child(t, "freezer.frozen-1")
				if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}},
		{
			name: "a service whose processes end badly", about: "service/till",
			rule: "crash-loop", cause: "processes of till ended badly within",
			inject: func(t *testing.T, s *site) {
				for _, id := range []string{"till.lost-2", "till.lost-3"} {
					cmd, _ := s.child(t, id)
					_ = cmd.Process.Kill()
				}
			}},
		{
			name: "a probe that fails", about: "down-1",
			rule: "probe-down", cause: "connection refused",
			inject: func(t *testing.T, s *site) {
				s.app(t, "down-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return errors.New("connection refused") }), lifecycle.WithPeriodic(50*time.Millisecond))
				})
			}},
		{
			name: "a probe that flaps", about: "flap-1",
			rule: "probe-flaps", cause: "and passed in between: connection reset",
			inject: func(t *testing.T, s *site) {
				var n atomic.Int64
				s.app(t, "flap-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error {
						if n.Add(1)/8%2 == 1 {
							return errors.New("connection reset")
						}
						return nil
					}), lifecycle.WithPeriodic(250*time.Millisecond))
				})
			},
		},
		{
			name: "a service that is suspended as a whole", about: "service/bakery",
			rule: "suspended-long", cause: "no process of bakery is ready: readiness is suspended in all 2",
			inject: func(t *testing.T, s *site) {
				for _, id := range []string{"oven-1", "oven-2"} {
					app := s.appOf(t, "bakery", "1.2.3", id, lifecycle.Config{}, func(*lifecycle.App) {})
					s.seen(t, id)
					app.Suspend("new flour")
				}
			},
		},
		{
			name: "threads that a call blocks", about: "till.threads-1",
			rule: "threads-high", cause: "threads; a program in Go ends at 10000",
			inject: func(t *testing.T, s *site) {
				_, in := s.child(t, "till.threads-1")
				fmt.Fprintln(in, "threads")
			},
		},
		{
			name: "a start that fails", about: "till.begin-1",
			rule: "process-failed", cause: "address already in use",
			inject: func(t *testing.T, s *site) {
				taken, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { taken.Close() })
				cmd := s.command("till.begin-1", "FAULT_ADDR="+taken.Addr().String())
				in, err := cmd.StdinPipe() // its end would stop the process
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				if err := cmd.Run(); err == nil {
					t.Error("it has started")
				}
			},
		},
		{
			name: "a unit that fails", about: "unit-1",
			rule: "unit-failed", cause: "no such table",
			inject: func(t *testing.T, s *site) {
				s.app(t, "unit-1", lifecycle.Config{}, func(app *lifecycle.App) {
					spec := worker.FuncSpec("indexer", func(context.Context) error { return errors.New("no such table") })
					spec.Restart = worker.Never
					under(t, app, spec)
				})
			}},
		{
			name: "an end with an error", about: "end-1",
			rule: "process-failed", cause: "disk full",
			inject: func(t *testing.T, s *site) {
				app := s.app(t, "end-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.OnShutdown("flush", func(context.Context) error { return errors.New("disk full") })
				})
				s.seen(t, "end-1")
				app.Stop(nil)
			}},
		{
			name: "a reload that is refused", about: "reload-1",
			rule: "reload-refused", cause: "unknown key adress",
			inject: func(t *testing.T, s *site) {
				app := s.app(t, "reload-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.OnReload("config", func(context.Context) error { return errors.New("unknown key adress") })
				})
				s.seen(t, "reload-1")
				if err := app.Reload(t.Context()); err == nil {
					t.Error("the reload was not refused")
				}
			}},
		{
			name: "more events than the journal takes", about: "storm-1",
			rule: "journal-dropped", cause: "it had more than the journal takes",
			inject: func(t *testing.T, s *site) {
				s.app(t, "storm-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Supervise("poller", failing(2000), worker.Backoff{Min: time.Millisecond, Max: time.Millisecond, MaxRestarts: 1 << 20})
				})
			}},
		{
			name: "an announcement that another client has written", about: "shop.forged-1",
			rule: "announcement-suspect", cause: "another client has written its entry",
			inject: func(t *testing.T, s *site) {
				s.app(t, "forged-1", lifecycle.Config{}, func(*lifecycle.App) {})
				s.seen(t, "forged-1")
				kv, err := s.js.KeyValue(t.Context(), "FLEET")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := kv.Put(t.Context(), "shop.forged-1", []byte(`{"service":"shop","status":{"report":{"phase":"running"}}}`)); err != nil {
					t.Fatal(err)
				}
			}},
		{
			name: "two processes with one id", about: "shop.twin-1",
			rule: "announcement-suspect", cause: "two processes announce themselves under this id",
			inject: func(t *testing.T, s *site) {
				s.app(t, "twin-1", lifecycle.Config{}, func(*lifecycle.App) {})
				s.seen(t, "twin-1")
				s.app(t, "twin-1", lifecycle.Config{}, func(*lifecycle.App) {})
			}},
		{
			name: "a record that cannot be read", about: "drone-survey",
			rule: "entity-degraded", cause: "1 stored record cannot be read",
			inject: func(t *testing.T, s *site) {
				kv, err := s.js.KeyValue(t.Context(), "MISSIONS")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := kv.Put(t.Context(), "torn", []byte(`{"id":"torn","phase":`)); err != nil {
					t.Fatal(err)
				}
			}},
	}
}

// loadFaults returns the faults that need a processor of their own.
func loadFaults() []fault {
	return []fault{
		{
			name: "a busy loop", about: "till.spin-1",
			rule: "processor-busy", cause: "of one processor, of at most",
			inject: func(t *testing.T, s *site) {
				_, in := s.child(t, "till.spin-1")
				fmt.Fprintln(in, "spin")
			},
		},
	}
}

// hungryLimit is the limit of the process of memoryFaults, in bytes.
const hungryLimit = 256 << 20

// memoryFaults are a process that fills its memory, and then is killed for it: two faults,
// one after the other, and the kill as its starter sees it. burst begins the second part.
func memoryFaults(parent string) (full fault, killed []fault, burst func()) {
	var say *os.File
	full = fault{
		name: "a process whose memory is nearly full", about: "hungry-1",
		rule: "memory-high", cause: "of its limit of 256 MiB",
		inject: func(t *testing.T, s *site) {
			in, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			say = out
			t.Cleanup(func() { in.Close(); out.Close() })
			fmt.Fprintln(say, "fill", hungryLimit)
			s.app(t, "keeper-1", lifecycle.Config{}, func(app *lifecycle.App) {
				under(t, app, worker.Spec{Name: "hungry", Restart: worker.Never, New: func(name string) (worker.Worker, error) {
					cmd := s.command("hungry-1")
					cmd.Stdin = in
					return worker.NewProcess(name, cmd, worker.WithCgroup(parent), worker.WithLimits(worker.Limits{Memory: hungryLimit, Required: true})), nil
				}})
			})
		}}
	killed = []fault{
		{name: "a process that the kernel kills for its memory", about: "till.hungry-1", rule: "out-of-memory", cause: "so the kernel probably killed it"},
		{name: "the same, as its starter sees it", about: "keeper-1", rule: "out-of-memory", cause: "worker children/hungry: out of memory"},
	}
	return full, killed, func() { fmt.Fprintln(say, "burst") }
}
