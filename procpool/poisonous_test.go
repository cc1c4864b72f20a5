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
// sessions, and one that sends a query of death twenty times a second, each with another
// payload. No query of the first fails, no session answers wrong, and there is a worker at
// every look. It takes two seconds; POISON_SECONDS=600 runs longer. Then it compares what the
// healthy queries took in slices of time that take turns, so that other work on the machine
// delays all of them: alone, beside poison in a pool of its own, which takes as much of the
// machine, and beside poison in their pool.
func TestPoisonousCallerBesideAHealthyOne(t *testing.T) {
	length := seconds(t, "POISON_SECONDS", 2*time.Second)
	config := func(c *procpool.Config) { c.MinWorkers, c.MaxWorkers, c.MaxQueue = 4, 4, 20 }
	p, other := start(t, "serve", config), start(t, "serve", config)
	ready := func() bool {
		for _, p := range []*procpool.Pool{p, other} {
			if s := p.Stats(); s.Ready+s.Busy != 4 || s.Starting+s.ShuttingDown > 0 {
				return false
			}
		}
		return true
	}
	eventually(t, "all are ready", ready)
	over := make(chan struct{})
	var all sync.WaitGroup
	end := sync.OnceFunc(func() { close(over); all.Wait() })
	defer end()
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
	turns := []slice{{name: "alone"}, {"beside poison in another pool", other, nil}, {"beside poison", p, nil}}
	now := &turns[0]
	timed := func(fn func()) {
		mu.Lock()
		at := now
		mu.Unlock()
		begun := time.Now()
		fn()
		mu.Lock()
		defer mu.Unlock()
		at.took = append(at.took, time.Since(begun))
	}
	for range 2 {
		every(time.Microsecond, func(int) { // one after the other
			timed(func() {
				if _, err := p.Do(within(t), ask{Op: "sleep", Seconds: 0.005}.raw(), procpool.Caller("healthy")); err != nil {
					t.Errorf("a healthy query: %v", err)
				}
			})
		})
	}
	for n := range 4 {
		name, last := fmt.Sprint("session ", n), 0
		session := procpool.Metadata(map[string]string{"session": name})
		every(time.Millisecond, func(int) {
			timed(func() {
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
		})
	}
	outcomes := map[string]int{}
	every(50*time.Millisecond, func(n int) {
		mu.Lock()
		victim := now.poison
		mu.Unlock()
		if victim == nil {
			return
		}
		opts := []procpool.Option{procpool.Caller("poisonous")}
		if n%2 == 0 {
			opts = append(opts, procpool.Idempotent())
		}
		_, err := victim.Do(within(t), ask{Op: "kill", N: 9, Text: fmt.Sprint(n)}.raw(), opts...)
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
	for begun := time.Now(); time.Since(begun) < length; {
		for i := range turns {
			mu.Lock()
			now = &turns[i]
			mu.Unlock()
			time.Sleep(min(5*time.Second, length/3))
			eventually(t, "healthy queries were answered in this slice", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(now.took) > 0
			})
			eventually(t, "all are ready again", ready) // until then poison has an effect
		}
		eventually(t, "enough has happened", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return looks > 0 && outcomes["over its budget"] > 0
		})
	}
	end()
	for i := range turns {
		t.Log(&turns[i])
	}
	s := p.Stats()
	t.Logf("%v; %d workers died; %d looks", outcomes, s.Crashed, looks)
	if most := 10 + 6*int(length/time.Minute); int(s.Crashed) > most {
		t.Errorf("%d workers died, want at most %d: 5 of them a minute", s.Crashed, most)
	}
	for _, than := range turns[:2] {
		ratio := float64(turns[2].percentile(99)) / float64(than.percentile(99))
		t.Logf("the 99th percentile is %.2f of that %s", ratio, than.name)
		// A minute has too few deaths for a ratio on a machine that does other work too.
		if length >= 10*time.Minute && ratio > 1.3 {
			t.Errorf("the 99th percentile beside poison is %.2f of that %s, want at most 1.3", ratio, than.name)
		}
	}
}

// slice is what healthy queries took in slices of one kind.
type slice struct {
	name   string
	poison *procpool.Pool // where poison is sent, nil for none
	took   []time.Duration
}

func (s *slice) percentile(n int) time.Duration {
	slices.Sort(s.took)
	return s.took[len(s.took)*n/100]
}

func (s *slice) String() string {
	return fmt.Sprintf("%s: %d queries, p50 %v, p90 %v, p99 %v", s.name, len(s.took), s.percentile(50), s.percentile(90), s.percentile(99))
}
