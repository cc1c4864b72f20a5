package host

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
)

// TestDeliveryBesideACommit delivers a message again while its commit ends. Its handler is not
// called a second time: between two looks it was neither among the messages in hand nor among
// those that are done.
func TestDeliveryBesideACommit(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "WORK", Subjects: []string{"work"}}}})
	sub, err := b.Conn().SubscribeSync("unused")
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{
		slot:      &slot{name: "w-a"},
		host:      &Host{nc: b.Conn(), log: slog.New(slog.DiscardHandler)},
		partition: &partition{},
		queue:     lanes.New[*delivery](),
		inHand:    map[uint64]*delivery{1: {seq: 1}},
	}
	defer r.queue.Close()
	again := &nats.Msg{Subject: "work", Sub: sub, Reply: "$JS.ACK.WORK.c.2.1.2.1700000000000000000.0", Header: nats.Header{}}
	r.mu.Lock()
	ended := make(chan error)
	go func() { ended <- r.enqueue(again) }()
	brokertest.Await(t, "the delivery waits for the messages in hand", func() bool {
		text := make([]byte, 1<<20)
		text = text[:runtime.Stack(text, true)]
		for stack := range strings.SplitSeq(string(text), "\n\n") {
			if strings.Contains(stack, "Mutex.Lock") && strings.Contains(stack, ".enqueue(") {
				return true
			}
		}
		return false
	})
	r.partition.known.Done.Done(1) // the commit ends: the message is done, and then forgotten
	delete(r.inHand, 1)
	r.mu.Unlock()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := r.queue.Len(); n != 0 {
		t.Errorf("%d messages wait to be handled again", n)
	}
}
