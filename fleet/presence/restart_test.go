package presence_test

import (
	"context"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// The only server of a small fleet restarts and loses the bucket, which is in memory.
// The processes announce themselves again, and watchers see them.
func TestServerRestarts(t *testing.T) {
	srv := brokertest.StartCluster(t, 1)
	js := brokertest.Connect(t, broker.Config{URL: srv.URL()}).JetStream()
	cfg := presence.Config{TTL: 3 * time.Second}
	f := open(t, js, cfg)
	_, id, _ := start(t, js, cfg, nil)
	await(t, f, id, "the process", func(p presence.Process) bool { return p.Ready })
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil { // as a feed does
			_ = f.Attend(ctx, l.tell)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	defer func() { cancel(); <-done }()
	brokertest.Await(t, "the process in the watch", l.is(func() bool { return l.seen[id] > 0 }))
	srv.StopAll()
	srv.StartAll()
	await(t, f, id, "the process after the restart", func(p presence.Process) bool { return p.Ready })
	before := 0
	l.is(func() bool { before = l.seen[id]; return true })() // is holds the lock of seen
	brokertest.Await(t, "the process in the watch again", l.is(func() bool { return l.seen[id] > before+1 }))
}
