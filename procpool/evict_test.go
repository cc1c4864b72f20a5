//go:build unix

package procpool_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestEvictedWorkerIsToldToAbort records what a busy worker gets.
func TestEvictedWorkerIsToldToAbort(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heard")
	t.Setenv("HEARD", file)
	p := start(t, "told", func(c *procpool.Config) { c.MinWorkers, c.ShutdownGrace = 1, patience })
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 })
	q := submit(t, p, ask{}.raw())
	eventually(t, "it has the query", func() bool {
		text, _ := os.ReadFile(file)
		return strings.Contains(string(text), "query")
	})
	if _, err := p.Evict("", true); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Result(); !errors.Is(err, procpool.ErrEvicted) {
		t.Error(err)
	}
	eventually(t, "it has ended", func() bool { s := p.Stats(); return s.Spawned == 2 && s.ShuttingDown == 0 })
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(strings.ReplaceAll(string(text), " ", "_")); !slices.Equal(got, []string{"query", "cancel", "shutdown_at_once"}) {
		t.Errorf("it got %q, want the query, a cancel and a shutdown", got)
	}
}

// TestShippedWorkersEndWhenTheyAreEvicted evicts busy workers of each language: they end
// with code 0, without a signal.
func TestShippedWorkersEndWhenTheyAreEvicted(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) { c.ShutdownGrace = patience })
			ends := make(chan error, 10)
			watch := p.Watch(100)
			defer watch.Close()
			go func() {
				for e, err := watch.Next(t.Context()); err == nil; e, err = watch.Next(t.Context()) {
					if e.Name != "p" && e.Kind == worker.KindWorker && worker.Status(e.To).Terminal() {
						ends <- e.Cause
					}
				}
			}()
			q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
			eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
			if _, err := p.Evict("", true); err != nil {
				t.Fatal(err)
			}
			if _, err := q.Result(); !errors.Is(err, procpool.ErrEvicted) {
				t.Error(err)
			}
			select {
			case err := <-ends:
				// It has said goodbye and closed its connection; a process that then takes long gets SIGTERM.
				if err != nil && !errors.Is(err, worker.ErrInterrupted) {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(patience):
				t.Error("it has not ended")
			}
		})
	}
}
