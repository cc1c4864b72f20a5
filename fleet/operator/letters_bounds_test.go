package operator_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// store puts n dead letters of the worker into the stream, as a host does.
func (o *office) store(n int, data string, header nats.Header) {
	o.t.Helper()
	for i := range n {
		m := &nats.Msg{Subject: "host.dead.desk", Data: []byte(data), Header: nats.Header{
			host.HeaderWorker: {"desk"}, host.HeaderReason: {"no"}, host.HeaderTopic: {"work.desk"}, host.HeaderMessage: {fmt.Sprint("WORK:", i)}, host.HeaderAttempts: {"1"},
		}}
		for name, values := range header {
			m.Header[name] = values
		}
		if _, err := o.js.PublishMsgAsync(m); err != nil {
			o.t.Fatal(err)
		}
	}
	<-o.js.PublishAsyncComplete()
}

// A page of dead letters keeps the begin of each message in memory, and not the messages.
func TestPageOfLettersKeepsNoWholeMessage(t *testing.T) {
	o := openOffice(t, nil, "")
	o.store(3, strings.Repeat("x", 500_000), nil)
	list, err := operator.FromHost(o.ask).DeadLetters(t.Context(), "desk", "", 1001)
	if err != nil || len(list) != 3 {
		t.Fatalf("%d letters, %v", len(list), err)
	}
	for _, d := range list {
		if len(d.GetData()) != 4<<10 || cap(d.GetData()) > 8<<10 || d.GetSize() != 500_000 {
			t.Errorf("a list has %d of %d bytes and keeps %d", len(d.GetData()), d.GetSize(), cap(d.GetData()))
		}
	}
	for _, d := range o.letters("no") {
		if len(d.GetData()) != 4<<10 || d.GetSize() != 500_000 {
			t.Errorf("the list of a group has %d of %d bytes", len(d.GetData()), d.GetSize())
		}
	}
}

// Dead letters are counted by version from all of them, also those of a host that is not
// asked.
func TestAllLettersAreCountedByVersion(t *testing.T) {
	o := openOffice(t, nil, "")
	w, err := o.c.GetWorker(t.Context(), &operatorv1.GetWorkerRequest{Id: "desk"})
	if err != nil || len(w.GetVersions()) != 1 || w.GetVersions()[0].GetCounted() || w.GetVersions()[0].GetDeadLettered() != 0 {
		t.Fatalf("%v, %v", w, err)
	}
	o.store(700, "of another version", nats.Header{host.HeaderDigest: {strings.Repeat("0", 64)}})
	o.store(1300, "x", nats.Header{host.HeaderDigest: {strings.TrimPrefix(w.GetDigest(), "sha256:")}})
	w, err = o.c.GetWorker(t.Context(), &operatorv1.GetWorkerRequest{Id: "desk"})
	if err != nil || w.GetVersions()[0].GetDeadLettered() != 1300 || w.GetDeadLetters() != 2000 {
		t.Errorf("%v, %v", w, err)
	}
	s, err := o.js.Stream(t.Context(), "HOST_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	for c := range s.ListConsumers(t.Context()).Info() {
		t.Errorf("the count has left a consumer: %v", c)
	}
}
