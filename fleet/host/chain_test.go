package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// TestChain checks that a link whose outcome the writer did not learn is neither lost nor
// taken for the one after it, and that a second writer ends the first.
func TestChain(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "CHAIN", Subjects: []string{"chain"}, AllowAtomicPublish: true}}})
	stream, err := b.JetStream().Stream(t.Context(), "CHAIN")
	if err != nil {
		t.Fatal(err)
	}
	link := func(data string) *nats.Msg {
		return &nats.Msg{Subject: "chain", Header: nats.Header{}, Data: []byte(data)}
	}
	add := func(c *chain, data string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return c.append(ctx, link(data))
	}
	c := &chain{nc: b.Conn(), stream: stream, subject: "chain", fence: 7}
	if err := add(c, "a"); err != nil {
		t.Fatal(err)
	}
	// The writer gives up on b, and the server has it.
	late := *c
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if c.append(ended, link("b")) == nil {
		t.Fatal("append with a context that has ended")
	}
	if err := add(&late, "b"); err != nil {
		t.Fatal(err)
	}
	if err := add(c, "c"); err != nil {
		t.Fatalf("after a link whose outcome was not known: %v", err)
	}
	other := &chain{nc: b.Conn(), stream: stream, subject: "chain", fence: 8, last: c.last}
	if err := add(other, "d"); err != nil {
		t.Fatal(err)
	}
	if err := add(c, "e"); !errors.Is(err, ErrStale) {
		t.Errorf("a writer that was replaced: %v", err)
	}
	var all string
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq+4; seq++ {
		if m, err := stream.GetMsg(t.Context(), seq); err == nil {
			all += string(m.Data)
		}
	}
	if all != "abcd" {
		t.Errorf("the chain is %q", all)
	}
}

// Of two hosts that take the same token behind that of a log, one holds the slot: the commits of the
// other, which the server refuses, are not taken for added.
func TestClaimsWithOneToken(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "LOG", Subjects: []string{"$h.log.*"}, AllowAtomicPublish: true}}})
	stream, err := b.JetStream().Stream(t.Context(), "LOG")
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{nc: b.Conn(), logs: stream}
	h.cfg.Name = "h"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.slotLog("s", 14).append(ctx, &entry{Fence: 14}); err != nil {
		t.Fatal(err)
	}
	first, second := h.slotLog("s", 15), h.slotLog("s", 15)
	first.last, second.last = 1, 1
	if err := first.append(ctx, &entry{Fence: 15}); err != nil {
		t.Fatal(err)
	}
	if err := second.append(ctx, &entry{Fence: 15}); !errors.Is(err, ErrStale) {
		t.Errorf("the second claim with one token: %v", err)
	}
	if _, err := second.open(ctx, "second"); err != nil || second.fence != 16 {
		t.Errorf("it claims with %d, %v", second.fence, err)
	}
	if err := first.append(ctx, &entry{Fence: 15}); !errors.Is(err, ErrStale) {
		t.Errorf("the host that was replaced: %v", err)
	}
}
