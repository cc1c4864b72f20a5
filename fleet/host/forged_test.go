package host_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// A record that no host has written, with wildcards where a name belongs, is not acted
// upon: a deletion of the worker "*" would remove what all workers have stored.
func TestForgedRecordsChangeNothing(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "good", Topic: "work.good", OutputTopic: "out.good", Code: []byte(`
def handle(message):
    n = int(state.get("n") or "0") + 1
    state.put("n", str(n))
    return str(n)
`)})
	r.publish("work.good", "x")
	r.wantOutputs("out.good", "1")
	forge := func(key, record string) {
		t.Helper()
		m := nats.NewMsg("$KV.HOST_WORKERS." + key)
		m.Data = []byte(record)
		if _, err := r.js.PublishMsg(t.Context(), m); err != nil {
			t.Logf("%s: the server refuses it: %v", key, err)
		}
	}
	before := r.leftovers()
	const rest = `,"mimeType":"text/x-starlark","topic":"work.f","stream":"WORK","generation":1,"digest":"d","changed":{"at":"2020-01-01T00:00:00Z"}}`
	forge("*", `{"id":"*","uid":"*","phase":"Deleting"`+rest)
	forge("f1", `{"id":"f1","uid":"*","phase":"Deleting"`+rest)
	forge("f2", `{"id":"f2","uid":"u.>","phase":"Running"`+rest)
	forge("f3", `{"id":"f3","uid":"u","group":"a.b","phase":"Running"`+rest)
	forge("f4", `{"id":"f4","uid":"u","phase":"Running","topic":"work..x"`+strings.Replace(rest, `,"topic":"work.f"`, "", 1))
	forge("good.x", `{"id":"good.x","uid":"u","phase":"Deleting"`+rest)
	r.eventually("the forged records are known to be broken", func() bool {
		records, err := h.List(t.Context())
		for _, id := range []string{"f1", "f2", "f3", "f4", "good.x"} {
			if err == nil || !strings.Contains(err.Error(), "record "+id+",") {
				return false
			}
		}
		return len(records) == 1 && records[0].ID == "good"
	})
	create(t, h, host.Spec{ID: "later", Topic: "work.later", OutputTopic: "out.later", Code: prefix("l")}) // the host has seen them all
	must(t, h.Delete(t.Context(), "later"))
	have := strings.Join(r.leftovers(), "\n") + "\n"
	for _, subject := range before {
		if !strings.Contains(have, subject+"\n") {
			t.Errorf("%s is gone", subject)
		}
	}
	r.publish("work.good", "x")
	r.wantOutputs("out.good", "1", "2")
}

// A record that was changed on the bus, so that its worker would read a stream of the hosts, gets nothing
// of it.
func TestForgedRecordReadsNoStreamOfTheHosts(t *testing.T) {
	for what, group := range map[string]string{"alone": "", "in a group": "g"} {
		t.Run(what, func(t *testing.T) { forgeStream(t, group) })
	}
}

func forgeStream(t *testing.T, group string) {
	t.Helper()
	r := newRig(t)
	var lines lockedBuffer
	r.tune = func(c *host.Config) { c.Logger = slog.New(slog.NewTextHandler(&lines, nil)) }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Group: group, Topic: "work.w", OutputTopic: "out.w", Code: prefix("")})
	records, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	entry, err := records.Get(t.Context(), "w")
	must(t, err)
	forged := strings.NewReplacer(`"topic":"work.w"`, `"topic":"$host.dead.>"`, `"stream":"WORK"`, `"stream":"HOST_DEAD"`).Replace(string(entry.Value()))
	_, err = records.PutString(t.Context(), "w", forged)
	must(t, err)
	r.eventually("the host refuses the stream", func() bool { return strings.Contains(lines.String(), "not for workers") })
	stream, err := r.js.Stream(t.Context(), "HOST_DEAD")
	must(t, err)
	for name := range stream.ConsumerNames(t.Context()).Name() {
		t.Errorf("the stream of the dead letters has the consumer %s", name)
	}
}

// A message on the log of a worker that no host has written does not keep the worker
// from going on.
func TestAForeignMessageInTheLog(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix(">")})
	r.publish("work.w", "1")
	r.wantOutputs("out.w", ">1")
	r.publish("$host.log.w-w", "not an entry", "{}")
	r.publish("work.w", "2")
	r.wantOutputs("out.w", ">1", ">2")
	r.stop(h)
	r.publish("$host.log.w-w", "again")
	r.publish("work.w", "3")
	r.start("b")
	r.wantOutputs("out.w", ">1", ">2", ">3")
}

// Workers go on when the stream of their state was lost, or restored from an older
// backup, and the stream of their logs was not: the fencing tokens begin again below
// those that the logs have.
func TestStateStreamIsMadeAnew(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: []byte("def handle(message): return str(message.fence)")})
	r.publish("work.w", "1")
	r.eventually("it is handled", func() bool { return len(r.outputs("out.w")) == 1 })
	for range 3 { // newer tokens
		r.stop(h)
		h = r.start("a")
	}
	r.stop(h)
	r.publish("$host.state.filler", make([]string, 100)...)
	h = r.start("a")
	r.stop(h)
	must(t, r.js.DeleteStream(t.Context(), "HOST_STATE"))
	for n := 2; n < 4; n++ {
		h = r.start("a")
		r.publish("work.w", "x")
		r.eventually("it is handled", func() bool { return len(r.outputs("out.w")) == n })
		r.stop(h)
	}
	tokens := r.outputs("out.w")
	for i := range tokens[1:] {
		if len(tokens[i]) > len(tokens[i+1]) || len(tokens[i]) == len(tokens[i+1]) && tokens[i] >= tokens[i+1] {
			t.Errorf("the fencing tokens are %q", tokens)
		}
	}
}
