package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// relay publishes the outputs that a slot's log has, each under an id that names the
// committed attempt. Within its duplicate window the stream of the output's topic drops a
// repetition. For an output that may have been published already, and is older than half of
// the window, the relay first looks in the stream. So a publish may be under way for the other
// half. docs/internals/models/relay.pml is the model of it.
//
// The relay publishes the outputs of one key in order. An output that cannot be delivered holds
// up its key until it becomes a dead letter.
type relay struct {
	host   *Host
	queue  *lanes.Queue[*output]
	memory *account
	sent   func(*output) // called once an output was published or is a dead letter

	// confirmHold returns nil when this host had the slot less than holdFor ago.
	confirmHold func(context.Context) error

	ctx    context.Context
	cancel context.CancelFunc

	workers sync.WaitGroup

	mu         sync.Mutex         // guards the fields up to lookMu
	waiting    int                // outputs that were added and not sent yet
	endWorkers context.CancelFunc // nil when no worker runs
	stopped    bool

	lookMu  sync.Mutex         // guards everything below, and is held while the relay looks in a stream
	targets map[string]*target // by topic, of outputs that may have been published
	oldest  time.Time          // when the first output was committed that waits and may have been published
}

// Bounds of a relay.
const (
	// A holder publishes only for this long after it last knew that it has the slot. It is
	// well within half of a stream's duplicate window.
	holdFor = 2 * time.Second

	relayWorkers = 4
)

func newRelay(h *Host, memory *account, sent func(*output), confirmHold func(context.Context) error) *relay {
	r := &relay{
		host:        h,
		queue:       lanes.New[*output](),
		sent:        sent,
		confirmHold: confirmHold,
		memory:      memory,
		targets:     make(map[string]*target),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// add publishes outputs, each after the others of its key. It does not wait.
func (r *relay) add(outputs []*output) {
	for _, o := range outputs {
		if o.maybeSent { // they come from the replay of the log, and no worker runs yet
			r.mayBeSent(o)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range outputs {
		o.size = o.held()
		if r.queue.Add(o.Key, o, 0) != nil {
			return // the relay has ended; the log keeps the output
		}
		r.waiting++
		r.memory.send(o.size)
	}
	if r.waiting > 0 && r.endWorkers == nil && !r.stopped {
		r.startWorkersLocked()
	}
}

// held returns the memory that an output counts for while it waits.
func (o *output) held() int64 {
	size := memoryOverhead + len(o.Key) + len(o.Topic) + len(o.Data)
	for name, values := range o.Header {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	return int64(size)
}

func (r *relay) startWorkersLocked() {
	run := lanes.Runner[*output]{
		Workers: relayWorkers,
		Backoff: r.host.cfg.backoff(),
		Handle:  r.publish,
		Dead:    r.storeDeadLetter,
		Done:    r.done,
	}
	ctx, cancel := context.WithCancel(r.ctx)
	r.endWorkers = cancel
	r.workers.Add(1)
	call.Go("relay", func() error { run.Run(ctx, r.queue); return nil }, func(error) { r.workers.Done() })
}

// done notes that an output was sent. The workers end with the last one, and what was read for it is
// forgotten.
func (r *relay) done(t *lanes.Task[*output]) {
	r.sent(t.Value)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory.send(-t.Value.size)
	if r.waiting--; r.waiting == 0 && r.endWorkers != nil {
		r.endWorkers()
		r.endWorkers = nil
		r.lookMu.Lock()
		r.oldest = time.Time{}
		clear(r.targets)
		r.lookMu.Unlock()
	}
}

// mayBeSent notes that an output may have been published. What was read in the streams may not
// go back far enough for it.
func (r *relay) mayBeSent(o *output) {
	r.lookMu.Lock()
	defer r.lookMu.Unlock()
	o.maybeSent = true
	if r.oldest.IsZero() || o.since.Before(r.oldest) {
		r.oldest = o.since
		clear(r.targets)
	}
}

// stop ends the relay. What was not sent stays in the log.
func (r *relay) stop() {
	r.cancel()
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.workers.Wait()
	r.queue.Close()
}

// publish publishes an output. The error says whether another attempt may succeed.
func (r *relay) publish(ctx context.Context, t *lanes.Task[*output]) error {
	o := t.Value
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	if o.maybeSent {
		there, err := r.isPublished(ctx, o)
		switch {
		case err != nil:
			return lanes.Uncounted(err)
		case there:
			return nil
		}
	}
	m := nats.NewMsg(o.Topic)
	m.Data = o.Data
	for name, values := range o.Header {
		m.Header[name] = values
	}
	if err := r.confirmHold(ctx); err != nil {
		return lanes.Uncounted(err)
	}
	// The client must not wait and publish again by itself: another host may have the slot by
	// then.
	_, err := r.host.js.PublishMsg(ctx, m, jetstream.WithMsgID(o.id), jetstream.WithRetryAttempts(0))
	if err == nil {
		return nil
	}
	err = fmt.Errorf("publish output to %s: %w", o.Topic, err)
	var refusal jetstream.JetStreamError
	switch {
	case unfit(err), errors.Is(err, nats.ErrBadSubject):
		return lanes.Reject(err) // it can never be published
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders), errors.As(err, &refusal):
		// No stream takes it. The stream may come back.
		o.attempts++
		if o.refused.IsZero() {
			o.refused = time.Now()
		}
		if time.Since(o.refused) >= r.host.cfg.OutputPatience {
			return lanes.Reject(err)
		}
	default:
		r.mayBeSent(o) // the server may have it
	}
	return lanes.Uncounted(err)
}

// storeDeadLetter stores an output that cannot be delivered.
func (r *relay) storeDeadLetter(ctx context.Context, t *lanes.Task[*output], why error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return r.host.storeOutput(ctx, t.Value, why)
}

// storeOutput stores a committed output that is not published as a dead letter.
func (h *Host) storeOutput(ctx context.Context, o *output, why error) error {
	err := h.storeLetter(ctx, o.Tenant, o.id, &DeadLetter{
		Worker:   o.Worker,
		Reason:   why.Error(),
		Topic:    o.Topic,
		Message:  o.Cause,
		Attempts: o.attempts,
		Digest:   o.Digest,
		Output:   o.id,
		Header:   o.Header,
		Data:     o.Data,
	})
	if err == nil {
		h.log.Warn("hosted worker: an output is a dead letter",
			"worker", o.Worker, "message", o.Cause, "topic", o.Topic, "error", why)
	}
	return err
}

// target is the stream of a topic, and what the relay has read in it.
type target struct {
	stream jetstream.Stream
	ids    map[string]bool // of its messages since the relay's oldest output, as far as they were read
	next   uint64          // sequence behind the last message that was read; 0 for none
	readAt time.Time       // when the newest reading began that came to the end
}

// isPublished reports whether the stream of an output's topic has the output already. It
// reports false in the first half of the stream's duplicate window: there the stream drops a
// repetition by itself. What it has read in the stream is of use for half of the window too.
func (r *relay) isPublished(ctx context.Context, o *output) (bool, error) {
	r.lookMu.Lock()
	defer r.lookMu.Unlock()
	to, err := r.targetLocked(ctx, o.Topic)
	if err != nil {
		return false, fmt.Errorf("look for an output in %s: %w", o.Topic, err)
	}
	if to == nil {
		return false, nil
	}
	half := to.stream.CachedInfo().Config.Duplicates / 2
	if r.host.states.now(ctx).Sub(o.since) < half {
		return false, nil
	}
	if now := time.Now(); now.Sub(to.readAt) >= half {
		if err := to.read(ctx, o.Topic, r.oldest.Add(-time.Minute)); err != nil {
			return false, fmt.Errorf("look for an output in %s: %w", o.Topic, err)
		}
		to.readAt = now
	}
	return to.ids[o.id], nil
}

// targetLocked returns the stream of a topic, nil when there is none.
func (r *relay) targetLocked(ctx context.Context, topic string) (*target, error) {
	if to := r.targets[topic]; to != nil {
		return to, nil
	}
	name, err := r.host.js.StreamNameBySubject(ctx, topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	stream, err := r.host.js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	r.targets[topic] = &target{stream: stream, ids: make(map[string]bool)}
	return r.targets[topic], nil
}

// read reads the ids of the messages on a subject since a time. After an error, and in a later
// reading, it goes on behind the last message.
func (to *target) read(ctx context.Context, subject string, since time.Time) error {
	by := jetstream.ConsumerConfig{FilterSubject: subject, OptStartTime: &since, OptStartSeq: to.next, HeadersOnly: true}
	each := func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		to.ids[m.Headers().Get(jetstream.MsgIDHeader)] = true
		to.next = meta.Sequence.Stream + 1
		return true, nil
	}
	err := replay.Each(ctx, to.stream, by, math.MaxInt, each)
	if natserr.Code(err) != 0 {
		return nil // a work queue allows no such reader; its duplicate window has to suffice
	}
	return err
}
