package presence_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// An idle process sends beats, and signs anew now and then: not because it has looked at
// itself, when it has seen nothing new. A change is announced whole, at
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
	beats, whole, last := 0, 0, 0
	timeout := time.After(time.Minute)
	for beats < 6 || whole < 2 || last < 5 { // at the fourth beat it has looked at itself
		select {
		case e := <-watch.Updates():
			if e == nil {
				continue
			}
			if _, beat, ok := bytes.Cut(e.Value(), []byte("\nbeat ")); ok {
				k := 0
				if _, err := fmt.Sscan(string(beat), &k); err != nil {
					t.Fatal(err)
				}
				beats, last = beats+1, max(last, k)
			} else {
				whole++
			}
		case <-timeout:
			t.Fatalf("after a minute there were %d beats, the last of an announcement was %d, and %d announcements", beats, last, whole)
		}
	}
	app.Suspend("deploy")
	p := await(t, f, id, "the suspension", func(p presence.Process) bool { return p.Suspended == "deploy" && !p.Ready })
	if p.Suspect != "" {
		t.Errorf("the process is suspect: %s", p.Suspect)
	}
}
