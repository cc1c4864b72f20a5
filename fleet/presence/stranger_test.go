package presence_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// A client that may publish everything on the bus, and has no operator's key, commands
// no process.
func TestStrangerCommandsNoProcess(t *testing.T) {
	js := nats(t)
	app, id, _ := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	for _, message := range []string{
		`{"do":"suspend","reason":"because","who":"ada"}`,
		`{"do":"drain","who":"ada"}`,
		`{}`, ``, `null`, "\x00\xff", `lifecycle1 `, `lifecycle1 a b` + "\n" + `{"do":"drain"}`,
	} {
		ctx, cancel := timeout(t)
		m, err := js.Conn().RequestWithContext(ctx, "lifecycle.fleet.command."+id, []byte(message))
		cancel()
		if err != nil {
			t.Fatalf("%q: %v", message, err) // the process answers why it refuses
		}
		if _, suspended := app.Suspended(); suspended || app.Phase() != "running" {
			t.Fatalf("%q: the process is %s, suspended: %v; it answers %s", message, app.Phase(), suspended, m.Data)
		}
	}
}

func put(t *testing.T, js jetstream.JetStream, key, value string) {
	t.Helper()
	kv, err := js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func timeout(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), time.Minute)
}
