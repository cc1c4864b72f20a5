package presence_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// An idle process repeats its announcement byte for byte under a new stamp. A change is
// announced at once.
func TestAnIdleProcessRepeatsItself(t *testing.T) {
	js := nats(t)
	cfg := presence.Config{TTL: time.Minute, Every: 20 * time.Millisecond, Logger: brokertest.Quiet()}
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
	var body []byte
	times := 0
	timeout := time.After(time.Minute)
	for times < 6 {
		select {
		case e := <-watch.Updates():
			if e == nil {
				continue
			}
			parts := bytes.SplitN(e.Value(), []byte("\n"), 3) // the seal, the stamp, the process
			if len(parts) != 3 {
				t.Fatalf("an entry is %q", e.Value())
			}
			if times++; !bytes.Equal(parts[2], body) {
				body, times = parts[2], 1
			}
		case <-timeout:
			t.Fatalf("after a minute the process repeats itself %d times", times)
		}
	}
	app.Suspend("deploy")
	if p, err := f.Get(t.Context(), id); err != nil || len(p.Status.Units) == 0 || len(p.Status.Report.Units) != 0 {
		t.Errorf("the units that run are announced twice: %+v, %v", p.Status, err)
	}
	p := await(t, f, id, "the suspension", func(p presence.Process) bool { return p.Suspended == "deploy" && !p.Ready })
	if p.Suspect != "" {
		t.Errorf("the process is suspect: %s", p.Suspect)
	}
}
