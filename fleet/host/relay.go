package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// relay publishes the outputs that a slot's log has, each under an id that names the
// committed attempt. Within its duplicate window the stream of the output's topic drops a
// repetition: of an attempt whose answer was lost, or by a later holder of the slot.
//
// The relay publishes the outputs of one key in order. An output that cannot be delivered holds
// up its key until it becomes a dead letter.
type relay struct {
	host   *Host
	queue  *lanes.Queue[*output]
	memory *account
	sent   func(*output) // called once an output was published or is a dead letter

	ctx    context.Context
	cancel context.CancelFunc

	workers sync.WaitGroup

	mu         sync.Mutex         // guards everything below
	waiting    int                // outputs that were added and not sent yet
	endWorkers context.CancelFunc // nil when no worker runs
	stopped    bool
}

const relayWorkers = 4

func newRelay(h *Host, memory *account, sent func(*output)) *relay {
	r := &relay{host: h, queue: lanes.New[*output](), sent: sent, memory: memory}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// add publishes an output after the others of its key. It does not wait.
func (r *relay) add(o *output) {
	const beside = 500 // what an output takes beside its texts
	o.size = int64(beside + len(o.Key) + len(o.Topic) + len(o.Data))
	for name, values := range o.Header {
		for _, v := range values {
			o.size += int64(len(name) + len(v))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.Add(o.Key, o, 0) != nil {
		return // the relay has ended; the log keeps the output
	}
	r.memory.produce(o.size)
	if r.waiting++; r.endWorkers == nil && !r.stopped {
		r.startWorkersLocked()
	}
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

// done notes that an output was sent. The workers end with the last one.
func (r *relay) done(t *lanes.Task[*output]) {
	r.sent(t.Value)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory.produce(-t.Value.size)
	if r.waiting--; r.waiting == 0 && r.endWorkers != nil {
		r.endWorkers()
		r.endWorkers = nil
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
	m := nats.NewMsg(o.Topic)
	m.Data = o.Data
	for name, values := range o.Header {
		m.Header[name] = values
	}
	_, err := r.host.js.PublishMsg(ctx, m, jetstream.WithMsgID(o.id))
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

var errReserved = errors.New("the topics of the server and of the hosts themselves are not for workers")

// streamOf returns the stream of a worker's topic. It returns an error for a stream that hosts have made:
// it has the records, the code and the messages of all tenants. A topic with wildcards is judged by the
// stream that has it.
func (h *Host) streamOf(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := h.js.Stream(ctx, name)
	if err == nil && s.CachedInfo().Config.Metadata[hostMark] != "" {
		err = errReserved
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return s, nil
}

// reserved reports whether messages on a topic act upon the server or upon hosts, of this fleet
// or of another one: code that may publish to it has all rights of the host's connection.
func (h *Host) reserved(topic string) bool {
	return strings.HasPrefix(topic, "$") || strings.HasPrefix(topic, pull.API(h.js))
}
