package presence_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// On this bus every client may do everything, and one of them is hostile.

// A put makes no process: it is shown as suspect, and a process that announces itself is
// shown as it is.
func TestForgedEntriesAreShownAsSuchAndChangeNothing(t *testing.T) {
	js := nats(t)
	app, id, _ := start(t, js, presence.Config{Version: "1.2.3"}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready && p.Suspect == "" })
	kv, err := js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	own, err := kv.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for name, entry := range map[string]struct{ key, value string }{
		"ghost":                     {"missions.ghost", `{"id":"missions.ghost","service":"missions","ready":true}`},
		"ghost without a service":   {"ghost", `{"id":"ghost","service":"missions","ready":true}`},
		"copy under another id":     {"missions.copy", string(own.Value())},
		"copy under a service":      {"billing.copy", string(own.Value())},
		"garbage":                   {"missions.garbage", "\x00\xff" + strings.Repeat("x", 10_000)},
		"nothing":                   {"missions.nothing", ""},
		"a key that no process has": {"a/b=c.d.e.f", "{}"},
		"a key of 3 kB":             {strings.Repeat("x", 3000), `{"service":"` + strings.Repeat("y", 10_000) + `"}`},
	} {
		put(t, js, entry.key, entry.value)
		list, err := f.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, p := range list {
			switch {
			case p.ID == id:
				if p.Suspect != "" || !p.Ready || p.Version != "1.2.3" {
					t.Errorf("%s: the process is shown as %+v", name, p)
				}
			case p.Suspect == "" || len(p.ID) > 200:
				t.Errorf("%s: %.100s is shown without a suspicion", name, p.ID)
			default:
				seen++
			}
		}
		if seen != 1 {
			t.Errorf("%s: %d of its entries are shown", name, seen)
		}
		if p, err := f.Get(t.Context(), entry.key); err == nil && p.Suspect == "" {
			t.Errorf("%s: got %+v", name, p)
		}
		if _, err := f.Drain(t.Context(), entry.key, "", "ada"); err == nil {
			t.Errorf("%s: it was drained", name)
		}
		if err := kv.Purge(t.Context(), entry.key); err != nil {
			t.Fatal(err)
		}
	}
	p := await(t, f, id, "the suspicion", func(p presence.Process) bool {
		if p.Suspect == "" { // its own next announcement may be stored before a look
			put(t, js, id, `{"service":"missions"}`)
		}
		return p.Suspect != ""
	})
	if !strings.Contains(p.Suspect, "another client has written") || p.Version != "1.2.3" {
		t.Errorf("overwritten, the process is shown as %+v", p)
	}
	await(t, f, id, "its next announcement, with the suspicion", func(p presence.Process) bool { return p.Suspect != "" && p.Number > 1 })
	if _, err := f.Drain(t.Context(), id, "", "ada"); err != nil {
		t.Error(err)
	}
	<-app.Draining()
}

// A watch believes a removal only when the process has signed it, and believes no entry
// that is stored a second time.
func TestWatchBelievesOnlyTheProcess(t *testing.T) {
	js := nats(t)
	cfg := presence.Config{TTL: time.Minute, Every: 20 * time.Millisecond}
	f := open(t, js, cfg)
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Attend(ctx, l.tell) }()
	defer func() { cancel(); <-done }()
	_, id, stop := start(t, js, cfg, nil)
	brokertest.Await(t, "the process", l.is(func() bool { return l.seen[id] > 0 }))
	kv, err := js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	own, err := kv.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	l.is(func() bool { before = l.seen[id]; return true })()
	if err := kv.Purge(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "its next announcements", l.is(func() bool { return l.seen[id] > before+2 }))
	if l.is(func() bool { return l.gone[id] > 0 })() {
		t.Error("another client has removed the process")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	brokertest.Await(t, "its end", l.is(func() bool { return l.gone[id] == 1 }))
	if _, err := kv.Put(t.Context(), id, own.Value()); err != nil {
		t.Fatal(err)
	}
	p, err := f.Get(t.Context(), id)
	if err != nil || p.Suspect == "" || p.Ready {
		t.Errorf("an old announcement of a process that has left is shown as %+v, %v", p, err)
	}
}

// A listener on the bus can send a command again, and can answer in a process's place.
func TestListenerOnTheBus(t *testing.T) {
	js := nats(t)
	app, id, _ := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{CommandTimeout: time.Minute})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	heard := make(chan *natsgo.Msg, 10)
	spy, err := js.Conn().ChanSubscribe("lifecycle.fleet.command.>", heard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Suspend(t.Context(), id, "new disk", "ada"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Resume(t.Context(), id, "ada"); err != nil {
		t.Fatal(err)
	}
	suspend := <-heard
	if err := spy.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout(t)
	defer cancel()
	m, err := js.Conn().RequestWithContext(ctx, suspend.Subject, suspend.Data)
	if err != nil || !strings.Contains(string(m.Data), "replay") {
		t.Errorf("the command again: %v, %v", m, err)
	}
	if _, suspended := app.Suspended(); suspended {
		t.Error("the command has worked twice")
	}

	// The fastest answers are forged: the process's own counts.
	_, err = js.Conn().Subscribe("lifecycle.fleet.command."+id, func(m *natsgo.Msg) {
		for _, lie := range []string{`{"phase":"draining"}`, "", "lifecycle1 x\n{}", string(suspend.Data)} {
			_ = m.Respond([]byte(lie))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if phase, err := f.Suspend(t.Context(), id, "new disk", "ada"); err != nil || phase != "running" {
		t.Errorf("%q, %v", phase, err)
	}
	app.Stop(nil)
	<-app.Reached("stopped")
	if _, err := f.Drain(t.Context(), id, "", "ada"); !errors.Is(err, presence.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
}

// remote is a connection that seems to end on another machine.
type remote struct{ net.Conn }

func (remote) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4222} }

type dialer struct{}

func (dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return remote{conn}, err
}

// Without keys a process obeys only its own machine's bus.
func TestWithoutKeysOnlyThisMachineCommands(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	connect := func(options ...natsgo.Option) jetstream.JetStream {
		nc, err := natsgo.Connect(b.ClientURL(), options...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return js
	}
	_, near, _ := start(t, connect(), presence.Config{}, nil)
	_, far, stop := start(t, connect(natsgo.SetCustomDialer(dialer{})), presence.Config{}, nil)
	f := open(t, b.JetStream(), presence.Config{})
	for _, id := range []string{near, far} {
		await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	}
	if _, err := f.Suspend(t.Context(), near, "new disk", ""); err != nil {
		t.Error(err)
	}
	if _, err := f.Suspend(t.Context(), far, "new disk", ""); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), "OperatorsFile") {
		t.Errorf("%v, want ErrRefused that names OperatorsFile", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestKeyFilesThatCannotWork(t *testing.T) {
	js := nats(t)
	if _, err := presence.Open(t.Context(), js, presence.Config{KeyFile: "/none"}); err == nil || !strings.Contains(err.Error(), "KeyFile") {
		t.Errorf("a KeyFile that is not there: %v", err)
	}
	app, _, stop := start(t, js, presence.Config{OperatorsFile: "/none"}, nil)
	<-app.Draining()
	if err := stop(); err == nil || !strings.Contains(err.Error(), "OperatorsFile") {
		t.Errorf("an OperatorsFile that is not there: %v", err)
	}
}
