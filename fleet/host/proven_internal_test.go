package host

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

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

// shortReads is a stream of which each reader gets one batch of messages, and then an error.
type shortReads struct{ jetstream.Stream }

type shortReader struct {
	jetstream.Consumer
	hasRead bool
}

func (s shortReads) CreateConsumer(ctx context.Context, by jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c, err := s.Stream.CreateConsumer(ctx, by)
	return &shortReader{Consumer: c}, err
}

func (c *shortReader) FetchNoWait(batch int) (jetstream.MessageBatch, error) {
	if c.hasRead {
		return nil, nats.ErrTimeout
	}
	c.hasRead = true
	return c.Consumer.FetchNoWait(batch)
}

// TestRelayGoesOnReading looks for an output in a topic with more messages than one look can read. The
// next look goes on where the one before it ended. With the last output the relay forgets what it has
// read, and how old that output was.
func TestRelayGoesOnReading(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "OUT", Subjects: []string{"out"}}}})
	stream, err := b.JetStream().Stream(t.Context(), "OUT")
	if err != nil {
		t.Fatal(err)
	}
	const id = "log:7:1"
	for i := range 1200 {
		if i == 1100 {
			_, err = b.JetStream().Publish(t.Context(), "out", nil, jetstream.WithMsgID(id))
		} else {
			_, err = b.JetStream().Publish(t.Context(), "out", nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &relay{
		host:       &Host{js: b.JetStream(), states: &states{js: b.JetStream(), stream: stream}},
		targets:    make(map[string]*target),
		sent:       func(*output) {},
		endWorkers: func() {},
		waiting:    1,
		memory:     new(budget).open(),
	}
	o := &output{Topic: "out", id: id, since: time.Now().Add(-time.Hour)}
	r.mayBeSent(o)
	r.targets["out"] = &target{stream: shortReads{stream}, ids: make(map[string]bool)}
	there, looks := false, 0
	for ; !there && looks < 10; looks++ {
		there, err = r.isPublished(t.Context(), o)
	}
	if !there || err != nil || looks < 2 {
		t.Errorf("after %d looks: %v, %v", looks, there, err)
	}
	r.done(&lanes.Task[*output]{Value: o})
	if !r.oldest.IsZero() || len(r.targets) > 0 {
		t.Errorf("after the last output the relay looks from %v on, in %v", r.oldest, r.targets)
	}
}

// TestRelayLooksAgain publishes an output in the name of an earlier holder, after the relay has
// looked in the stream. The relay sees it at its next look.
func TestRelayLooksAgain(t *testing.T) {
	out := jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}, Duplicates: 200 * time.Millisecond}
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{out}})
	stream, err := b.JetStream().Stream(t.Context(), "OUT")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{
		host:    &Host{js: b.JetStream(), states: &states{js: b.JetStream(), stream: stream}},
		targets: make(map[string]*target),
	}
	o := &output{Topic: "out", id: "log:7:1", since: time.Now().Add(-time.Hour)}
	r.mayBeSent(o)
	if there, err := r.isPublished(t.Context(), o); there || err != nil {
		t.Fatalf("before it is published: %v, %v", there, err)
	}
	if _, err := b.JetStream().Publish(t.Context(), "out", nil, jetstream.WithMsgID(o.id)); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the relay sees what was published since", func() bool {
		there, err := r.isPublished(t.Context(), o)
		return there && err == nil
	})
}
