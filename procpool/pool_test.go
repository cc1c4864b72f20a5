//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

var _ worker.Worker = (*procpool.Pool)(nil)

// drainable has the method of lifecycle.Drainable, which this package may not import.
var _ interface{ Drain(context.Context) error } = (*procpool.Pool)(nil)

func TestTablesAreTheModelAndTheAddedEdges(t *testing.T) {
	for name, err := range map[string]error{
		"worker": procpool.WorkerTransitions().Validate(), "query": procpool.QueryTransitions().Validate(),
		"connection": procpool.ConnTransitions().Validate(), "pool": procpool.PoolTransitions().Validate(),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		name        string
		edges, want []string
	}{
		{"worker", edges(procpool.WorkerTransitions(), "starting shutting_down"), []string{
			"starting ready", "starting dead", "ready busy", "ready shutting_down", "ready dead", "busy ready", "busy shutting_down", "busy dead", "shutting_down dead",
		}},
		{"query", edges(procpool.QueryTransitions(), "pending cancelled", "pending error", "processing complete"), []string{
			"pending processing", "pending rejected", "processing streaming", "processing error", "processing cancelled",
			"streaming streaming", "streaming complete", "streaming error", "streaming cancelled",
		}},
		{"connection", edges(procpool.ConnTransitions()), []string{
			"disconnected connecting", "connecting connected", "connecting disconnected", "connected connected", "connected disconnected",
		}},
		{"pool", edges(procpool.PoolTransitions()), []string{
			"idle active", "active active", "active at_capacity", "active idle", "at_capacity active", "at_capacity at_capacity",
		}},
	} {
		slices.Sort(c.want)
		if !slices.Equal(c.edges, c.want) {
			t.Errorf("%s has the edges\n%q, want\n%q", c.name, c.edges, c.want)
		}
	}
}

// edges returns the edges of a table, without the edges that were added to the model.
func edges[S ~string](t fsm.Table[S], added ...string) []string {
	var out []string
	for _, e := range t.Edges() {
		if edge := fmt.Sprint(e.From, " ", e.To); !slices.Contains(added, edge) {
			out = append(out, edge)
		}
	}
	slices.Sort(out)
	return out
}

// TestLifeOfAWorker follows one worker, one query and the pool through their
// states, by the event names of the model.
func TestLifeOfAWorker(t *testing.T) {
	var mu sync.Mutex
	got := map[string][]string{}
	var names []string
	p, err := procpool.New(procpool.Config{Name: "p", Command: func() *exec.Cmd { return self("serve") }, SocketDir: socketDir(t), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	stop := p.Events().Listen(1000, func(e fsm.Event) {
		mu.Lock()
		defer mu.Unlock()
		got[e.Kind] = append(got[e.Kind], e.To)
		if name := procpool.EventName(e); name != "" {
			names = append(names, name)
		}
	})
	if err := p.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	q := submit(t, p, ask{Op: "count", N: 3}.raw())
	if _, err := q.Result(); err != nil {
		t.Fatal(err)
	}
	if q.Session() != "s-"+q.ID() || q.Worker() != "p/1" {
		t.Errorf("session %q, worker %q", q.Session(), q.Worker())
	}
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	for kind, want := range map[string]string{
		procpool.KindWorker:     "ready busy ready shutting_down dead",
		procpool.KindQuery:      "processing streaming complete",
		procpool.KindConnection: "connecting connected disconnected",
		procpool.KindPool:       "active at_capacity active idle",
	} {
		if s := strings.Join(got[kind], " "); s != want {
			t.Errorf("%s went through %q, want %q", kind, s, want)
		}
	}
	if s := strings.Join(names, " "); s != "worker:ready worker:busy worker:idle worker:stopping worker:stopped" {
		t.Errorf("the names are %q", s)
	}
	if s := p.State(); s.Status != worker.StatusStopped {
		t.Errorf("the pool is %+v", s)
	}
}

func TestStartingEndsInOneOfThreeWays(t *testing.T) {
	for _, c := range []struct {
		name    string
		command func() *exec.Cmd
		want    []string
	}{
		{"no such program", func() *exec.Cmd { return exec.Command("/nowhere/worker") }, []string{"no such file"}},
		{"nil", func() *exec.Cmd { return nil }, []string{"the command is nil"}},
		{"panic", func() *exec.Cmd { panic("no") }, []string{"panic: no"}},
		{"exit", func() *exec.Cmd { return self("exit:disk") }, []string{"exited with code 3", "before it was ready", "cannot start: disk"}},
		{"timeout", func() *exec.Cmd { return self("never-ready") }, []string{"has not said that it is ready within", wire.EnvSocket}},
		{"garbage", func() *exec.Cmd { return self("garbage-first") }, []string{"broke the protocol", "want ready", "hello"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPool(t, c.command, func(cfg *procpool.Config) {
				cfg.BreakAfter, cfg.Backoff.Min = 1, time.Hour
				cfg.Backoff.Max = time.Hour
				if c.name == "timeout" {
					cfg.StartTimeout = 200 * time.Millisecond
				}
				if c.name == "garbage" {
					c.want = []string{"broke the protocol", "hello"}
				}
			})
			_, err := p.Do(within(t), ask{}.raw())
			var rejected *procpool.RejectedError
			if !errors.As(err, &rejected) || !errors.Is(err, procpool.ErrUnavailable) || rejected.RetryAfter <= 0 {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
			if r := p.Probe(within(t)); r.Err == nil {
				t.Error("the pool says that it is healthy")
			}
			// The breaker is open: the pool rejects at once and spawns nothing.
			spawned := p.Stats().Spawned
			if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
				t.Errorf("with an open breaker: %v", err)
			}
			if s := p.Stats(); s.Spawned != spawned {
				t.Errorf("it spawned %d", s.Spawned-spawned)
			}
		})
	}
}

func TestAnswersStreamsAndErrors(t *testing.T) {
	p := start(t, "serve", nil)
	if got := do(t, p, json.RawMessage("{\n \"a\": \"line\\nbreak\"\n}")); got != `{  "a": "line\nbreak" }` {
		t.Errorf("echo is %s", got)
	}
	q := submit(t, p, ask{Op: "count", N: 100}.raw())
	n := 0
	for content, err := range q.Messages() {
		if err != nil {
			t.Fatal(err)
		}
		if string(content) != fmt.Sprint(n) {
			t.Fatalf("message %d is %s", n, content)
		}
		n++
	}
	if got, err := q.Result(); n != 100 || err != nil || string(got) != "100" || q.State() != procpool.QueryComplete {
		t.Errorf("%d messages, %s, %v, %s", n, got, err, q.State())
	}
	var failed *procpool.WorkerError
	if _, err := p.Do(within(t), ask{Op: "fail", Text: "no \"such\"\nthing"}.raw()); !errors.As(err, &failed) || failed.Message != "no \"such\"\nthing" {
		t.Errorf("got %v", err)
	}
	if _, err := p.Do(within(t), ask{Op: "panic", Text: "ouch"}.raw()); !errors.As(err, &failed) || !strings.Contains(failed.Message, "ouch") {
		t.Errorf("got %v", err)
	}
	q = submit(t, p, ask{Op: "fail", Text: "x"}.raw())
	for _, err := range q.Messages() {
		if !errors.As(err, &failed) {
			t.Errorf("the last pair has %v", err)
		}
	}
	if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
		t.Errorf("an error of the worker counts as a crash: %+v", s)
	}
}

// TestMessageIsWrittenWhenSendReturns has a worker that exits just after its last Send.
func TestMessageIsWrittenWhenSendReturns(t *testing.T) {
	p := start(t, "serve", nil)
	q := submit(t, p, ask{Op: "exit-after-many", N: 3}.raw())
	n := 0
	for _, err := range q.Messages() {
		if err == nil {
			n++
		}
	}
	var crash *procpool.CrashError
	if _, err := q.Result(); n != 1000 || !errors.As(err, &crash) || crash.ExitCode != 3 {
		t.Errorf("%d of 1000 messages, %v", n, err)
	}
}

func TestPayloadIsCheckedBeforeAWorkerSeesIt(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxFrame = 1000 })
	for _, bad := range []string{"", "{", `1,"type":"shutdown"`, `"a" "b"`, "\"\x01\"", "\"\xff\"", `"\q"`, "nul", "01"} {
		if _, err := p.Do(within(t), json.RawMessage(bad)); !errors.Is(err, wire.ErrNotJSON) {
			t.Errorf("payload %q: %v", bad, err)
		}
	}
	var long *wire.TooLongError
	if _, err := p.Do(within(t), json.RawMessage(`"`+strings.Repeat("x", 1000)+`"`)); !errors.As(err, &long) || long.Limit != 1000 {
		t.Errorf("got %v", err)
	}
	if _, err := p.Do(within(t), ask{Op: "big", Size: 2000}.raw()); err == nil || !strings.Contains(err.Error(), "longer than 1000") {
		t.Errorf("a result that the worker must not send: %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("never mind"))
	if _, err := p.Do(ctx, ask{}.raw()); err == nil || !strings.Contains(err.Error(), "never mind") {
		t.Errorf("got %v", err)
	}
	if s := p.Stats(); s.Submitted != 1 {
		t.Errorf("%d were submitted, want 1", s.Submitted)
	}
}

func TestConfigIsValidated(t *testing.T) {
	if _, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, MaxFrame: 1 << 40}); err == nil || !strings.Contains(err.Error(), "MaxFrame is 1099511627776 bytes, want 256 to 2147483647") {
		t.Errorf("a line of a length that no message can say: %v", err)
	}
	_, err := procpool.New(procpool.Config{MaxWorkers: -1, MinWorkers: 3, MaxQueue: -2, Eviction: "mru", StartTimeout: -1, MaxFrame: 10, BreakAfter: -3,
		Recycle: procpool.Recycle{Jitter: 2, MaxAge: -1, AtOnce: -1}, Backoff: worker.Backoff{Factor: 0.5}})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, want := range []string{"Command", "MaxWorkers", "MinWorkers", "MaxQueue", `"mru"`, "StartTimeout", "MaxFrame", "BreakAfter", "Jitter", "MaxAge", "AtOnce", "Factor"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s:\n%v", want, err)
		}
	}
}

func TestQueryHasOneTerminalStateUnderRaces(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxWorkers, c.MaxQueue = 2, 1000 })
	events := p.Events().Subscribe(100_000)
	defer events.Close()
	const n = 200
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%7)*3*time.Millisecond+time.Millisecond)
			defer cancel()
			q, err := p.Submit(ctx, ask{Op: "count", N: i % 5}.raw(), procpool.Timeout(time.Duration(i%11+1)*2*time.Millisecond))
			if err != nil {
				return
			}
			if i%3 == 0 {
				go q.Cancel(nil)
			}
			result, err := q.Result()
			if (err == nil) != (q.State() == procpool.QueryComplete) || (result == nil) == (err == nil) {
				t.Errorf("%s: %s, %v, %s", q.ID(), result, err, q.State())
			}
		})
	}
	all.Wait()
	ended := map[string]int{}
	for {
		e, err := events.Next(canceled())
		if err != nil {
			break
		}
		if e.Kind == procpool.KindQuery && procpool.QueryTransitions().IsTerminal(procpool.QueryState(e.To)) {
			ended[e.Name]++
		}
	}
	for name, times := range ended {
		if times != 1 {
			t.Errorf("%s has ended %d times", name, times)
		}
	}
	if uint64(len(ended)) != p.Stats().Submitted {
		t.Errorf("%d have ended and %d were submitted", len(ended), p.Stats().Submitted)
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestCancelledWorkerIsBusyUntilItConfirms(t *testing.T) {
	p := start(t, "cancel-late", func(c *procpool.Config) { c.MaxQueue, c.MinWorkers = 1, 1 })
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 }) // otherwise the query may end before it is sent
	q := submit(t, p, ask{}.raw())
	eventually(t, "the worker is busy", func() bool { return p.Stats().Busy == 1 })
	if !q.Cancel(errors.New("changed my mind")) || q.Cancel(nil) {
		t.Error("want the first Cancel to count, and no other")
	}
	if _, err := q.Result(); !errors.Is(err, procpool.ErrCancelled) || !strings.Contains(err.Error(), "changed my mind") || q.State() != procpool.QueryCancelled {
		t.Errorf("got %v, %s", err, q.State())
	}
	if got := do(t, p, ask{}.raw()); got != `"well"` {
		t.Errorf("the next answer is %s", got)
	}
	// One message, one complete, and one complete too many.
	if s := p.Stats(); s.Spawned != 1 || s.Late != 3 || s.Crashed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWorkerThatDoesNotConfirmIsEnded(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.CancelGrace = 50 * time.Millisecond })
	pid := do(t, p, ask{Op: "pid"}.raw())
	deaf(t, p).Cancel(nil)
	eventually(t, "it is gone", func() bool { return p.Stats().Busy+p.Stats().ShuttingDown == 0 })
	if now := do(t, p, ask{Op: "pid"}.raw()); now == pid {
		t.Errorf("process %s still works", pid)
	}
}

func TestDeadlines(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue, c.QueryTimeout = 5, time.Second })
	do(t, p, ask{}.raw(), procpool.Timeout(patience)) // it is warm
	first := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Timeout(4*time.Second))
	second := submit(t, p, ask{}.raw(), procpool.Timeout(20*time.Millisecond))
	var late *procpool.DeadlineError
	if _, err := second.Result(); !errors.As(err, &late) || late.Worker != "" || second.State() != procpool.QueryError {
		t.Errorf("in the queue: %v, %s", err, second.State())
	}
	if _, err := first.Result(); !errors.As(err, &late) || late.Worker != "p/1" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a worker: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if _, err := p.Do(ctx, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Timeout(time.Hour)); !errors.As(err, &late) {
		t.Errorf("the caller's deadline: %v", err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	q, err := p.Submit(ctx, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Timeout(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	stop(errors.New("went away"))
	if _, err := q.Result(); !errors.Is(err, procpool.ErrCancelled) || !strings.Contains(err.Error(), "went away") {
		t.Errorf("the caller's cancel: %v", err)
	}
}

func TestFullPoolQueuesInOrderAndThenRejects(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue = 3 })
	do(t, p, ask{}.raw())
	block := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
	events := p.Events().Subscribe(1000)
	defer events.Close()
	var want []string
	for range 3 {
		want = append(want, submit(t, p, ask{}.raw()).ID())
	}
	_, err := p.Do(within(t), ask{}.raw())
	var rejected *procpool.RejectedError
	if !errors.As(err, &rejected) || !errors.Is(err, procpool.ErrBusy) || rejected.RetryAfter <= 0 {
		t.Errorf("a query beyond the full queue: %v", err)
	}
	block.Cancel(nil)
	eventually(t, "all are done", func() bool { return p.Stats().Open == 0 })
	var got []string
	for {
		e, err := events.Next(canceled())
		if err != nil {
			break
		}
		if e.Kind == procpool.KindQuery && e.To == string(procpool.QueryProcessing) {
			got = append(got, e.Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}

func TestWithoutAQueueABusyPoolRejectsAtOnce(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxWorkers = 2 })
	a := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
	b := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw()) // a worker is started for each
	c := submit(t, p, ask{}.raw())
	if _, err := c.Result(); !errors.Is(err, procpool.ErrBusy) || c.State() != procpool.QueryRejected {
		t.Errorf("got %v, %s", err, c.State())
	}
	a.Cancel(nil)
	b.Cancel(nil)
}

func TestSlowCallerHoldsUpItsOwnWorkerOnly(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MinWorkers, c.MaxWorkers = 2, 2 })
	slow := submit(t, p, ask{Op: "count", N: 5000, Size: 1000}.raw()) // far more than all buffers
	for range 50 {
		do(t, p, ask{}.raw())
	}
	if slow.State() != procpool.QueryStreaming && slow.State() != procpool.QueryProcessing {
		t.Fatal("the slow caller's worker was not held up")
	}
	n := 0
	for _, err := range slow.Messages() {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 5000 {
		t.Errorf("%d messages arrived", n)
	}
}

// TestEachQueryHasItsOwnTimeout checks that the deadline of the connection, which
// the pool leaves in place for a query with a little more time, does not end that
// query early.
func TestEachQueryHasItsOwnTimeout(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue = 5 })
	do(t, p, ask{}.raw()) // the worker has started
	_, _ = p.Do(within(t), ask{}.raw(), procpool.Timeout(500*time.Millisecond))
	const own = 900 * time.Millisecond
	_, err := p.Do(within(t), ask{Op: "sleep", Seconds: 600}.raw(), procpool.Timeout(own))
	var late *procpool.DeadlineError
	if !errors.As(err, &late) || late.Elapsed < own {
		t.Errorf("it ended with %v, want a deadline after %v", err, own)
	}
	do(t, p, ask{}.raw()) // no deadline of an earlier query ends it
}
