//go:build unix

package procpool_test

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

func TestEndsAreCountedByCause(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) {
		c.MaxQueue, c.CancelGrace, c.Backoff.Min = 1, 20*time.Millisecond, time.Millisecond
	})
	ends := func(cause procpool.Cause, n uint64) {
		t.Helper()
		eventually(t, "an end by "+string(cause)+" is counted", func() bool { return p.Stats().Ended[cause] >= n })
	}
	_, _ = p.Do(within(t), ask{Op: "exit", N: 1}.raw())
	ends(procpool.CauseQuery, 1)
	pid, _ := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw()))
	kill(t, pid)
	ends(procpool.CauseIdle, 1)
	do(t, p, ask{}.raw())
	if _, err := p.Evict("", false); err != nil {
		t.Fatal(err)
	}
	ends(procpool.CauseEvicted, 1)
	deaf(t, p).Cancel(nil)
	ends(procpool.CauseUnconfirmed, 1)
	do(t, p, ask{}.raw())
	if _, err := p.Reload(within(t), nil); err != nil {
		t.Fatal(err)
	}
	ends(procpool.CauseReloaded, 1)
	_, _ = p.Do(within(t), poison(1).raw(), procpool.Idempotent())
	ends(procpool.CauseQuery, 3)
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	s := p.Stats()
	all := uint64(0)
	for _, n := range s.Ended {
		all += n
	}
	if all != s.Spawned || len(s.Ended) != len(procpool.Causes()) {
		t.Errorf("%d ends of %d workers: %v", all, s.Spawned, s.Ended)
	}
}

func TestSlowQueriesAreLogged(t *testing.T) {
	var log journal
	p := start(t, "serve", func(c *procpool.Config) {
		c.Logger, c.SlowAfter = slog.New(slog.NewJSONHandler(&log, nil)), 50*time.Millisecond
	})
	told := func(q *procpool.Query) (all []map[string]any) {
		for _, r := range log.records(t) {
			if r["query"] == q.ID() && r["worker"] == "p/1" && r["level"] == "WARN" {
				all = append(all, r)
			}
		}
		return all
	}
	do(t, p, ask{}.raw())
	q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Caller("c"))
	eventually(t, "it is in the log while it runs", func() bool { return len(told(q)) == 1 })
	if r := told(q)[0]; r["caller"] != "c" || !strings.Contains(r["msg"].(string), "still runs") { //nolint:forcetypeassert // it has a text
		t.Errorf("the record is %v", r)
	} else if stacks, _ := r["stacks"].(string); stacks != "" && !strings.Contains(stacks, "procpool_test.serve") {
		t.Errorf("the stacks are %s", stacks)
	}
	q.Cancel(nil)
	eventually(t, "it is free", func() bool { return p.Stats().Ready == 1 })
	if n := len(told(q)); n != 1 || p.Stats().Slow == 0 {
		t.Errorf("it was told %d times", n)
	}
}
