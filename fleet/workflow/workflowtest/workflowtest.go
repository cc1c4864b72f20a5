// Package workflowtest tests workflows without a server to run and without waiting: a
// test gets a Manager whose clock stands still until the test moves it.
//
//	func TestAnUnpaidOrderIsCancelled(t *testing.T) {
//		workflowtest.Run(t, []string{"ORDERS"}, func(t *testing.T, w *workflowtest.World) {
//			if err := orders.Register(w.Manager); err != nil { // what the program calls, too
//				t.Fatal(err)
//			}
//			w.Start() // deadlines, timers and hooks
//			place(t, w.Manager, "77")
//			w.Advance(24 * time.Hour)
//			if got := phaseOf(t, w.Manager, "77"); got != "cancelled" {
//				t.Errorf("the order is %s", got)
//			}
//		})
//	}
//
// The test runs in a bubble of testing/synctest. NATS runs in the bubble too, the real
// server, in memory and without a port. So journals, hooks and conflicts are as in
// production, and everything goes by the bubble's clock: the server, the Manager, and the
// program's own time.Now and time.Sleep.
//
// Begin with [Run].
package workflowtest

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pace"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// World is what a test runs in.
type World struct {
	*workflow.Manager
	// Broker is the connection that the Manager uses.
	Broker *broker.Broker

	t       *testing.T
	ctx     context.Context // ends with the test
	running sync.WaitGroup
}

// Run calls test in a bubble of its own, with a Manager and these buckets. Each keeps
// every write, as a journal does, and has a bucket for hooks. When test returns, Run ends what it has started. Like
// synctest.Test, it fails when goroutines of the test are left that wait for ever.
//
// One call runs at a time; others wait. Nothing else in the process may use NATS
// meanwhile, because nats.go shares its timers: do not mix it with parallel tests that
// have a connection of their own.
func Run(t *testing.T, buckets []string, test func(t *testing.T, w *World)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "workflowtest-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	one.Lock()
	defer one.Unlock()
	forgetTimers()
	defer forgetTimers()
	// The server has one clock for the process. It must not be in a bubble, which would
	// wait for it.
	ats.Register()
	defer ats.Unregister()
	synctest.Test(t, func(t *testing.T) {
		cfg := broker.Config{StoreDir: dir, Sync: broker.SyncInterval, Logger: slog.New(slog.DiscardHandler)}
		for _, name := range buckets {
			hooks := workflow.HookBucket(name)
			hooks.Storage = jetstream.MemoryStorage
			cfg.Buckets = append(cfg.Buckets, hooks)
			cfg.Streams = append(cfg.Streams, bucket(name))
		}
		ctx, cancel := context.WithCancel(context.Background())
		b, err := broker.Connect(ctx, cfg)
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		forget := pace.Slow(b.JetStream())
		w := &World{
			Manager: workflow.NewManager(b.JetStream(), slog.New(slog.NewTextHandler(t.Output(), nil))),
			Broker:  b,
			t:       t,
			ctx:     ctx,
		}
		t.Cleanup(func() {
			forget()
			cancel()
			w.running.Wait()
			_ = w.Manager.Close()
			_ = b.Close(context.Background())
		})
		test(t, w)
	})
}

// one lets one bubble run at a time.
var one sync.Mutex

// forgetTimers empties the pool in which nats.go keeps timers for the whole process. A
// timer of one bubble must not be used in another, or outside. The second collection
// frees what the first has only set aside.
func forgetTimers() {
	runtime.GC()
	runtime.GC()
}

// bucket declares a bucket that keeps every write, and so is its own journal.
func bucket(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              "KV_" + name,
		Subjects:          []string{"$KV." + name + ".>"},
		MaxMsgsPerSubject: 1 << 40,
		Discard:           jetstream.DiscardNew,
		DenyDelete:        true,
		AllowRollup:       true,
		AllowDirect:       true,
		Storage:           jetstream.MemoryStorage,
	}
}

// Start runs deadlines, timers and hooks until the test ends. Register the workflows
// before.
func (w *World) Start() {
	w.t.Helper()
	w.run("deadlines", w.Deadlines)
	w.run("hooks", w.Hooks)
	w.Settle()
}

func (w *World) run(name string, fn func(context.Context) error) {
	w.running.Go(func() {
		if err := fn(w.ctx); err != nil {
			w.t.Errorf("run %s: %v", name, err)
		}
	})
}

// Advance moves the clock, and returns when everything that has come due until then has
// been done: timers have fired, and hooks have reacted. The server
// does not stand still meanwhile: a day takes about a second.
func (w *World) Advance(d time.Duration) {
	w.t.Helper()
	time.Sleep(d)
	w.Settle()
}

// Settle returns when everything that is due has been done. It moves the clock by
// [SettleTime].
func (w *World) Settle() {
	w.t.Helper()
	time.Sleep(SettleTime)
	synctest.Wait()
}

// SettleTime is longer than the pauses that the Manager makes to gather messages.
const SettleTime = 100 * time.Millisecond
