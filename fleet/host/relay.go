package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// relay publishes the outputs that a slot's log has, each under an id that names the
// committed attempt. The stream of the output's topic drops a repetition within its
// duplicate window. Before the relay repeats an output that may have arrived earlier
// than that, it looks for the id in the stream.
//
// Outputs of one key are published in order. One that cannot be delivered holds up its
// key until it becomes a letter.
type relay struct {
	host  *Host
	queue *lanes.Queue[*output]
	sent  func(*output)               // called once an output was published or is a letter
	holds func(context.Context) error // returns nil when this host had the slot less than holdFor ago
	after time.Time                   // before that an earlier holder may still publish

	ctx    context.Context
	cancel context.CancelFunc

	waiting atomic.Int64
	moved   chan struct{} // of size 1; an output was sent

	runs    sync.WaitGroup     // of the workers
	running sync.Mutex         // guards the next three
	rest    context.CancelFunc // ends the workers; nil when none run
	idle    *time.Timer        // calls it
	stopped bool

	mu     sync.Mutex                 // guards the next two
	there  map[string]map[string]bool // ids by topic, of outputs that an earlier host published
	oldest time.Time                  // when the first output was committed that an earlier host may have published
}

// Bounds of a relay.
const (
	// A holder publishes only for so long after it last knew that it has the slot. A
	// new holder waits for twice as long before it looks for what an earlier one has
	// published, and publishes the rest.
	holdFor = 2 * time.Second

	relayWorkers = 4
	relayRests   = 5 * time.Second // without an output, after which the workers end
	maxWaiting   = 4096            // outputs that wait; handlers wait while there are more
)

func newRelay(h *Host, sent func(*output), holds func(context.Context) error) *relay {
	r := &relay{host: h, sent: sent, holds: holds, after: time.Now().Add(2 * holdFor), queue: lanes.New[*output](0), moved: make(chan struct{}, 1), there: make(map[string]map[string]bool)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// add publishes an output after the others of its key. It does not wait.
func (r *relay) add(o *output) {
	if o.doubt { // of the replay: all of these are added by one goroutine
		r.mu.Lock()
		if r.oldest.IsZero() || o.since.Before(r.oldest) {
			r.oldest = o.since
		}
		r.mu.Unlock()
	}
	r.begin()
	if r.queue.Add(r.ctx, o.Key, o, 0) != nil {
		r.waiting.Add(-1) // the relay has ended; the log keeps the output
	}
}

// begin counts an output that is to be sent, and starts the workers unless they run.
func (r *relay) begin() {
	r.running.Lock()
	defer r.running.Unlock()
	r.waiting.Add(1)
	if r.rest != nil || r.stopped {
		return
	}
	cfg := &r.host.cfg
	run := lanes.Runner[*output]{
		Workers: relayWorkers, Backoff: worker.Backoff{Min: cfg.RetryBase, Max: cfg.RetryMax},
		Handle: r.publish, Dead: r.letter, Done: r.done,
	}
	ctx, cancel := context.WithCancel(r.ctx)
	r.rest = cancel
	r.runs.Add(1)
	call.Go("relay", func() error { run.Run(ctx, r.queue); return nil }, func(error) { r.runs.Done() })
	if r.idle == nil {
		r.idle = time.AfterFunc(relayRests, r.sleep)
	} else {
		r.idle.Reset(relayRests)
	}
}

// sleep ends the workers when there is no output.
func (r *relay) sleep() {
	r.running.Lock()
	defer r.running.Unlock()
	switch {
	case r.rest == nil || r.stopped:
	case r.waiting.Load() > 0:
		r.idle.Reset(relayRests)
	default:
		r.rest()
		r.rest = nil
	}
}

func (r *relay) done(t *lanes.Task[*output]) {
	r.sent(t.Value)
	r.waiting.Add(-1)
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// room waits until fewer than limit outputs wait. It returns ctx's cause when ctx ends
// first.
func (r *relay) room(ctx context.Context, limit int64) error {
	for r.waiting.Load() >= limit {
		select {
		case <-r.moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// stop ends the relay. What was not sent stays in the log.
func (r *relay) stop() {
	r.cancel()
	r.running.Lock()
	r.stopped = true
	if r.idle != nil {
		r.idle.Stop()
	}
	r.running.Unlock()
	r.runs.Wait()
	r.queue.Close()
}

// publish publishes an output. The error says whether another attempt may succeed.
func (r *relay) publish(ctx context.Context, t *lanes.Task[*output]) error {
	o := t.Value
	if r.host.reserved(o.Topic) { // an earlier version has committed it
		return lanes.Reject(errReserved)
	}
	if o.doubt {
		select {
		case <-time.After(time.Until(r.after)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	if o.doubt {
		there, err := r.arrived(ctx, o)
		if err != nil {
			return lanes.Uncounted(err)
		}
		if there {
			return nil
		}
	}
	m := nats.NewMsg(o.Topic)
	m.Data = o.Data
	for name, values := range o.Header {
		m.Header[name] = values
	}
	if err := r.holds(ctx); err != nil {
		return lanes.Uncounted(err)
	}
	// The client must not wait and publish again by itself: another host may have the
	// slot by then.
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
		o.doubt, o.again = true, true // the server may have it
	}
	return lanes.Uncounted(err)
}

// letter stores an output that cannot be delivered.
func (r *relay) letter(ctx context.Context, t *lanes.Task[*output], why error) error {
	o := t.Value
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return r.host.outputLetter(ctx, o, why)
}

// outputLetter stores an output that was committed and is not published.
func (h *Host) outputLetter(ctx context.Context, o *output, why error) error {
	err := h.letters.put(ctx, h.letters.dead+o.Worker, o.id, &DeadLetter{
		tenancy: o.tenancy, Worker: o.Worker, Reason: why.Error(), Topic: o.Topic, Message: o.Cause, Attempts: o.attempts, Digest: o.Digest, Output: o.id, Header: o.Header, Data: o.Data,
	})
	if err == nil {
		h.letterStored(ctx, o.Worker)
		h.log.Warn("hosted worker: an output is a dead letter", "worker", o.Worker, "message", o.Cause, "topic", o.Topic, "err", why)
	}
	return err
}

// arrived reports whether the stream of an output's topic has the output already. For an
// output of this host it asks the stream only when the output is older than the stream's
// duplicate window: within the window the stream drops a repetition by itself. The clock
// of an earlier host may differ, so for its outputs it always asks, once for a topic.
func (r *relay) arrived(ctx context.Context, o *output) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := r.there[o.Topic]
	if ids == nil || o.again {
		name, err := r.host.js.StreamNameBySubject(ctx, o.Topic)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for an output in %s: %w", o.Topic, err)
		}
		stream, err := r.host.js.Stream(ctx, name)
		if err != nil {
			return false, fmt.Errorf("look for an output in %s: %w", o.Topic, err)
		}
		from := r.oldest
		if o.again {
			if window := stream.CachedInfo().Config.Duplicates; time.Since(o.since) < window-window/4 {
				return false, nil
			}
			from = o.since
		}
		if ids, err = published(ctx, stream, o.Topic, from.Add(-time.Minute)); err != nil {
			return false, fmt.Errorf("look for an output in %s: %w", o.Topic, err)
		}
		r.there[o.Topic], o.again = ids, false
	}
	return ids[o.id], nil
}

// published returns the ids of the messages on a subject since a time.
func published(ctx context.Context, stream jetstream.Stream, subject string, since time.Time) (map[string]bool, error) {
	c, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, AckPolicy: jetstream.AckNonePolicy,
		HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
	})
	if natserr.Code(err) != 0 {
		return map[string]bool{}, nil // a work queue allows no such reader; its window has to do
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.DeleteConsumer(context.WithoutCancel(ctx), c.CachedInfo().Name) }()
	ids := make(map[string]bool)
	for left := c.CachedInfo().NumPending; left > 0; {
		found, err := c.Fetch(int(min(left, 1000)), jetstream.FetchContext(ctx))
		if err != nil {
			return nil, err
		}
		for m := range found.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			ids[m.Headers().Get(jetstream.MsgIDHeader)] = true
			left = meta.NumPending
		}
		if err := found.Error(); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

var errReserved = errors.New("the topics of the server and of the hosts themselves are not for workers")

// reserved reports whether a topic is one through which a message acts upon the server
// or upon the hosts: code that may publish to it has all rights of the host's connection.
func (h *Host) reserved(topic string) bool {
	if strings.HasPrefix(topic, "$") || strings.HasPrefix(topic, api(h.js)) {
		return true
	}
	rest, ours := strings.CutPrefix(topic, strings.ToLower(h.cfg.Name)+".")
	if !ours {
		return false
	}
	kind, _, _ := strings.Cut(rest, ".")
	switch kind {
	case "state", "log", "lines", "code", "dead", "held", "body", "ask":
		return true
	}
	return false
}
