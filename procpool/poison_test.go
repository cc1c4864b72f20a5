//go:build unix

package procpool_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// strict has a breaker and a backoff that a test would notice.
func strict(c *procpool.Config) {
	c.MaxWorkers, c.MaxQueue, c.BreakAfter = 2, 50, 3
	c.Backoff = worker.Backoff{Min: time.Hour, Max: time.Hour}
}

// poison kills the worker that has it. Each nonce is another payload.
func poison(nonce int) ask { return ask{Op: "exit", N: 1, Text: "nonce " + strconv.Itoa(nonce)} }

func TestPoisonDoesNotTakeThePoolFromOthers(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { strict(c); c.Poison.Deaths = procpool.Off })
	for nonce := range 10 {
		if _, err := p.Do(within(t), poison(nonce).raw(), procpool.Idempotent(), procpool.Caller("bad")); err == nil {
			t.Fatal("the poison was answered")
		}
		do(t, p, ask{}.raw(), procpool.Caller("good"))
		if r := p.Probe(within(t)); r.Err != nil {
			t.Errorf("the pool says that it is unhealthy: %v", r.Err)
		}
	}
	if s := p.Stats(); s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

func TestQueryOfDeathIsTriedAloneAndThenRefused(t *testing.T) {
	p := start(t, "serve", strict)
	_, err := p.Do(within(t), poison(1).raw(), procpool.Idempotent())
	var crash *procpool.CrashError
	var poisoned *procpool.PoisonError
	if !errors.As(err, &crash) || !errors.As(err, &poisoned) || !errors.Is(err, procpool.ErrPoison) || poisoned.Deaths != 2 || crash.ExitCode != 1 {
		t.Fatalf("got %v", err)
	}
	if s := p.Stats(); s.Crashed != 2 || s.Retried != 1 || s.Poisoned != 1 {
		t.Errorf("%+v", s)
	}
	spawned := p.Stats().Spawned
	var rejected *procpool.RejectedError
	if _, err = p.Do(within(t), poison(1).raw()); !errors.As(err, &rejected) || !errors.Is(err, procpool.ErrPoison) || rejected.RetryAfter < time.Minute {
		t.Errorf("the same query again: %v", err)
	}
	if s := p.Stats(); s.Spawned != spawned {
		t.Errorf("a worker was spent on a query that is known: %+v", s)
	}
	list := p.Poisoned()
	if len(list) != 1 || list[0].Fingerprint != poisoned.Fingerprint || list[0].Deaths != 2 || !strings.Contains(list[0].Last, "exited with code 1") {
		t.Fatalf("the list is %+v", list)
	}
	if !p.Release(list[0].Fingerprint) || p.Release(list[0].Fingerprint) || len(p.Poisoned()) != 0 {
		t.Error("it was not released once")
	}
	if _, err = p.Do(within(t), poison(1).raw()); !errors.As(err, &crash) || errors.Is(err, procpool.ErrPoison) {
		t.Errorf("after the release: %v", err)
	}
}

// TestQueryThatMayRunOnceIsTriedAloneWhenItComesAgain uses a query that is not idempotent:
// the pool does not repeat it, and gives the next one of its kind to an extra worker.
func TestQueryThatMayRunOnceIsTriedAloneWhenItComesAgain(t *testing.T) {
	p := start(t, "serve", strict)
	mark := procpool.Fingerprint("the bad one")
	var crash *procpool.CrashError
	if _, err := p.Do(within(t), poison(1).raw(), mark); !errors.As(err, &crash) || errors.Is(err, procpool.ErrPoison) {
		t.Fatalf("the first time: %v", err)
	}
	if s := p.Stats(); s.Retried != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := p.Do(within(t), poison(2).raw(), mark); !errors.As(err, &crash) || !errors.Is(err, procpool.ErrPoison) {
		t.Fatalf("the second time: %v", err)
	}
	var rejected *procpool.RejectedError
	if _, err := p.Do(within(t), poison(3).raw(), mark); !errors.As(err, &rejected) || !errors.Is(err, procpool.ErrPoison) {
		t.Errorf("the third time: %v", err)
	}
	do(t, p, ask{}.raw()) // without the mark
}

// TestInnocentQueryIsCleared kills the worker of a query from outside. The query is
// answered by an extra worker, and nothing is held against it or its caller.
func TestInnocentQueryIsCleared(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { strict(c); c.Poison.Deaths = 1 })
	q := ask{Op: "exit-once", N: 1, Path: filepath.Join(t.TempDir(), "was")}.raw()
	for range 3 {
		if got := do(t, p, q, procpool.Idempotent(), procpool.Caller("c")); got != `"second time"` {
			t.Errorf("got %s", got)
		}
	}
	if s := p.Stats(); s.Retried != 1 || s.Crashed != 1 || s.Poisoned != 0 || len(p.Poisoned()) != 0 {
		t.Errorf("%+v, %+v", s, p.Poisoned())
	}
}

func TestDeathsOfACallerAreBudgeted(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { strict(c); c.Poison.Deaths, c.Poison.Window = 4, time.Hour })
	stopped := 0
	for nonce := range 10 {
		_, err := p.Do(within(t), poison(nonce).raw(), procpool.Idempotent(), procpool.Caller("bad"))
		var rejected *procpool.RejectedError
		if errors.Is(err, procpool.ErrDeaths) && errors.As(err, &rejected) && rejected.RetryAfter > time.Minute && strings.Contains(err.Error(), `"bad"`) {
			stopped++
		} else if nonce >= 2 {
			t.Errorf("query %d: %v", nonce, err)
		}
		do(t, p, ask{}.raw(), procpool.Caller("good"))
		do(t, p, ask{}.raw())
	}
	if s := p.Stats(); stopped != 8 || s.Crashed != 4 {
		t.Errorf("%d were stopped, %+v", stopped, s)
	}
}

// TestWaitingPoisonIsStoppedToo fills the queue before the first worker dies.
func TestWaitingPoisonIsStoppedToo(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) {
		strict(c)
		c.MaxWorkers, c.Poison.Deaths, c.Poison.Window = 1, 1, time.Hour
	})
	block := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	var all []*procpool.Query
	for nonce := range 10 {
		all = append(all, submit(t, p, poison(nonce).raw(), procpool.Caller("bad")))
	}
	good := submit(t, p, ask{}.raw(), procpool.Caller("good"))
	block.Cancel(nil)
	if _, err := good.Result(); err != nil {
		t.Error(err)
	}
	for i, q := range all {
		if _, err := q.Result(); errors.Is(err, procpool.ErrDeaths) != (i > 0) || q.State() != procpool.QueryRejected && i > 0 {
			t.Errorf("%d: %s, %v", i, q.State(), err)
		}
	}
	if s := p.Stats(); s.Crashed != 1 {
		t.Errorf("%+v", s)
	}
}

func TestDeathsThatThePoolCausesAreNotTheQuerys(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { strict(c); c.CancelGrace = 20 * time.Millisecond; c.Poison.Deaths = 1 })
	who := procpool.Caller("c")
	q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), who)
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	if _, err := p.Evict("", true); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Result(); !errors.Is(err, procpool.ErrEvicted) {
		t.Error(err)
	}
	deaf(t, p, who).Cancel(nil)
	eventually(t, "its worker was ended", func() bool { s := p.Stats(); return s.Busy+s.ShuttingDown == 0 })
	do(t, p, ask{}.raw(), who)
	if len(p.Poisoned()) != 0 {
		t.Errorf("the list is %+v", p.Poisoned())
	}
}

// TestIdleDeathsRejectNothing kills the worker six times while it has no query.
func TestIdleDeathsRejectNothing(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.BreakAfter = 3; c.Backoff.Min = time.Millisecond })
	for range 6 {
		pid, err := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw()))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is idle", func() bool { return p.Stats().Ready == 1 })
		kill(t, pid)
		eventually(t, "it is gone", func() bool { return p.Stats().Ready == 0 })
	}
	do(t, p, ask{}.raw())
	if s := p.Stats(); s.Failures != 0 || s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
}

// TestIdleDeathsAreSpacedOut has workers that end themselves once they are ready.
func TestIdleDeathsAreSpacedOut(t *testing.T) {
	p := start(t, "ready-twice", func(c *procpool.Config) {
		c.MinWorkers, c.BreakAfter, c.Backoff.Min = 1, 1, time.Hour
		c.Backoff.Max = time.Hour
	})
	eventually(t, "it is gone", func() bool { return p.Stats().Crashed == 1 })
	if s := p.Stats(); s.Spawned != 1 || time.Until(s.NotUntil) < time.Minute {
		t.Errorf("%+v", s)
	}
}

// TestTrialOfTheBreakerIsNotAQuery opens the breaker. The worker that is tried then has to
// answer a health check before it gets a query, and the poison that it gets does not open
// the breaker again.
func TestTrialOfTheBreakerIsNotAQuery(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mode := "serve"
	p := startPool(t, func() *exec.Cmd {
		if _, err := os.Stat(broken); err == nil {
			return self("exit:broken")
		}
		return self(mode)
	}, func(c *procpool.Config) {
		c.BreakAfter, c.MaxQueue = 1, 5
		c.Backoff = worker.Backoff{Min: 20 * time.Millisecond, Factor: 1}
	})
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	os.Remove(broken)
	eventually(t, "the poison reaches a worker", func() bool {
		_, err := p.Do(within(t), poison(1).raw())
		return errors.As(err, new(*procpool.CrashError)) && !errors.Is(err, procpool.ErrUnavailable)
	})
	if s := p.Stats(); s.Failures != 0 {
		t.Errorf("%+v", s)
	}
	do(t, p, ask{}.raw())
}

// TestTrialThatDoesNotAnswerGetsNoQuery has workers that say ready and never answer a
// health check.
func TestTrialThatDoesNotAnswerGetsNoQuery(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := startPool(t, func() *exec.Cmd {
		if _, err := os.Stat(broken); err == nil {
			return self("exit:broken")
		}
		return self("no-health")
	}, func(c *procpool.Config) {
		c.BreakAfter, c.MaxQueue, c.HealthTimeout = 1, 5, 50*time.Millisecond
		c.Backoff = worker.Backoff{Min: 20 * time.Millisecond, Factor: 1}
	})
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	os.Remove(broken)
	eventually(t, "the trial has failed", func() bool {
		if got, err := p.Do(within(t), ask{}.raw()); err == nil {
			t.Fatalf("it was answered: %s", got)
		}
		return p.Stats().Failures > 2
	})
}

// The pool tries one worker once the backoff is over, however many queries wait for its trial.
func TestBreakerTriesOneWorker(t *testing.T) {
	n := 0
	p := startPool(t, func() *exec.Cmd {
		if n++; n == 1 {
			return self("exit:broken")
		}
		return self("no-health")
	}, func(c *procpool.Config) {
		c.MaxWorkers, c.BreakAfter, c.MaxQueue, c.HealthTimeout = 4, 1, 10, patience
		c.Backoff = worker.Backoff{Min: 20 * time.Millisecond, Factor: 1}
	})
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	eventually(t, "a query waits", func() bool { return submit(t, p, ask{}.raw()).State() == procpool.QueryPending })
	eventually(t, "a worker is on trial", func() bool {
		children := p.State().Children
		return len(children) == 1 && children[0].Status == worker.StatusRunning && p.Stats().Ready > 0
	})
	for range 3 {
		submit(t, p, ask{}.raw())
	}
	if s := p.Stats(); s.Spawned != 2 {
		t.Errorf("the pool has started %d workers, want the one that failed and the one on trial: %+v", s.Spawned, s)
	}
}

func TestFingerprintsAndCallersAreBounded(t *testing.T) {
	p := start(t, "serve", nil)
	long := strings.Repeat("x", 1<<20)
	for name, opt := range map[string]procpool.Option{"fingerprint": procpool.Fingerprint(long), "caller": procpool.Caller(long)} {
		_, err := p.Do(within(t), ask{}.raw(), opt)
		if err == nil || !strings.Contains(err.Error(), name) || len(err.Error()) > 200 {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	do(t, p, ask{}.raw())
}

// TestKilledWorkersAreNotHeldAgainstTheirQueries sends SIGKILL to busy workers from
// outside: every idempotent query is answered.
func TestKilledWorkersAreNotHeldAgainstTheirQueries(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { strict(c); c.MinWorkers = 2 })
	for i := range 5 {
		q := submit(t, p, ask{Op: "sleep", Seconds: 0.3, Text: fmt.Sprint(i)}.raw(), procpool.Idempotent())
		eventually(t, "it has a worker", func() bool { return q.State() == procpool.QueryProcessing })
		for _, w := range p.State().Children {
			if strings.Contains(w.Reason, q.ID()) {
				_ = syscall.Kill(w.PID, syscall.SIGKILL)
			}
		}
		if got, err := q.Result(); err != nil || string(got) != `"slept"` {
			t.Errorf("%d: %s, %v", i, got, err)
		}
	}
	if len(p.Poisoned()) != 0 {
		t.Errorf("%+v", p.Poisoned())
	}
}
