//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestBrokenProtocolCostsOneRequestAndTheWorker uses workers that break the
// contract on their first query only. The pool ends such a worker, and another
// one answers the next query.
func TestBrokenProtocolCostsOneRequestAndTheWorker(t *testing.T) {
	for _, c := range []struct {
		mode string
		is   error
		want string
	}{
		{"garbage", wire.ErrNotJSON, "content"},
		{"nul", wire.ErrNotJSON, "control character"},
		{"escape", wire.ErrNotJSON, "wrong escape"},
		{"not-utf-8", wire.ErrNotJSON, "not UTF-8"},
		{"partial", io.ErrUnexpectedEOF, "in the middle of a line"},
		{"other-request", procpool.ErrProtocol, `"q999", which it was not given`},
		{"ack-unasked", procpool.ErrProtocol, "shutdown_ack and was not asked"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			p := start(t, c.mode, func(cfg *procpool.Config) {
				cfg.MaxQueue, cfg.Backoff.Min = 5, time.Millisecond
			})
			first := submit(t, p, ask{}.raw())
			_, err := first.Result()
			var broke *procpool.ProtocolError
			if !errors.As(err, &broke) || !errors.Is(err, c.is) || broke.Worker != "p/1" || broke.Query != first.ID() || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			eventually(t, "the worker is replaced", func() bool { return p.Stats().Crashed == 1 })
		})
	}
}

func TestReadyTwiceRecyclesTheWorker(t *testing.T) {
	p := start(t, "ready-twice", func(c *procpool.Config) { c.MinWorkers, c.Backoff.Min = 1, time.Hour; c.Backoff.Max = time.Hour })
	eventually(t, "it is gone", func() bool { return p.Stats().Crashed == 1 })
	if err := p.Probe(within(t)).Err; err == nil || !strings.Contains(err.Error(), "ready again") {
		t.Errorf("the pool says %v", err)
	}
}

func TestUnknownTypesAndFieldsAreIgnored(t *testing.T) {
	p := start(t, "unknown-types", nil)
	for range 3 {
		if got := do(t, p, ask{}.raw()); got != `"fine"` {
			t.Errorf("got %s", got)
		}
	}
	if s := p.Stats(); s.Unknown != 3 || s.Spawned != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTooLongLineFailsThatRequest also shows that the worker lives on: the pool skips
// the line.
func TestTooLongLineFailsThatRequest(t *testing.T) {
	for _, mode := range []string{"100MB", "100MB-complete"} {
		t.Run(mode, func(t *testing.T) {
			p := start(t, mode, func(c *procpool.Config) { c.MaxFrame, c.MaxQueue, c.CancelGrace = 1<<20, 1, patience })
			var long *wire.TooLongError
			if _, err := p.Do(within(t), ask{}.raw()); !errors.As(err, &long) || !errors.Is(err, procpool.ErrProtocol) || long.Limit != 1<<20 {
				t.Fatalf("got %v", err)
			}
			if got := do(t, p, ask{}.raw()); got != `"well"` {
				t.Errorf("got %s", got)
			}
			if s := p.Stats(); s.Spawned != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestFloodsAreBounded(t *testing.T) {
	t.Run("of messages for a caller that does not read", func(t *testing.T) {
		p := start(t, "flood", func(c *procpool.Config) { c.CancelGrace = time.Second })
		q := submit(t, p, ask{}.raw())
		eventually(t, "it streams", func() bool { return q.State() == procpool.QueryStreaming })
		q.Cancel(nil)
		eventually(t, "the worker is gone", func() bool { return p.Stats().State == procpool.PoolIdle })
	})
	for _, mode := range []string{"flood-unknown", "flood-stacks", "flood-calls"} {
		t.Run(mode, func(t *testing.T) {
			p := start(t, mode, func(c *procpool.Config) { c.WriteTimeout = time.Hour })
			_, err := p.Do(within(t), ask{}.raw(), procpool.Timeout(20*time.Second))
			if !errors.Is(err, procpool.ErrProtocol) || !strings.Contains(err.Error(), "had to ignore") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStallInTheMiddleOfALine(t *testing.T) {
	p := start(t, "stall", func(c *procpool.Config) { c.CancelGrace = 50 * time.Millisecond })
	// On a busy machine the deadline may pass before a worker has the query.
	eventually(t, "the worker that had a query is gone", func() bool {
		if _, err := p.Do(within(t), ask{}.raw(), procpool.Timeout(100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, procpool.ErrBusy) {
			t.Errorf("got %v", err)
		}
		s := p.Stats()
		return s.State == procpool.PoolIdle || s.Spawned > 1
	})
}

func TestDisconnectIsACrash(t *testing.T) {
	p := start(t, "disconnect", nil)
	var crash *procpool.CrashError
	if _, err := p.Do(within(t), ask{}.raw()); !errors.As(err, &crash) || crash.Worker != "p/1" {
		t.Errorf("got %v", err)
	}
}

func TestCrashIsTypedWithItsExitAndItsLastWords(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.Backoff.Min = time.Millisecond; c.MaxQueue = 1 })
	var crash *procpool.CrashError
	_, err := p.Do(within(t), ask{Op: "exit", N: 7, Text: "noise\nout of cheese"}.raw())
	if !errors.As(err, &crash) || crash.ExitCode != 7 || crash.Signal != "" || crash.PID == 0 || crash.Query == "" ||
		!strings.Contains(crash.Stderr, "noise") || !strings.HasSuffix(err.Error(), "last line of stderr: out of cheese") {
		t.Errorf("got %v", err)
	}
	_, err = p.Do(within(t), ask{Op: "kill", N: int(syscall.SIGKILL)}.raw())
	if !errors.As(err, &crash) || crash.Signal != "SIGKILL" || crash.ExitCode != -1 {
		t.Errorf("got %v", err)
	}
}

func TestRetryOfAnIdempotentQuery(t *testing.T) {
	quick := func(c *procpool.Config) { c.Backoff.Min = time.Millisecond; c.MaxQueue = 1 }
	t.Run("it is tried again", func(t *testing.T) {
		p := start(t, "serve", quick)
		q := ask{Op: "exit-once", N: 1, Path: filepath.Join(t.TempDir(), "was")}.raw()
		if got := do(t, p, q, procpool.Idempotent()); got != `"second time"` || p.Stats().Retried != 1 {
			t.Errorf("got %s, %+v", got, p.Stats())
		}
	})
	t.Run("not for ever", func(t *testing.T) {
		p := start(t, "serve", quick)
		var crash *procpool.CrashError
		if _, err := p.Do(within(t), ask{Op: "exit", N: 1}.raw(), procpool.Idempotent()); !errors.As(err, &crash) || p.Stats().Retried != 1 {
			t.Errorf("got %v, %+v", err, p.Stats())
		}
	})
	t.Run("not unless it is marked", func(t *testing.T) {
		p := start(t, "serve", quick)
		q := ask{Op: "exit-once", N: 1, Path: filepath.Join(t.TempDir(), "was")}.raw()
		if _, err := p.Do(within(t), q); err == nil || p.Stats().Retried != 0 {
			t.Errorf("got %v, %+v", err, p.Stats())
		}
	})
	t.Run("not after a message", func(t *testing.T) {
		p := start(t, "serve", quick)
		if _, err := p.Do(within(t), ask{Op: "exit-after-message", N: 1}.raw(), procpool.Idempotent()); err == nil || p.Stats().Retried != 0 {
			t.Errorf("got %v, %+v", err, p.Stats())
		}
	})
}

func TestCrashLoopBacksOffAndOpensTheBreaker(t *testing.T) {
	p := start(t, "exit:always", func(c *procpool.Config) {
		c.MinWorkers, c.BreakAfter = 1, 3
		c.Backoff = worker.Backoff{Min: time.Millisecond, Max: time.Hour, Factor: 1000, Jitter: worker.NoJitter}
	})
	// The attempts come after 1 ms, 1 s and 1000 s: the third is the last in this test.
	eventually(t, "three have failed", func() bool { return p.Stats().Failures == 3 })
	_, err := p.Do(within(t), ask{}.raw())
	var rejected *procpool.RejectedError
	if !errors.As(err, &rejected) || !errors.Is(err, procpool.ErrUnavailable) || rejected.RetryAfter < time.Minute {
		t.Errorf("got %v", err)
	}
	if s := p.Stats(); s.Spawned != 3 || time.Until(s.NotUntil) < time.Minute {
		t.Errorf("%+v", s)
	}
}

// While the breaker is open the extra worker goes on with the queries of its keys.
func TestBreakerAndTheKeysOfTheExtraWorker(t *testing.T) {
	dir := t.TempDir()
	p := startPool(t, func() *exec.Cmd {
		if exists(dir, "broken") {
			return self("exit:broken")
		}
		return self("serve")
	}, func(c *procpool.Config) {
		c.BreakAfter, c.MaxQueue = 1, 10
		c.Backoff = worker.Backoff{Min: time.Hour, Max: time.Hour}
		c.Poison.Deaths = 10
	})
	write := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bob := procpool.Key("bob")
	wait := ask{Op: "wait", Path: filepath.Join(dir, "open"), Text: "alone"}.raw()
	first := submit(t, p, wait, bob, procpool.Idempotent(), procpool.BeginAnew())
	busy := func() (pid int) {
		for _, w := range p.State().Children {
			if strings.HasPrefix(w.Reason, "busy with "+first.ID()) {
				pid = w.PID
			}
		}
		return pid
	}
	eventually(t, "a worker has it", func() bool { return busy() != 0 })
	was := busy()
	kill(t, was)
	eventually(t, "the extra worker has it", func() bool { pid := busy(); return pid != 0 && pid != was })
	second := submit(t, p, nextOne, bob)
	write("broken")
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
		t.Errorf("a query that no worker can take: %v", err)
	}
	write("open")
	for name, q := range map[string]*procpool.Query{"first": first, "second": second} {
		if _, err := q.Result(); err != nil {
			t.Errorf("the %s query of the key: %v", name, err)
		}
	}
}

// While the breaker is open the extra worker goes on with the queries that run alone. Without
// it such a query is rejected at once, as any other.
func TestBreakerAndQueriesThatRunAlone(t *testing.T) {
	for _, extraLives := range []bool{true, false} {
		t.Run(strconv.FormatBool(extraLives), func(t *testing.T) {
			dir := t.TempDir()
			broken := func() bool { return exists(dir, "broken") }
			p := startPool(t, func() *exec.Cmd {
				if broken() {
					return self("exit:broken")
				}
				return self("serve")
			}, func(c *procpool.Config) {
				c.BreakAfter, c.MaxQueue = 1, 10
				c.Backoff = worker.Backoff{Min: time.Hour, Max: time.Hour}
				c.Poison.Deaths = 10
			})
			breaks := func() {
				if err := os.WriteFile(filepath.Join(dir, "broken"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			query := func(name string) *procpool.Query {
				return submit(t, p, ask{Op: "wait", Path: filepath.Join(dir, "open"), Text: name}.raw(), procpool.Idempotent())
			}
			dies := func(name string) *procpool.Query {
				q := query(name)
				eventually(t, "a worker has it", func() bool { return q.State() == procpool.QueryProcessing })
				if name == "last" {
					breaks()
				}
				for _, w := range p.State().Children {
					if strings.HasPrefix(w.Reason, "busy with "+q.ID()) {
						kill(t, w.PID)
					}
				}
				return q
			}
			if !extraLives {
				q := dies("last")
				if _, err := q.Result(); !errors.Is(err, procpool.ErrUnavailable) {
					t.Errorf("the query whose worker has died: %v", err)
				}
				if q := query("last"); q.State() != procpool.QueryRejected {
					t.Errorf("one like it is %s, want rejected", q.State())
				}
				return
			}
			first := dies("first")
			eventually(t, "the extra worker has it", func() bool { return p.Stats().Retried == 1 && p.Stats().Busy == 1 })
			second := dies("second")
			eventually(t, "it waits for the extra worker", func() bool { return p.Stats().Retried == 2 })
			breaks()
			if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
				t.Errorf("a query for any worker: %v", err)
			}
			open(t, dir)
			for _, q := range []*procpool.Query{first, second} {
				if got, err := q.Result(); err != nil || string(got) != `"waited"` {
					t.Errorf("%s, %v", got, err)
				}
			}
		})
	}
}

func TestHealthChecks(t *testing.T) {
	t.Run("one that does not answer is replaced", func(t *testing.T) {
		p := start(t, "no-health", func(c *procpool.Config) {
			c.MinWorkers, c.HealthInterval, c.HealthTimeout = 1, 20*time.Millisecond, 20*time.Millisecond
			c.Backoff.Min = time.Millisecond
		})
		eventually(t, "it was replaced", func() bool { return p.Stats().Spawned > 1 })
	})
	t.Run("one that is stopped is replaced", func(t *testing.T) {
		p := start(t, "serve", func(c *procpool.Config) {
			c.HealthInterval, c.HealthTimeout = 50*time.Millisecond, 200*time.Millisecond
		})
		do(t, p, ask{}.raw())
		pid := 0
		eventually(t, "a healthy one is stopped", func() bool { // a busy machine may replace the first ones too
			s := p.State()
			if len(s.Children) != 1 || s.Children[0].Health != worker.HealthHealthy {
				return false
			}
			pid = s.Children[0].PID
			return syscall.Kill(pid, syscall.SIGSTOP) == nil
		})
		eventually(t, "it is gone", func() bool { return !alive(pid) })
	})
}

// TestLargeWriteToAWorkerThatDoesNotReadIsGivenUp writes more than all buffers
// hold to a worker that stands still.
func TestLargeWriteToAWorkerThatDoesNotReadIsGivenUp(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.CancelGrace = time.Second })
	pid, _ := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw()))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	payload, _ := json.Marshal(strings.Repeat("x", 8<<20))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Do(ctx, payload); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the worker is gone", func() bool { return !alive(pid) })
}

// TestPoolMessagesFitTheSchemas has a worker that checks every line against its
// schema, as all helpers of mode raw do, and records the messages that it gets.
// Package conformance checks the other direction.
func TestPoolMessagesFitTheSchemas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heard")
	t.Setenv("HEARD", file)
	p, err := procpool.New(procpool.Config{
		Name: "p", Command: func() *exec.Cmd { return self("told") }, SocketDir: socketDir(t), Logger: quiet, MinWorkers: 1, MaxQueue: 1,
		HealthInterval: 5 * time.Millisecond, HealthTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 }) // otherwise the query may end before it is sent
	q := submit(t, p, ask{Text: "é\n\"\u2028"}.raw())
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	q.Cancel(nil)
	do(t, p, []byte(" [\n1 ]\n"))
	eventually(t, "it was asked for its health", func() bool {
		text, _ := os.ReadFile(file)
		return strings.Contains(string(text), string(wire.HealthCheck))
	})
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []wire.Type{wire.Query, wire.Cancel, wire.HealthCheck, wire.Shutdown} {
		if !strings.Contains(string(text), string(want)) {
			t.Errorf("the worker did not get %s, only\n%s", want, text)
		}
	}
	if s := p.Stats(); s.Crashed != 0 {
		t.Errorf("%+v", s)
	}
}
