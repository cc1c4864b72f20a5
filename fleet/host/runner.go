package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// runner takes messages from a slot's consumer and hands them to programs, one at a
// time: in order within a key, and by turns among keys.
type runner struct {
	slot     *slot
	host     *Host
	consumer jetstream.Consumer
	part     *partition
	members  atomic.Pointer[[]*member]
	sem      chan struct{} // of size 1; held to handle a message and to change members
	queue    *lanes.Queue[*delivery]
	order    arrivals
	reached  uint64 // sequence of the newest message that was delivered before this runner began

	ctx    context.Context // of the handlers; ends when the runner is abandoned
	cancel context.CancelCauseFunc
	taking context.Context // ends when the runner takes no more messages
	enough context.CancelFunc

	began   atomic.Int64 // when the running handler was called, in Unix nanoseconds; 0 when none runs
	limit   atomic.Int64 // the time limit of the running handler, in nanoseconds
	message atomic.Pointer[delivery]

	bell    *time.Timer // calls ring
	rings   atomic.Uint64
	ringing sync.Mutex // held by ring

	mu     sync.Mutex
	inHand map[uint64]*delivery // messages that are not answered, by sequence

	life      call.Call // the goroutine that handles
	halting   atomic.Bool
	watched   atomic.Bool // a goroutine watches its handlers
	pull      atomic.Pointer[pull]
	deaf      atomic.Bool   // fed is closed
	fed       chan struct{} // closed when no more messages come
	fault     error         // why they ended; read it once fed is closed
	ended     chan struct{}
	err       error         // why it ended; read it once ended is closed
	abandoned chan struct{} // closed when its handler did not return in time
	leave     sync.Once
}

// delivery is a message that is being handled.
type delivery struct {
	msg      atomic.Pointer[answerer] // of the newest delivery
	meta     *nats.MsgMetadata
	seq      uint64
	id       string
	topic    string
	header   nats.Header
	data     []byte
	body     string // the HeaderBody, when header and data were not in the message itself
	read     bool   // header and data are those of the body
	alarm    *alarm // of a timer; such a delivery has no meta and the seq 0
	paid     bool   // it has waited for its worker's rate
	redriven bool   // its letter was
	member   *member
	suspect  bool         // an earlier host may have called a handler for it
	tries    tries        // counts this delivery too
	beat     atomic.Int64 // when the server last heard of it, in Unix nanoseconds
	state    *handle
	cancel   context.CancelCauseFunc
	failed   atomic.Bool // the watch has answered it, or left it to another host
}

// again returns the message for its next attempt. The watch may still look at the
// last one.
func (d *delivery) again() *delivery {
	next := &delivery{meta: d.meta, seq: d.seq, id: d.id, topic: d.topic, header: d.header, data: d.data, body: d.body, read: d.read, alarm: d.alarm, redriven: d.redriven, paid: d.paid, member: d.member, suspect: d.suspect}
	next.msg.Store(d.msg.Load())
	return next
}

// start claims the slot and returns a runner that handles the messages of the slot's
// consumer, from the first one that was not answered.
func (s *slot) start(ctx context.Context, members []*member) (*runner, error) {
	leave, err := s.host.states.asking.enter(ctx, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	records := make([]*Record, 0, len(members))
	for _, m := range members {
		records = append(records, m.record)
	}
	consumer, err := s.host.consumer(ctx, records)
	if err != nil {
		return nil, err
	}
	stream, err := s.host.js.Stream(ctx, records[0].Stream)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", records[0].Stream, err)
	}
	// A stream that is made again under its old name has other messages.
	source := records[0].Stream + "@" + strconv.FormatInt(stream.CachedInfo().Created.UnixNano(), 36)
	r := &runner{slot: s, host: s.host, consumer: consumer, sem: make(chan struct{}, 1), queue: lanes.New[*delivery](0),
		inHand: make(map[uint64]*delivery), fed: make(chan struct{}), ended: make(chan struct{}), abandoned: make(chan struct{}),
		reached: consumer.CachedInfo().Delivered.Stream}
	r.members.Store(&members)
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.taking, r.enough = context.WithCancel(r.ctx)
	if r.part, err = s.host.claim(ctx, s.name, source, func(error) { r.halt() }); err != nil {
		r.cancel(nil)
		return nil, err
	}
	if err := r.reset(ctx); err != nil {
		r.cancel(nil)
		r.part.stop(ctx)
		return nil, err
	}
	r.hang()
	if err := r.take(); err != nil {
		r.cancel(nil)
		r.part.stop(ctx)
		return nil, err
	}
	s.part.Store(r.part)
	s.handles.Store(r)
	s.host.running.Add(1)
	r.life.Start("slot "+s.name, r.handleAll, r.end)
	return r, nil
}

// handleAll handles messages until the queue is closed.
func (r *runner) handleAll() error {
	for {
		if r.part.relay.room(r.taking, maxWaiting) != nil {
			return nil //nolint:nilerr // the runner halts
		}
		t, err := r.queue.Next(r.taking)
		if err != nil {
			return nil //nolint:nilerr // the runner halts
		}
		r.sem <- struct{}{}
		r.one(t)
		<-r.sem
		if r.isAbandoned() {
			return nil
		}
		r.pull.Load().ask()
	}
}

// end runs when the handling goroutine has returned: in time, or after the runner was
// abandoned.
func (r *runner) end(err error) {
	inTime := false
	r.leave.Do(func() {
		inTime = true
		r.finish(err)
	})
	if !inTime {
		// The slot has loaded new programs; only this runner still used these.
		for _, m := range all(*r.members.Load()) {
			r.host.closeProgram(m.record.ID, m.program)
		}
	}
	r.cancel(nil)
	r.host.running.Done()
}

// finish gives back the messages that wait, writes what was handled, and gives up the
// slot.
func (r *runner) finish(err error) {
	r.halt()
	r.silence()
	ctx, cancel := context.WithTimeout(context.Background(), 2*commitWithin)
	defer cancel()
	r.part.stop(ctx)
	<-r.fed
	r.err = errors.Join(err, r.fault)
	r.slot.handles.CompareAndSwap(r, nil)
	close(r.ended)
}

// halt makes the runner take no more messages, and gives back those that wait.
func (r *runner) halt() {
	r.halting.Store(true)
	r.enough()
	if p := r.pull.Load(); p != nil {
		p.drain()
	}
	for _, d := range r.queue.Close() {
		r.giveBack(d, 0)
	}
}

// isAbandoned reports whether the runner was abandoned, because its handler did not
// return in time.
func (r *runner) isAbandoned() bool {
	select {
	case <-r.abandoned:
		return true
	default:
		return false
	}
}

// swap changes the members between two messages. It returns false when the runner has
// ended or was abandoned.
func (r *runner) swap(next []*member) bool {
	select {
	case r.sem <- struct{}{}:
		r.members.Store(&next)
		<-r.sem
		r.part.timers.unpark()
		return true
	case <-r.ended:
	case <-r.abandoned:
	}
	return false
}

// stop ends the runner after the message that it handles. When ctx ends first, stop
// cancels the handler, and abandons it if it does not return within a second.
func (r *runner) stop(ctx context.Context) {
	r.halt()
	select {
	case <-r.ended:
		return
	case <-ctx.Done():
	}
	r.cancel(ErrDetached)
	select {
	case <-r.ended:
		return
	case <-r.abandoned:
	case <-time.After(time.Second):
		r.abandon()
	}
	<-r.ended
}

// abandon stops waiting for a handler that does not return.
func (r *runner) abandon() {
	r.cancel(ErrDetached)
	r.leave.Do(func() {
		close(r.abandoned)
		r.host.log.Warn("hosted worker: its handler does not return and is abandoned", "slot", r.slot.name, "err", r.life.Abandon())
		r.finish(nil)
	})
}

// startOver makes the server deliver again, in order, what was not answered. It returns
// an error when another host has the slot.
func (r *runner) startOver() error {
	ctx, cancel := context.WithTimeout(r.ctx, 2*commitWithin)
	defer cancel()
	if err := r.part.commit(ctx, &effects{}); err != nil {
		return err
	}
	return r.reset(ctx)
}

// reset sets the consumer back to the first message that was not answered. The consumer
// of a group stays as it is: it delivers one message at a time, so its order is kept
// already, and the message that another host may still handle must not be repeated.
func (r *runner) reset(ctx context.Context) error {
	info := r.consumer.CachedInfo()
	if info.Config.MaxAckPending == 1 {
		r.part.raise(info.AckFloor.Stream)
		r.order = arrivals{}
		return nil
	}
	done, err := r.host.js.ResetConsumer(ctx, info.Stream, info.Name)
	switch {
	case err == nil:
		r.part.raise(done.ResetSeq - 1)
		r.order = arrivals{known: true, resets: true, stream: done.ResetSeq - 1}
		return nil
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrConsumerInvalidReset):
		// A server before 2.14 does not know the request. It delivers again what is
		// not answered after AckWait.
		r.part.raise(info.AckFloor.Stream)
		r.order = arrivals{}
		return nil
	}
	return fmt.Errorf("consumer %s: start over: %w", r.slot.name, err)
}

// arrivals follows the order in which a consumer delivers.
type arrivals struct {
	known            bool // consumer and stream have the last delivery
	resets           bool // the consumer can be reset
	consumer, stream uint64
}

// next notes a delivery. It returns the sequence of the message before it, when no
// message for this consumer is between the two, and 0 when that is not known. It returns
// false when deliveries before this one are missing.
func (a *arrivals) next(meta *nats.MsgMetadata) (before uint64, ok bool) {
	missing := a.known && meta.Sequence.Consumer != a.consumer+1
	if missing && a.resets {
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

// watch looks at every runner of the host until ctx ends. Those that handle a message get
// a goroutine for it.
func (h *Host) watch(ctx context.Context) error {
	period := min(max(h.cfg.AckWait/6, 10*time.Millisecond), 250*time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, connected, reconnects := time.Now(), h.nc.IsConnected(), h.nc.Stats().Reconnects
		h.mu.Lock()
		slots := slices.Collect(maps.Values(h.slots))
		h.mu.Unlock()
		for _, s := range slots {
			r := s.handles.Load()
			if r == nil || r.isDone() {
				continue
			}
			r.pull.Load().look(now, connected, reconnects)
			if r.message.Load() != nil && r.watched.CompareAndSwap(false, true) {
				h.running.Add(1)
				call.Go("watch of slot "+s.name, func() error { r.watch(period); return nil }, func(error) { h.running.Done() })
			}
		}
	}
}

// watch sends heartbeats to the server and enforces the time limit while handlers run.
func (r *runner) watch(period time.Duration) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for quiet := 0; quiet < 20; {
		r.look(time.Now())
		select {
		case <-tick.C:
		case <-r.ended:
			return
		}
		if quiet++; r.message.Load() != nil {
			quiet = 0
		}
	}
	r.watched.Store(false) // the host's watch sees the next message
}

func (r *runner) isDone() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// patience is how long a handler may take to return once its context has ended.
const patience = 2 * time.Second

func (r *runner) look(now time.Time) {
	began := r.began.Load()
	d := r.message.Load()
	if d == nil {
		return
	}
	cfg := &r.host.cfg
	since := time.Duration(now.UnixNano() - d.beat.Load())
	switch {
	case since > cfg.AckWait*3/4 || !r.host.members.held():
		// Another host may have the message by now: end this handler.
		d.cancel(ErrDetached)
		if since > cfg.AckWait+patience {
			d.failed.Store(true)
			r.abandon()
		}
		return
	case since > cfg.AckWait/4:
		r.heartbeat(d)
	}
	if began == 0 {
		return // it waits for its turn, or for its program
	}
	ran := time.Duration(now.UnixNano() - began)
	limit := time.Duration(r.limit.Load())
	if ran > limit {
		d.cancel((engine.Limits{Time: limit}).TimeLimit())
	}
	if ran > limit+patience {
		// The handler ignores its context. Answer the message in its place and give
		// it no other. Its state is never written.
		if d.failed.CompareAndSwap(false, true) {
			r.fail(nil, d, d.tries.Failed+1, fmt.Errorf("%w, and its handler does not return and is abandoned", (engine.Limits{Time: limit}).TimeLimit()))
			r.abandon()
		}
	}
}

// heartbeat tells the server that the message is being handled. It updates d.beat
// only once the server has got the heartbeat.
func (r *runner) heartbeat(d *delivery) {
	sent := time.Now()
	if d.msg.Load().InProgress() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.host.cfg.AckWait/4)
	defer cancel()
	if r.host.nc.FlushWithContext(ctx) == nil {
		d.beat.Store(sent.UnixNano())
	}
}
