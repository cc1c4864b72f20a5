package presence_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
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
	f := open(t, js, presence.Config{})
	want := presence.Consumer{Name: "billing", Pending: uint64(3 - others), InHand: 1 + others, Again: 1, Floor: 1}
	var got []presence.Consumer
	// The server counts a message as pending a little after it has stored it.
	brokertest.Await(t, "the messages that wait", func() bool {
		list, err := f.Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if s.Name == "ORDERS" {
				got = s.Consumers
			}
		}
		return len(got) == 1 && got[0].Pending == want.Pending
	})
	if got[0] != want {
		t.Errorf("the consumer is %+v, want %+v", got[0], want)
	}
}
