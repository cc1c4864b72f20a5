//go:build unix

package procpool_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

func TestTimeoutHasTheStacksOfTheWorker(t *testing.T) {
	want := map[string]string{"go": "main.do", "python": "example.py", "node": ""}
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) { c.CancelGrace = 20 * time.Second })
			do(t, p, ask{}.raw()) // it has started
			for i, get := range []func() error{
				func() error {
					_, err := p.Do(within(t), ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Timeout(200*time.Millisecond))
					return err
				},
				func() error {
					_, err := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Timeout(200*time.Millisecond)).Result()
					return err
				},
			} {
				var late *procpool.DeadlineError
				// On a busy machine the worker may take longer than the pool waits.
				eventually(t, "a timeout has the stacks", func() bool {
					err := get()
					if errors.Is(err, procpool.ErrBusy) {
						return false // it has not confirmed the cancel
					}
					if !errors.As(err, &late) || late.Elapsed < 200*time.Millisecond {
						t.Fatalf("%d: %v", i, err)
					}
					return strings.Contains(late.Stacks, want[name]) && strings.Contains(late.Error(), want[name])
				})
			}
			if s := p.Stats(); s.Spawned != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestStacksThatDoNotComeAreNotWaitedFor has workers that announce stacks and send
// something else, or nothing.
func TestStacksThatDoNotComeAreNotWaitedFor(t *testing.T) {
	for _, mode := range []string{"stacks-never", "stacks-complete"} {
		t.Run(mode, func(t *testing.T) {
			p := start(t, mode, func(c *procpool.Config) { c.CancelGrace = 20 * time.Millisecond })
			q := submit(t, p, ask{}.raw(), procpool.Timeout(300*time.Millisecond))
			var late *procpool.DeadlineError
			if got, err := q.Result(); !errors.As(err, &late) || late.Stacks != "" || got != nil || q.State() != procpool.QueryError {
				t.Errorf("%s, %s, %v", q.State(), got, err)
			}
		})
	}
}

// TestStacksOfTheNextLateQuery has a worker that shows its stacks 50 ms too late for the query that
// made the pool ask, and in time for the next one.
func TestStacksOfTheNextLateQuery(t *testing.T) {
	const first = 300 * time.Millisecond
	eventually(t, "the second has the stacks", func() bool { // a busy machine may be late
		p := start(t, "stacks-late", func(c *procpool.Config) { c.MaxWorkers, c.MaxQueue, c.CancelGrace = 1, 5, patience })
		submit(t, p, ask{}.raw(), procpool.Timeout(first))
		q := submit(t, p, ask{}.raw(), procpool.Timeout(first+200*time.Millisecond))
		var late *procpool.DeadlineError
		if _, err := q.Result(); !errors.As(err, &late) {
			t.Fatal(err)
		}
		_, _ = p.Evict("", true)
		return late.Stacks == "late"
	})
}

// TestReadyThatPromisesTooMuch has workers whose ready cannot be true. Each is an error of
// the start; the worker that serves already does not notice.
func TestReadyThatPromisesTooMuch(t *testing.T) {
	for ready, want := range map[string]string{
		`{"type":"ready","version":2,"concurrency":1}`:                            "version is",
		`{"type":"ready","version":-1}`:                                           "version is",
		`{"type":"ready","capabilities":["telepathy"]}`:                           "telepathy",
		`{"type":"ready","concurrency":0}`:                                        "concurrency is",
		`{"type":"ready","concurrency":1000000}`:                                  "concurrency is",
		`{"type":"ready","capabilities":["` + strings.Repeat("x", 50_000) + `"]}`: "is not known",
	} {
		t.Run(want, func(t *testing.T) {
			n := 0
			p := startPool(t, func() *exec.Cmd {
				if n++; n == 1 {
					return self("serve")
				}
				cmd := self("says")
				cmd.Env = append(cmd.Env, "SAYS="+ready)
				return cmd
			}, func(c *procpool.Config) {
				c.MaxWorkers, c.MaxQueue, c.Backoff.Min, c.Backoff.Max = 2, 5, time.Hour, time.Hour
			})
			first, release := waits(t, p)
			second := submit(t, p, ask{}.raw())
			eventually(t, "the second worker has failed", func() bool { return p.Stats().Failures == 1 })
			release()
			for _, q := range []*procpool.Query{first, second} {
				if _, err := q.Result(); err != nil {
					t.Error(err)
				}
			}
			if err := lastFail(t, p); !errors.Is(err, procpool.ErrProtocol) && !errors.Is(err, wire.ErrField) || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
				t.Errorf("the start failed with %.1000v", err)
			}
		})
	}
}

// lastFail returns the error of the last failed start.
func lastFail(t *testing.T, p *procpool.Pool) error {
	t.Helper()
	if _, err := p.Evict("", true); err != nil { // without a worker, Probe says why
		t.Fatal(err)
	}
	var err error
	eventually(t, "the pool has no worker", func() bool { err = p.Probe(within(t)).Err; return err != nil })
	return err
}

// raw, for workers_test.go.
func raw2(mode string) (ready string) {
	switch {
	case mode == "says", mode == "lies":
		return os.Getenv("SAYS")
	case mode == "stacks-late":
		return `{"type":"ready","capabilities":["stacks"],"concurrency":2}`
	case strings.HasPrefix(mode, "stacks-"):
		return `{"type":"ready","capabilities":["stacks"],"concurrency":1}`
	}
	return `{"type":"ready"}`
}
