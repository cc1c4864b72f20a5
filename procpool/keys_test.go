//go:build unix

package procpool_test

import (
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// TestColdKeyIsServedBesideAHotOne keeps the only worker busy with one key.
func TestColdKeyIsServedBesideAHotOne(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) {
		c.KeyPerWorker, c.MaxQueue, c.StarveAfter = true, 50, 50*time.Millisecond
	})
	over := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if _, err := p.Do(within(t), ask{Op: "sleep", Seconds: 0.002}.raw(), procpool.Key("hot")); err != nil {
					t.Errorf("the hot key: %v", err)
					return
				}
			}
		})
	}
	for range 3 { // the key goes cold each time
		before := p.Stats().Complete
		eventually(t, "the hot key has the worker", func() bool { return p.Stats().Complete > before+10 })
		if _, err := p.Do(within(t), ask{}.raw(), procpool.Key("cold"), procpool.Timeout(10*time.Second)); err != nil {
			t.Errorf("the cold key: %v", err)
		}
	}
	close(over)
	all.Wait()
	if s := p.Stats(); s.Failed != 0 || s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
}

// TestKeysAreSpreadOverTheWorkers starts 40 sessions, one after the other.
func TestKeysAreSpreadOverTheWorkers(t *testing.T) {
	for _, least := range []int{0, 4} {
		t.Run(fmt.Sprint("MinWorkers=", least), func(t *testing.T) {
			p := start(t, "serve", func(c *procpool.Config) { c.MinWorkers, c.MaxWorkers = least, 4 })
			eventually(t, "the first are ready", func() bool { return p.Stats().Ready == least })
			on := map[string]int{}
			for i := range 40 {
				on[do(t, p, ask{Op: "pid"}.raw(), procpool.Key(strconv.Itoa(i)))]++
			}
			for pid, n := range on {
				if n != 10 {
					t.Errorf("process %s has %d of 40 keys, want 10: %v", pid, n, on)
				}
			}
		})
	}
}

// TestNewKeyWaitsForNoFailedStart has a second worker that never
// starts: its key is given to the first.
func TestNewKeyWaitsForNoFailedStart(t *testing.T) {
	n := 0
	p := startPool(t, func() *exec.Cmd {
		if n++; n > 1 {
			return self("exit:disk")
		}
		return self("serve")
	}, func(c *procpool.Config) { c.MaxWorkers, c.Backoff.Min, c.Backoff.Max = 2, time.Hour, time.Hour })
	for _, key := range []string{"a", "b", "c"} {
		do(t, p, ask{}.raw(), procpool.Key(key))
	}
	if s := p.Stats(); s.Spawned != 2 {
		t.Errorf("%+v", s)
	}
}
