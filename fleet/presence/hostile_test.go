package presence_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// A client with the permissions of one service writes entries that no process writes. They
// are of its own service, also when their text names another, and the tombstone of one that needs
// much more room as JSON holds up no other.
func TestStrangeEntriesStayInTheirService(t *testing.T) {
	js := nats(t)
	f := open(t, js, presence.Config{TTL: 3 * time.Second})
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, f, l)
	swollen := strings.Repeat(`<\u0001`, 2000)
	for key, entry := range map[string]string{
		"billing.a.b":     `{"service":"missions","version":"9","status":{"report":{"phase":"running"}}}`,
		"billing.b":       string(presence.Entry("billing.b", []byte(`{"id":"billing.b","service":"missions","version":"9"}`))),
		"billing.swollen": string(presence.Entry("billing.swollen", []byte(`{"id":"billing.swollen","service":"billing","host":"`+swollen+`","version":"`+swollen+`","status":{"waiting":"`+swollen+`","report":{"phase":"running"}}}`))),
		"s.plain":         string(presence.Entry("s.plain", []byte(`{"id":"s.plain","service":"s","status":{"report":{"phase":"running"}}}`))),
	} {
		announce(t, js, l, key, entry)
	}
	list, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if (p.ID == "billing.a.b" || p.ID == "billing.b") && (p.Service != "billing" || p.Version != "" || p.Suspect == "") {
			t.Errorf("an entry under billing is shown as %+v", p)
		}
	}
	lost := func(id string) bool {
		return has(events(t, f, presence.EventQuery{Process: id, Kinds: []string{"lost"}}), "lost", "", "", "not heard since")
	}
	for _, id := range []string{"billing.a.b", "billing.b", "billing.swollen", "s.plain"} {
		brokertest.Await(t, "the tombstone of "+id, func() bool { return lost(id) })
	}
	if list := events(t, f, presence.EventQuery{Service: "missions"}); len(list) > 0 {
		t.Errorf("the service missions has the events\n%s", show(list))
	}
}

// An event that the journal never takes holds up no other, and is counted.
func TestEventThatTheJournalRefuses(t *testing.T) {
	js := nats(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLEET_JOURNAL", Subjects: []string{"lifecycle.fleet.event.>"}, MaxMsgSize: 520}); err != nil {
		t.Fatal(err)
	}
	app, id, _ := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	app.Suspend(strings.Repeat("x", 1900))
	await(t, f, id, "the suspension", func(p presence.Process) bool { return p.Suspended != "" })
	app.Resume()
	brokertest.Await(t, "the event behind the one that is too large, and the count", func() bool {
		list := events(t, f, presence.EventQuery{Process: id})
		return has(list, "resumed", "", "", "") && has(list, "dropped", "", "", "")
	})
}
