package presence_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// What NATS tells of a consumer's messages: those that wait, those that are delivered, and those of
// them that are delivered again.
func TestStreamsTellWhatAConsumerHolds(t *testing.T) {
	js := nats(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	billing, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable:   "billing",
		AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:   time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := js.Publish(t.Context(), "orders", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	next := func() jetstream.Msg {
		t.Helper()
		m, err := billing.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if err := next().DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := next().Nak(); err != nil {
		t.Fatal(err)
	}
	others := 0 // that come before the one that comes again
	for {
		meta, err := next().Metadata()
		if err != nil {
			t.Fatal(err)
		}
		if meta.NumDelivered == 2 {
			break
		}
		others++
	}
	list, err := open(t, js, presence.Config{}).Streams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Name != "ORDERS" {
			continue
		}
		want := presence.Consumer{Name: "billing", Pending: uint64(3 - others), InHand: 1 + others, Again: 1, Floor: 1}
		if len(s.Consumers) != 1 || s.Consumers[0] != want {
			t.Errorf("the consumers are %+v, want %+v", s.Consumers, want)
		}
		return
	}
	t.Errorf("the streams are %+v", list)
}
