package lanes_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var steady = worker.Backoff{Min: time.Second, Max: 4 * time.Second, Jitter: worker.NoJitter}

// run starts a runner. The function that it returns ends it and returns what waits.
func run[T any](r lanes.Runner[T], q *lanes.Queue[T]) (stop func() []T) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx, q) }()
	return func() []T {
		cancel()
		<-ended
		return q.Close()
	}
}

func add[T any](t *testing.T, q *lanes.Queue[T], key string, values ...T) {
	t.Helper()
	for _, v := range values {
		if err := q.Add(key, v, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOrderByKey checks that the tasks of a key run in order and one at a time, also when
// some fail, and that keys run beside each other.
func TestOrderByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		handled := make(map[string][]int)
		inside := make(map[string]int)
		most := 0
		q := lanes.New[int]()
		stop := run(lanes.Runner[int]{Workers: 4, Attempts: 5, Backoff: steady,
			Handle: func(_ context.Context, task *lanes.Task[int]) error {
				mu.Lock()
				inside[task.Key]++
				if inside[task.Key] > 1 {
					t.Errorf("%s runs twice at once", task.Key)
				}
				most = max(most, len(inside))
				mu.Unlock()
				time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				if inside[task.Key]--; inside[task.Key] == 0 {
					delete(inside, task.Key)
				}
				if rand.IntN(4) == 0 && task.Failed < 4 {
					return errors.New("not yet")
				}
				handled[task.Key] = append(handled[task.Key], task.Value)
				return nil
			},
			Dead: func(_ context.Context, task *lanes.Task[int], why error) error { t.Error(why); return nil },
		}, q)
		for i := range 400 {
			add(t, q, fmt.Sprint("key", i%10), i)
		}
		for q.Len() > 0 {
			time.Sleep(time.Second)
		}
		if left := stop(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		for key, values := range handled {
			if len(values) != 40 || !slices.IsSorted(values) {
				t.Errorf("%s: %v", key, values)
			}
		}
		if most != 4 {
			t.Errorf("at most %d keys at once, want 4", most)
		}
	})
}

// TestRetryHoldsItsKeyOnly checks the waits, and that only the tasks behind the failed
// one wait.
func TestRetryHoldsItsKeyOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var log []string
		note := func(what, value string) { log = append(log, fmt.Sprint(what, value, "@", time.Since(began))) }
		q := lanes.New[string]()
		stop := run(lanes.Runner[string]{Attempts: 3, Backoff: steady,
			Handle: func(_ context.Context, task *lanes.Task[string]) error {
				note("", task.Value)
				if task.Value == "bad" {
					return errors.New("bad")
				}
				return nil
			},
			Failed: func(_ context.Context, task *lanes.Task[string], _ error) { note("failed ", fmt.Sprint(task.Failed)) },
			Dead: func(_ context.Context, task *lanes.Task[string], why error) error {
				note("dead ", fmt.Sprint(task.Failed, " ", why))
				return nil
			},
			Done: func(task *lanes.Task[string]) { note("done ", task.Value) },
		}, q)
		add(t, q, "a", "bad", "behind")
		add(t, q, "b", "beside")
		time.Sleep(time.Minute)
		stop()
		want := []string{"bad@0s", "failed 1@0s", "beside@0s", "done beside@0s", "bad@1s", "failed 2@1s", "bad@3s", "dead 3 bad@3s", "done bad@3s", "behind@3s", "done behind@3s"}
		if !slices.Equal(log, want) {
			t.Errorf("%q\nwant %q", log, want)
		}
	})
}

// TestBudget checks attempts of an earlier process, rejection, errors that do not count,
// and a letter that cannot be stored at once.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := make(map[string]int)
		letters := make(map[string]string)
		away := 6
		q := lanes.New[string]()
		stop := run(lanes.Runner[string]{Attempts: 3, Backoff: steady,
			Handle: func(_ context.Context, task *lanes.Task[string]) error {
				calls[task.Value]++
				switch {
				case task.Value == "rejected":
					return fmt.Errorf("wrapped: %w", lanes.Reject(errors.New("never")))
				case task.Value == "away" && calls["away"] < 10:
					return lanes.Uncounted(errors.New("the server is away"))
				case task.Value == "away":
					return nil
				}
				return errors.New("bad")
			},
			Dead: func(_ context.Context, task *lanes.Task[string], why error) error {
				if away--; away >= 0 {
					return errors.New("cannot store it")
				}
				letters[task.Value] = fmt.Sprint(task.Failed, " ", why)
				return nil
			},
		}, q)
		add(t, q, "a", "rejected")
		add(t, q, "b", "away")
		if err := q.Add("c", "again", 2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if left := stop(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		if want := "map[again:1 away:10 rejected:1]"; fmt.Sprint(calls) != want {
			t.Errorf("calls %v, want %s", calls, want)
		}
		if want := "map[again:3 bad rejected:1 wrapped: never]"; fmt.Sprint(letters) != want {
			t.Errorf("letters %v, want %s", letters, want)
		}
	})
}

// TestStop checks that a stop loses nothing: tasks that wait, that wait for a retry, and
// whose attempt ended with the context come back.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := lanes.New[string]()
		stop := run(lanes.Runner[string]{Workers: 2, Attempts: 3, Backoff: steady,
			Handle: func(ctx context.Context, task *lanes.Task[string]) error {
				if task.Value == "failed" {
					return errors.New("bad")
				}
				<-ctx.Done()
				return ctx.Err()
			},
			Dead: func(context.Context, *lanes.Task[string], error) error { t.Error("a letter"); return nil },
		}, q)
		add(t, q, "a", "failed")
		add(t, q, "b", "running", "waits")
		add(t, q, "c", "other")
		time.Sleep(time.Second / 2)
		left := stop()
		if got := slices.Sorted(slices.Values(left)); !slices.Equal(got, []string{"failed", "other", "running", "waits"}) {
			t.Errorf("left %q", left)
		}
		if slices.Index(left, "running") > slices.Index(left, "waits") {
			t.Errorf("out of order: %q", left)
		}
		if err := q.Add("a", "late", 0); !errors.Is(err, lanes.ErrClosed) {
			t.Errorf("Add after Close: %v", err)
		}
		if _, err := q.Next(t.Context()); !errors.Is(err, lanes.ErrClosed) {
			t.Errorf("Next after Close: %v", err)
		}
	})
}

// Behind shows what comes next in a lane, and nothing while other lanes come first.
func TestBehind(t *testing.T) {
	q := lanes.New[int]()
	defer q.Close()
	for i := range 4 {
		if err := q.Add("a", i, 0); err != nil {
			t.Fatal(err)
		}
	}
	first, err := q.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Behind(first, 2); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("behind the first: %v", got)
	}
	if got := q.Behind(first, 10); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("all behind the first: %v", got)
	}
	if err := q.Add("b", 9, 0); err != nil {
		t.Fatal(err)
	}
	if got := q.Behind(first, 10); got != nil {
		t.Errorf("with another lane: %v", got)
	}
}

// TestDue checks which keys have something to hand out, and that a task that fails after
// Close is its caller's.
func TestDue(t *testing.T) {
	q := lanes.New[string]()
	due := func(want int) {
		t.Helper()
		if got := q.Due(); got != want {
			t.Errorf("%d keys are due, want %d", got, want)
		}
	}
	add(t, q, "a", "1", "2")
	add(t, q, "b", "3")
	due(2)
	first, err := q.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	due(1) // 2 waits behind 1
	q.Done(first)
	due(2)
	second, err := q.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !q.Retry(second, time.Hour) {
		t.Error("a queue that is open refuses a retry")
	}
	due(1)
	third, err := q.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	if q.Retry(third, 0) {
		t.Error("a queue that is closed takes a retry")
	}
}

// TestHeldKeyRests checks that a held key gives no task, whatever it waits for, and that its
// tasks come in order afterwards.
func TestHeldKeyRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		q := lanes.New[string]()
		stop := run(lanes.Runner[string]{Attempts: 3, Backoff: steady,
			Handle: func(_ context.Context, task *lanes.Task[string]) error {
				log = append(log, task.Value)
				if task.Value == "bad" && task.Failed == 0 {
					return errors.New("bad")
				}
				return nil
			},
			Dead: func(_ context.Context, _ *lanes.Task[string], why error) error { t.Error(why); return nil },
		}, q)
		add(t, q, "a", "bad", "behind") // waits for its second attempt when the key is held
		synctest.Wait()
		q.Hold("a", true)
		q.Hold("a", true)
		q.Hold("b", true)
		add(t, q, "b", "held")
		add(t, q, "c", "other")
		time.Sleep(time.Minute)
		if n := q.Len(); n != 0 {
			t.Errorf("%d tasks wait, besides those of held keys", n)
		}
		log = append(log, "go")
		q.Hold("a", false)
		synctest.Wait()
		q.Hold("b", false)
		q.Hold("c", false)
		synctest.Wait()
		if n := q.Len(); n != 0 {
			t.Errorf("%d tasks are left", n)
		}
		stop()
		want := []string{"bad", "other", "go", "bad", "behind", "held"}
		if !slices.Equal(log, want) {
			t.Errorf("%q\nwant %q", log, want)
		}
	})
}
