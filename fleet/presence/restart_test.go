package presence_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// The one server of a small fleet restarts, and with it the bucket, which is in
// memory, is gone: processes announce themselves again, and those who watch see
// them.
func TestServerRestarts(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
	var srv *server.Server
	run := func() {
		var err error
		if srv, err = server.NewServer(opts.Clone()); err != nil {
			t.Fatal(err)
		}
		srv.Start()
		if !srv.ReadyForConnections(time.Minute) {
			t.Fatal("the server takes no connections")
		}
	}
	stop := func() { srv.Shutdown(); srv.WaitForShutdown() }
	run()
	t.Cleanup(func() { stop() })
	addr, _ := srv.Addr().(*net.TCPAddr)
	opts.Port = addr.Port
	js := brokertest.Connect(t, broker.Config{URL: srv.ClientURL()}).JetStream()
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
			_ = f.Watch(ctx, l)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	defer func() { cancel(); <-done }()
	brokertest.Await(t, "the process in the watch", l.is(func() bool { return l.seen[id] > 0 }))
	stop()
	run()
	await(t, f, id, "the process after the restart", func(p presence.Process) bool { return p.Ready })
	before := 0
	l.is(func() bool { before = l.seen[id]; return true })()
	brokertest.Await(t, "the process in the watch again", l.is(func() bool { return l.seen[id] > before+1 }))
}
