//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

func TestCommandIsAskedForOneAtATime(t *testing.T) {
	var inside, most atomic.Int32
	p := startPool(t, func() *exec.Cmd {
		for n := inside.Add(1); ; {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		defer inside.Add(-1)
		time.Sleep(5 * time.Millisecond) // such as a port scanner
		return self("serve")
	}, func(c *procpool.Config) { c.MinWorkers, c.MaxWorkers = 4, 4 })
	eventually(t, "all are ready", func() bool { return p.Stats().Ready == 4 })
	if most.Load() != 1 {
		t.Errorf("Command was called %d times at once", most.Load())
	}
}

func TestPoolsShareTheFolderForSockets(t *testing.T) {
	t.Setenv("TMPDIR", socketDir(t)) // the default folder is in it
	dir := filepath.Join(os.Getenv("TMPDIR"), "procpool-"+strconv.Itoa(os.Getuid()))
	common := func(c *procpool.Config) { c.SocketDir, c.MaxWorkers = "", 2 }
	p := start(t, "serve", common)
	do(t, p, ask{}.raw())
	t.Run("another pool ends", func(t *testing.T) {
		do(t, start(t, "serve", common), ask{}.raw())
	})
	if _, err := p.Evict("", false); err != nil {
		t.Fatal(err)
	}
	do(t, p, ask{Text: "after the other has gone"}.raw())
	t.Run("a cleaner of temporary files", func(t *testing.T) {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Evict("", false); err != nil {
			t.Fatal(err)
		}
		do(t, p, ask{Text: "after the folder has gone"}.raw())
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the folder is %v, %v", info, err)
		}
	})
}

func TestBusyWorkerIsNotHeldToAHealthCheck(t *testing.T) {
	p := start(t, "health-after-query", func(c *procpool.Config) {
		c.HealthInterval, c.HealthTimeout, c.Recycle.Every = 20*time.Millisecond, 4*time.Second, 10*time.Millisecond
	})
	for range 3 {
		do(t, p, ask{}.raw())
		time.Sleep(60 * time.Millisecond) // it gets a health check, and then a query
	}
	if s := p.Stats(); s.Spawned != 1 {
		t.Errorf("a worker that was busy was ended: %+v", s)
	}
}

func TestLateMessagesOfACancelledQueryAreDropped(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue, c.CancelGrace = 1, patience })
	before := do(t, p, ask{Op: "pid"}.raw())
	q := submit(t, p, ask{Op: "count", N: 50_000}.raw())
	for range q.Messages() {
		break
	}
	q.Cancel(nil)
	if after := do(t, p, ask{Op: "pid"}.raw()); after != before {
		t.Errorf("the worker was ended for what it had sent already: %+v", p.Stats())
	}
	if s := p.Stats(); s.Late < 40_000 || s.Crashed != 0 {
		t.Errorf("want the late messages counted and no crash: %+v", s)
	}
}

// TestAnswerDoesNotWaitForTheNextQuery has a worker that answers and then stops
// reading, while the next query is larger than a socket's buffer.
func TestAnswerDoesNotWaitForTheNextQuery(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	t.Setenv("GATE", gate)
	p := start(t, "stop-when-asked", func(c *procpool.Config) {
		c.MaxQueue, c.QueryTimeout, c.WriteTimeout = 1, time.Hour, time.Hour
		c.Recycle.Every, c.HealthInterval = time.Hour, procpool.Off // so that the callers read
	})
	do(t, p, ask{}.raw())
	answered := make(chan error, 1)
	go func() {
		_, err := p.Do(context.Background(), ask{}.raw())
		answered <- err
	}()
	eventually(t, "it has the first", func() bool { return p.Stats().Busy == 1 })
	large, err := p.Submit(context.Background(), ask{Text: strings.Repeat("x", 8<<20)}.raw())
	if err != nil {
		t.Fatal(err)
	}
	defer large.Cancel(nil)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the answer came, but its caller does not return")
	}
}

// TestResultsAreTheCallersToKeep also covers messages: later ones do not overwrite
// them.
func TestResultsAreTheCallersToKeep(t *testing.T) {
	p := start(t, "serve", nil)
	echo := func(letter string) json.RawMessage { return ask{Text: strings.Repeat(letter, 200)}.raw() }
	kept, err := p.Do(within(t), echo("a"))
	if err != nil {
		t.Fatal(err)
	}
	q := submit(t, p, ask{Op: "count", N: 10, Size: 200}.raw())
	var messages []json.RawMessage
	for m, err := range q.Messages() {
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m)
	}
	for range 3 {
		do(t, p, echo("b"))
	}
	if string(kept) != string(echo("a")) {
		t.Errorf("the result has become %s", kept)
	}
	for _, m := range messages {
		if want := `"` + strings.Repeat("x", 200) + `"`; string(m) != want {
			t.Errorf("a message has become %s", m)
		}
	}
}

// TestDrainTimeoutEndsWhatTakesLonger stops a pool with a context that has no
// end.
func TestDrainTimeoutEndsWhatTakesLonger(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.DrainTimeout, c.QueryTimeout = 50*time.Millisecond, time.Hour })
	do(t, p, ask{}.raw())
	q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
	if err := p.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := q.Result(); !errors.Is(err, procpool.ErrDraining) || q.State() != procpool.QueryError {
		t.Errorf("the query ended with %v, %s", err, q.State())
	}
}
