package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// receive puts a message into the queue, unless it was answered or is there already. It
// returns false when deliveries before this one are missing.
func (r *runner) receive(m *nats.Msg) bool {
	meta, err := m.Metadata()
	if err != nil {
		r.host.log.Error("hosted worker: a message without metadata", "slot", r.slot.name, "err", err)
		return true
	}
	before, ok := r.order.next(meta)
	if !ok {
		return false
	}
	seq := meta.Sequence.Stream
	if before > 0 {
		r.part.skip(before, seq)
	}
	header, from := m.Header, &answerer{r.host.nc, m.Reply}
	if to := header.Get(HeaderFor); to != "" && to != r.slot.name {
		r.part.skip(seq-1, seq+1)
		_ = from.Ack() // redriven for another group or worker
		return true
	}
	if done, _, _ := r.part.about(seq); done {
		_ = from.Ack() // the answer to an earlier delivery was lost
		return true
	}
	r.mu.Lock()
	if known := r.inHand[seq]; known != nil {
		known.msg.Store(from)
		r.mu.Unlock()
		return true
	}
	d := &delivery{meta: meta, seq: seq, id: meta.Stream + ":" + strconv.FormatUint(seq, 10), topic: m.Subject, header: header, data: m.Data,
		suspect: meta.NumDelivered > 1 || seq <= r.reached}
	d.msg.Store(from)
	r.inHand[seq] = d
	r.mu.Unlock()
	if d.redriven = header.Get(HeaderFor) != ""; d.redriven && checkID("body", header.Get(HeaderBody)) == nil {
		d.body = header.Get(HeaderBody)
	}
	if r.queue.Add(r.taking, r.keyOf(d), d, 0) != nil {
		r.giveBack(d, 0)
	}
	return true
}

// keyOf returns the key of a message: messages with one key are handled in order.
func (r *runner) keyOf(d *delivery) string {
	return cmp.Or(d.header.Get(r.keyHeader()), d.topic)
}

// keyHeader returns the name of the header with a message's key.
func (r *runner) keyHeader() string {
	if members := *r.members.Load(); len(members) == 1 { // a group handles one message at a time anyway
		return cmp.Or(members[0].record.Key, HeaderKey)
	}
	return HeaderKey
}

// giveBack makes the server deliver a message again after a delay.
func (r *runner) giveBack(d *delivery, delay time.Duration) {
	r.mu.Lock()
	delete(r.inHand, d.seq)
	r.mu.Unlock()
	if delay > 0 {
		_ = d.msg.Load().NakWithDelay(delay)
	} else {
		_ = d.msg.Load().Nak()
	}
}

// later makes a message wait for another attempt. It holds up the later messages of its
// key, so that their order is kept. A runner that halts gives the message back.
func (r *runner) later(t *task, d *delivery, delay time.Duration) {
	r.mu.Lock()
	next := d.again()
	t.Value = next
	if r.inHand[d.seq] != nil {
		r.inHand[d.seq] = next
	}
	r.mu.Unlock()
	if !r.queue.Retry(t, delay) {
		r.giveBack(next, 0)
	}
}

type task = lanes.Task[*delivery]

// one handles one message, or decides that it has to wait.
func (r *runner) one(t *task) {
	d := t.Value
	ctx := r.ctx
	if err := r.body(ctx, d); err != nil {
		r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "err", err)
		r.later(t, d, r.host.cfg.RetryBase)
		return
	}
	was, doomed := r.past(d)
	switch {
	case d.failed.Load():
		r.queue.Done(t)
		return
	case doomed != nil:
		r.letter(t, d, *doomed)
		return
	}
	if d.member = r.memberFor(d); d.member == nil && d.alarm != nil {
		r.part.timers.park(d.alarm)
		r.queue.Done(t)
		return
	} else if d.member == nil {
		if err := r.host.hold(ctx, r.slot.name, d); err != nil {
			r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "err", err)
			r.later(t, d, r.host.cfg.RetryBase)
			return
		}
		r.done(t, d, &effects{}, nil)
		return
	}
	if wait := d.pace(); wait > 0 {
		r.later(t, d, wait)
		return
	}
	d.member = d.member.versionFor(d, was)
	ctx, d.cancel = context.WithCancelCause(ctx)
	defer d.cancel(nil)
	d.beat.Store(time.Now().UnixNano())
	r.message.Store(d)
	defer r.message.Store(nil)
	leave, err := r.prepare(ctx, d)
	if err != nil {
		r.later(t, d, r.host.cfg.RetryBase) // its code was not called
		return
	}
	defer leave()
	if d.suspect {
		done, marked, err := r.before(ctx, d, was)
		switch {
		case err != nil:
			r.later(t, d, r.host.cfg.RetryBase)
			return
		case done:
			r.done(t, d, &effects{}, nil)
			return
		case marked.Begun-marked.Failed > r.host.cfg.MaxUnanswered:
			r.doom(t, d, marked.Failed, fmt.Errorf("begun %d times and answered %d times: each other host died before it reported the outcome", marked.Begun, marked.Failed))
			return
		}
		// A delivery counts once its handler is about to be called. A message that
		// only waited here and was given back does not count.
		was = tries{Begun: marked.Begun + 1, Failed: marked.Failed, Spared: marked.Spared}
		if err := r.part.commit(ctx, d.caused(&effects{tries: &was})); err != nil {
			r.fail(t, d, 0, fmt.Errorf("%w: %w", ErrDetached, err))
			return
		}
		d.suspect = false
	}
	d.tries = was
	attempt := was.Failed + 1
	if size := len(d.data); size > r.host.cfg.MaxMessage {
		r.doom(t, d, attempt, fmt.Errorf("the message has %d bytes, more than the limit of %d", size, r.host.cfg.MaxMessage))
		return
	}
	e, err := r.call(ctx, t, d, attempt)
	if !d.failed.CompareAndSwap(false, true) {
		return // the watch has answered
	}
	if err != nil {
		r.fail(t, d, attempt, err)
		return
	}
	r.judge(d, false)
	m := d.member
	r.done(t, d, e, func() { m.counts.Succeeded.Add(1) })
}

// body gets the body of a message that was redriven without it.
func (r *runner) body(ctx context.Context, d *delivery) error {
	switch {
	case d.read:
		return nil
	case d.alarm != nil:
		return r.timerBody(ctx, d)
	case d.body == "":
		return nil
	}
	header, data, err := r.host.letters.read(ctx, d.body)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // an earlier delivery was answered and its body removed
		r.host.log.Warn("hosted worker: a message was redriven whose body is gone", "slot", r.slot.name, "message", d.id, "err", err)
		d.failed.Store(true)
		r.part.skip(d.seq-1, d.seq+1)
		r.mu.Lock()
		delete(r.inHand, d.seq)
		r.mu.Unlock()
		_ = d.msg.Load().TermWithReason("its body is gone")
		return nil
	}
	if err == nil {
		d.header, d.data, d.read = header, data, true
	}
	return err
}

// before looks up what an earlier version noted about earlier deliveries of a message.
func (r *runner) before(ctx context.Context, d *delivery, was tries) (done bool, marked tries, err error) {
	if !r.part.old || d.alarm != nil {
		return false, was, nil
	}
	done, marked, err = r.host.states.marks(ctx, r.slot.name, messageKey(d))
	if was.Begun > 1 || was.Failed > 0 { // the log knows more than the marks
		marked = was
	}
	return done, marked, err
}

// done ends a message whose effects are complete. The server hears so once they are
// committed.
func (r *runner) done(t *task, d *delivery, e *effects, committed func()) {
	e.done = true
	d.caused(e).then = func(err error) {
		if err != nil {
			r.giveBack(d, 0)
			return
		}
		r.mu.Lock()
		delete(r.inHand, d.seq)
		r.mu.Unlock()
		if committed != nil {
			committed()
		}
		r.answer(d.msg.Load().Ack, d)
	}
	r.part.stage(e)
	r.queue.Done(t)
}

// messageKey names a message inside its slot. It has the message's sequence and the
// time at which the stream stored it, because a worker or a stream that is created
// again under its old name may see the same sequences again.
func messageKey(d *delivery) string {
	if d.alarm != nil {
		return "timer-" + d.alarm.ID
	}
	return strconv.FormatUint(d.meta.Sequence.Stream, 10) + "-" + strconv.FormatInt(d.meta.Timestamp.UnixNano(), 36)
}

// pick returns the member that handles a message on subject: the one that has waited
// longest among those whose topic matches, or nil if there is none.
func (r *runner) pick(subject string) *member {
	var found *member
	for _, m := range *r.members.Load() {
		if matches(m.record.Topic, subject) && (found == nil || m.turn.Load() < found.turn.Load()) {
			found = m
		}
	}
	if found != nil {
		found.turn.Store(r.slot.turn.Add(1))
	}
	return found
}

// call runs the handler and returns its effects.
func (r *runner) call(ctx context.Context, t *task, d *delivery, attempt int) (*effects, error) {
	rec := d.member.record
	d.state = &handle{cells: r.part.cells, record: rec, web: d.member.web, timing: r.timing(t.Key, d)}
	now := time.Now().UnixNano()
	r.limit.Store(int64(d.member.limits.Time))
	r.began.Store(now)
	r.lookAhead(t, d)
	if d.tries.Spared {
		attempt++ // the code may want to know that it is not the first
	}
	started := time.Now()
	outputs, err := d.member.handle(ctx, r.messageOf(d, attempt), d.state)
	r.began.Store(0)
	took := time.Since(started)
	r.wasKilled(d, err)
	if cause := context.Cause(ctx); cause != nil && (errors.Is(cause, ErrDetached) || !errors.Is(err, engine.ErrLimit)) {
		err = cause // the reason for the end says more than the handler's error
	}
	if !errors.Is(err, ErrDetached) && !errors.Is(err, ErrStale) {
		d.member.counts.ran(time.Now(), took, err != nil)
	}
	if err != nil {
		return nil, err
	}
	return r.effects(t.Key, d, outputs)
}

// effects returns what a handler has caused, or an error when the server could never
// store it.
func (r *runner) effects(key string, d *delivery, outputs []engine.Output) (*effects, error) {
	rec := d.member.record
	e := &effects{writes: append(d.state.changes(), d.state.timerChanges()...)}
	limit := int(r.host.nc.MaxPayload()) - 4<<10 // less the headers
	for _, w := range e.writes {
		e.size += len(w.Key) + len(w.Data) + 100
		if len(w.Data) > limit {
			return nil, &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d bytes for a value", limit)}
		}
	}
	for _, o := range outputs {
		topic := cmp.Or(o.Topic, rec.OutputTopic)
		if topic == "" {
			d.member.counts.Discarded.Add(1) // a result for which the worker has no topic
			continue
		}
		if r.host.reserved(topic) {
			return nil, engine.Reject(fmt.Sprintf("output to %s: %v", topic, errReserved))
		}
		out := &output{Key: key, tenancy: rec.tenancy(), Worker: rec.ID, Digest: rec.Digest, Cause: d.id, Topic: topic, Data: o.Data}
		e.size += len(topic) + len(o.Data) + len(rec.Tenant) + 250
		for name, values := range o.Header {
			if strings.HasPrefix(strings.ToLower(name), "nats-") {
				continue
			}
			if out.Header == nil {
				out.Header = make(map[string][]string)
			}
			out.Header[name] = values
			for _, v := range values {
				e.size += len(name) + len(v)
			}
		}
		e.outputs = append(e.outputs, out)
	}
	return e, nil
}

// fail makes a message wait for its next attempt, or a dead letter of it. t is nil when
// the runner was abandoned.
func (r *runner) fail(t *task, d *delivery, attempt int, err error) {
	var rejected *engine.RejectError
	switch {
	case errors.Is(err, ErrDetached), errors.Is(err, ErrStale):
		// This is not the handler's fault and does not count as an attempt. The
		// host that took over gets the message, when there is one.
		if t == nil {
			r.giveBack(d, 0)
		} else {
			r.later(t, d, r.host.cfg.RetryBase)
		}
		return
	case d.member.onTrial:
		r.judge(d, true)
		r.spare(t, d, err)
		return
	}
	r.judge(d, true)
	switch {
	case errors.As(err, &rejected) || attempt >= r.host.cfg.attempts():
		r.doom(t, d, attempt, err)
		return
	}
	d.member.counts.Failed.Add(1)
	delay := r.host.cfg.RetryBase << min(attempt-1, 20)
	if delay > r.host.cfg.RetryMax || delay <= 0 {
		delay = r.host.cfg.RetryMax
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), commitWithin)
	defer cancel()
	noted := r.part.commit(ctx, d.caused(&effects{tries: &tries{Begun: max(d.tries.Begun, 1), Failed: attempt, Spared: d.tries.Spared}}))
	if noted != nil {
		r.host.log.Warn("hosted worker: note a failure", "worker", d.member.record.ID, "message", d.id, "err", noted)
	}
	r.host.lines.add(d.member.record, true, fmt.Sprintf("message %s, attempt %d: %v", d.id, attempt, err))
	r.host.log.Debug("hosted worker: message failed", "worker", d.member.record.ID, "message", d.id, "attempt", attempt, "err", err)
	if t == nil {
		r.giveBack(d, delay)
	} else {
		r.later(t, d, delay)
	}
}

// answer ends a message with ok.
func (r *runner) answer(ok func() error, d *delivery) {
	if d.body == "" {
		_ = ok()
		return
	}
	// Remove the body only when the server has confirmed that it will not deliver the
	// message again. The commits do not wait for it.
	r.host.running.Add(1)
	call.Go("answer", func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
		defer cancel()
		err := d.msg.Load().DoubleAck(ctx)
		if err == nil {
			err = r.host.letters.drop(ctx, r.host.letters.body+d.body)
		}
		return err
	}, func(err error) {
		if err != nil {
			r.host.log.Warn("hosted worker: answer a message that was redriven", "slot", r.slot.name, "message", d.id, "err", err)
		}
		r.host.running.Done()
	})
}
