package presence_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// An idle process sends beats, and signs anew now and then. A change is announced whole, at
// once.
func TestAnIdleProcessSendsBeats(t *testing.T) {
	js := nats(t)
	cfg := presence.Config{TTL: time.Minute, Every: 20 * time.Millisecond, Log: brokertest.Quiet()}
	f := open(t, js, cfg)
	app, id, _ := start(t, js, cfg, nil)
	await(t, f, id, "the process", func(p presence.Process) bool { return p.Ready })
	kv, err := js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	watch, err := kv.WatchAll(t.Context(), jetstream.UpdatesOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Stop() }()
	beats, whole := 0, 0
	timeout := time.After(time.Minute)
	for beats < 6 || whole < 2 {
		select {
		case e := <-watch.Updates():
			if e != nil && bytes.Contains(e.Value(), []byte("\nbeat ")) {
				beats++
			} else if e != nil {
				whole++
			}
		case <-timeout:
			t.Fatalf("after a minute there were %d beats and %d announcements", beats, whole)
		}
	}
	app.Suspend("deploy")
	p := await(t, f, id, "the suspension", func(p presence.Process) bool { return p.Suspended == "deploy" && !p.Ready })
	if p.Suspect != "" {
		t.Errorf("the process is suspect: %s", p.Suspect)
	}
}
