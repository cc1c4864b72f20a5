//go:build unix

package procpool_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// seconds returns how long a test runs: the environment variable, or a short time.
func seconds(t *testing.T, variable string, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s is %q, want a number", variable, text)
	}
	return time.Duration(n) * time.Second
}

// TestPoisonousCallerBesideAHealthyOne has one caller that keeps half of the workers busy,
// one that sends a query of death twenty times a second, each with another payload, and
// sessions. No query of the first fails, no session answers wrong, and there is a worker at every look. It takes two
// seconds; POISON_SECONDS=600 runs longer.
func TestPoisonousCallerBesideAHealthyOne(t *testing.T) {
	length := seconds(t, "POISON_SECONDS", 2*time.Second)
	p := start(t, "serve", func(c *procpool.Config) { c.MinWorkers, c.MaxWorkers, c.MaxQueue = 4, 4, 20 })
	eventually(t, "all are ready", func() bool { return p.Stats().Ready == 4 })
	over := make(chan struct{})
	var all sync.WaitGroup
	every := func(pause time.Duration, fn func(n int)) {
		all.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-tick.C:
					fn(n)
				}
			}
		})
	}
	var mu sync.Mutex
	var took []time.Duration
	for range 2 {
		every(time.Microsecond, func(int) { // one after the other
			begun := time.Now()
			_, err := p.Do(within(t), ask{Op: "sleep", Seconds: 0.005}.raw(), procpool.Caller("healthy"))
			if err != nil {
				t.Errorf("a healthy query: %v", err)
			}
			mu.Lock()
			took = append(took, time.Since(begun))
			mu.Unlock()
		})
	}
	for n := range 4 {
		name, last := fmt.Sprint("session ", n), 0
		session := procpool.Metadata(map[string]string{"session": name})
		every(time.Millisecond, func(int) {
			got, err := p.Do(within(t), nextOne, procpool.Key(name), session)
			switch {
			case errors.Is(err, procpool.ErrSessionLost):
				last = 0
			case err != nil:
				t.Errorf("a query of a session: %v", err)
			default:
				last++
				if string(got) != fmt.Sprint(last) {
					t.Errorf("%s answered %s, want %d", name, got, last)
				}
			}
		})
	}
	outcomes := map[string]int{}
	every(50*time.Millisecond, func(n int) {
		opts := []procpool.Option{procpool.Caller("poisonous")}
		if n%2 == 0 {
			opts = append(opts, procpool.Idempotent())
		}
		_, err := p.Do(within(t), ask{Op: "kill", N: 9, Text: fmt.Sprint(n)}.raw(), opts...)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, procpool.ErrDeaths):
			outcomes["over its budget"]++
		case errors.Is(err, procpool.ErrPoison):
			outcomes["poison"]++
		case errors.As(err, new(*procpool.CrashError)):
			outcomes["crash"]++
		default:
			t.Errorf("a poisonous query: %v", err)
		}
	})
	looks := 0
	every(5*time.Millisecond, func(int) {
		mu.Lock()
		looks++
		mu.Unlock()
		if s := p.Stats(); s.Ready+s.Busy == 0 || s.Failures > 0 {
			t.Errorf("there is no worker: %+v", s)
		}
		if r := p.Probe(within(t)); r.Err != nil {
			t.Errorf("the pool is unhealthy: %v", r.Err)
		}
	})
	time.Sleep(length)
	eventually(t, "enough has happened", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(took) > 0 && looks > 0 && outcomes["over its budget"] > 0
	})
	close(over)
	all.Wait()
	slices.Sort(took)
	s := p.Stats()
	t.Logf("%d healthy queries, p50 %v, p99 %v; %v; %d workers died; %d looks", len(took), took[len(took)/2], took[len(took)*99/100], outcomes, s.Crashed, looks)
	if most := 10 + 6*int(length/time.Minute); int(s.Crashed) > most {
		t.Errorf("%d workers died, want at most %d: 5 of them a minute", s.Crashed, most)
	}
}
