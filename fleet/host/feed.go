package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
)

// While the server has no message, it sends a heartbeat every consumerHeartbeat. When two are
// missing the runner gives up: a server that was restarted may have lost the request. The
// server keeps a request for consumerExpires.
const (
	consumerHeartbeat = 5 * time.Second
	consumerExpires   = 30 * time.Second
)

// openConsumer sets the slot's consumer back to the first message that was not answered, and
// begins to take its messages.
func (r *runner) openConsumer(ctx context.Context) error {
	if err := r.reset(ctx); err != nil {
		return err
	}
	info := r.consumer.CachedInfo()
	var err error
	r.pull, err = pull.Open(r.host.nc, pull.Config{
		API:       pull.API(r.host.js),
		Stream:    info.Stream,
		Consumer:  info.Name,
		Most:      r.host.cfg.Prefetch,
		Heartbeat: consumerHeartbeat,
		Expires:   consumerExpires,
		Patience:  2 * consumerHeartbeat,
	})
	if err != nil {
		return fmt.Errorf("consumer %s: %w", r.slot.name, err)
	}
	return nil
}

// reset sets the consumer back to the first message that was not answered. The consumer of a
// group stays as it is: it delivers one message at a time, so its order is kept already, and
// the message that another host may still handle must not be repeated.
func (r *runner) reset(ctx context.Context) error {
	info := r.consumer.CachedInfo()
	r.partition.raiseFloor(info.AckFloor.Stream)
	deliversOneAtATime := info.Config.MaxAckPending == 1
	if deliversOneAtATime {
		return nil
	}
	done, err := r.host.js.ResetConsumer(ctx, info.Stream, info.Name)
	switch {
	case err == nil:
		r.partition.raiseFloor(done.ResetSeq - 1)
		r.order = arrivals{known: true, strict: true, stream: done.ResetSeq - 1} // the consumer counts from 1 again
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrConsumerInvalidReset):
		// A server before 2.14 does not know the request. It delivers messages that were not
		// answered again after AckWait.
	default:
		return fmt.Errorf("consumer %s: start over: %w", r.slot.name, err)
	}
	return nil
}

// feed takes messages from the consumer and puts them into the queue, until the runner
// halts. Then it gives back the messages that have come and are not in the queue.
func (r *runner) feed() error {
	defer func() {
		for _, m := range r.pull.Drain() {
			_ = (&acker{r.host.nc, m.Reply}).nak(0)
		}
	}()
	for {
		r.refill()
		m, err := r.pull.Next(r.taking)
		if err == nil && m != nil {
			err = r.enqueue(m)
		}
		if r.halting.Load() {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// refill asks for messages when there is room for many, or when no message can be handled now:
// all that wait may wait for their next attempts.
func (r *runner) refill() {
	r.refilling.Lock()
	defer r.refilling.Unlock()
	prefetch, expected := r.host.cfg.Prefetch, r.pull.Expected()
	room := prefetch - expected - r.queue.Len()
	if r.host.budget.isFull() {
		room = 1 - expected - r.queue.Len()
	}
	hasRoomForMany := room >= (prefetch+1)/2
	isIdle := expected == 0 && r.queue.Due() == 0
	if hasRoomForMany || isIdle && room > 0 {
		_ = r.pull.Ask(pull.Request{Batch: room, MaxBytes: r.host.maxPull()}) // fails without a connection; feed asks again when it is back
	}
}

// enqueue puts a message into the queue, unless it was answered or is there already. It returns
// an error when deliveries before this one are missing. The runner then ends, and the next one
// begins at the first message that was not answered.
func (r *runner) enqueue(m *nats.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		r.host.log.Error("hosted worker: a message without metadata", "slot", r.slot.name, "error", err)
		return nil
	}
	before, ok := r.order.next(meta)
	if !ok {
		return fmt.Errorf("consumer %s: deliveries before message %d are missing", r.slot.name, meta.Sequence.Stream)
	}
	seq := meta.Sequence.Stream
	if before > 0 {
		r.partition.skip(before, seq)
	}
	from := &acker{r.host.nc, m.Reply}
	if to := m.Header.Get(HeaderFor); to != "" && to != r.slot.name {
		r.partition.skip(seq-1, seq+1) // this one alone: it was redriven for another group or worker
		_ = from.ack()
		return nil
	}
	r.mu.Lock()
	if known := r.inHand[seq]; known != nil {
		known.acker.Store(from)
		r.mu.Unlock()
		return nil
	}
	// A message is done before it is forgotten: one that is not in hand here, and not done, was
	// never handled.
	if r.partition.isDone(seq) {
		r.mu.Unlock()
		_ = from.ack() // the answer to an earlier delivery was lost
		return nil
	}
	d := newDelivery(m, meta)
	d.maybeHandled = meta.NumDelivered > 1 || seq <= r.reached
	d.acker.Store(from)
	r.inHand[seq] = d
	r.mu.Unlock()
	r.partition.memory.add(d.held())
	if r.queue.Add(r.keyOf(d), d, 0) != nil {
		r.giveBack(d, 0)
	}
	return nil
}

// giveBack makes the server deliver a message again after a delay.
func (r *runner) giveBack(d *delivery, delay time.Duration) {
	r.forget(d)
	_ = d.acker.Load().nak(delay)
}

// forget notes that the runner no longer has a message.
func (r *runner) forget(d *delivery) {
	r.mu.Lock()
	known := r.inHand[d.seq] == d
	if known {
		delete(r.inHand, d.seq)
	}
	r.mu.Unlock()
	if known {
		r.partition.memory.add(-d.held())
	}
}

// memoryOverhead is what a delivery or an output takes beside its texts, in bytes.
const memoryOverhead = 500

// held returns the memory that a delivery counts for while it waits.
func (d *delivery) held() int64 { return int64(d.size + memoryOverhead) }

// maxPull bounds the bytes of the messages that are on their way to a slot.
func (h *Host) maxPull() int64 { return max(4<<20, 2*h.nc.MaxPayload()) }

// arrivals follows the order in which a consumer delivers.
type arrivals struct {
	known            bool // consumer and stream have the last delivery
	strict           bool // the consumer delivers in order, so a gap means that deliveries were lost
	consumer, stream uint64
}

// next notes a delivery. It returns the sequence of the message before it, when no message
// for this consumer is between the two, and 0 when that is not known. It returns false when
// deliveries before this one are missing.
func (a *arrivals) next(meta *nats.MsgMetadata) (before uint64, ok bool) {
	missing := a.known && meta.Sequence.Consumer != a.consumer+1
	if missing && a.strict {
		return 0, false
	}
	first := meta.NumDelivered == 1
	if a.known && !missing && first {
		before = a.stream
	}
	a.consumer = meta.Sequence.Consumer
	if first {
		a.stream, a.known = meta.Sequence.Stream, true
	} else if missing {
		a.known = false
	}
	return before, true
}
