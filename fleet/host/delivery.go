package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// one handles one message and answers it.
func (r *runner) one(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		r.host.log.Error("hosted worker: a message without metadata", "slot", r.slot.name, "err", err)
		return
	}
	header := m.Headers()
	if to := header.Get(HeaderFor); to != "" && to != r.slot.name {
		_ = m.Ack() // redriven for another group or worker
		return
	}
	d := &delivery{msg: m, meta: meta, id: meta.Stream + ":" + strconv.FormatUint(meta.Sequence.Stream, 10), header: header, data: m.Data()}
	ctx := r.ctx
	if body := header.Get(HeaderBody); header.Get(HeaderFor) != "" && checkID("body", body) == nil {
		d.body = body
		d.header, d.data, err = r.host.letters.read(ctx, d.body)
		if errors.Is(err, jetstream.ErrMsgNotFound) { // an earlier delivery was answered and its body removed
			r.host.log.Warn("hosted worker: a message was redriven whose body is gone", "slot", r.slot.name, "message", d.id, "err", err)
			_ = m.TermWithReason("its body is gone")
			return
		}
		if err != nil {
			r.answer(err, m.Ack, d)
			return
		}
	}
	d.member = r.pick(m.Subject())
	if d.member == nil {
		r.answer(r.host.hold(ctx, r.slot.name, d), m.Ack, d)
		return
	}
	ctx, d.cancel = context.WithCancelCause(ctx)
	defer d.cancel(nil)
	d.beat.Store(time.Now().UnixNano())
	r.message.Store(d)
	defer r.message.Store(nil)
	leave, err := r.prepare(ctx, d)
	if err != nil {
		_ = m.NakWithDelay(r.host.cfg.RetryBase) // its code was not called
		return
	}
	defer leave()
	d.tries = tries{Begun: 1}
	if meta.NumDelivered > 1 {
		done, was, err := r.before(ctx, d)
		switch {
		case err != nil:
			_ = m.NakWithDelay(r.host.cfg.RetryBase)
			return
		case done:
			r.answer(nil, m.Ack, d)
			return
		case was.Begun-was.Failed > r.host.cfg.MaxUnanswered:
			r.deadLetter(d, was.Failed, fmt.Errorf("begun %d times and answered %d times: each other host died before it reported the outcome", was.Begun, was.Failed))
			return
		}
		// A delivery counts once its handler is about to be called. A message that
		// only waited here and was given back does not count.
		d.tries = tries{Begun: was.Begun + 1, Failed: was.Failed}
		if err := r.host.states.note(ctx, r.slot.name, messageKey(d), d.tries); err != nil {
			_ = m.NakWithDelay(r.host.cfg.RetryBase)
			return
		}
	}
	attempt := d.tries.Failed + 1
	if size := len(d.data); size > r.host.cfg.MaxMessage {
		r.deadLetter(d, attempt, fmt.Errorf("the message has %d bytes, more than the limit of %d", size, r.host.cfg.MaxMessage))
		return
	}
	err = r.call(ctx, d, attempt)
	if d.failed.Load() {
		return // the watch has answered
	}
	if err == nil {
		d.member.counts.Succeeded.Add(1)
		r.answer(nil, m.Ack, d) // when the ack is lost, the next delivery may find the message done
		return
	}
	r.fail(d, attempt, err)
}

// before looks up the outcome of earlier deliveries of a message.
func (r *runner) before(ctx context.Context, d *delivery) (done bool, was tries, err error) {
	key := messageKey(d)
	if done, err = r.host.states.done(ctx, r.slot.name, key); err == nil && !done {
		was, err = r.host.states.tries(ctx, r.slot.name, key)
	}
	return done, was, err
}

// messageKey names a message inside its slot. It has the message's sequence and the
// time at which the stream stored it, because a worker or a stream that is created
// again under its old name may see the same sequences again.
func messageKey(d *delivery) string {
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

// call runs the handler, publishes its outputs and writes its state.
func (r *runner) call(ctx context.Context, d *delivery, attempt int) error {
	rec := d.member.record
	d.state = &handle{states: r.host.states, record: rec, slot: r.slot.name, fence: r.fence}
	now := time.Now().UnixNano()
	r.limit.Store(int64(d.member.limits.Time))
	r.began.Store(now)
	outputs, err := d.member.handle(ctx, &engine.Message{
		Worker: rec.ID, ID: d.id, Topic: d.msg.Subject(), Attempt: attempt, Fence: r.fence, Header: d.header, Data: d.data,
	}, d.state)
	if cause := context.Cause(ctx); cause != nil && (errors.Is(cause, ErrDetached) || !errors.Is(err, engine.ErrLimit)) {
		err = cause // the reason for the end says more than the handler's error
	}
	if err == nil && (len(outputs) > 0 || len(d.state.order) > 0) {
		err = r.effects(ctx, d, outputs)
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrDetached) {
			err = cause // does not count: the server is away, or another host has the message
		}
	}
	r.began.Store(0)
	r.wasKilled(d, err)
	return err
}

// effects publishes the outputs and then writes the state. The order matters: the
// server drops outputs that are published twice as duplicates, but once the state
// marks a message as done, no delivery publishes its outputs again.
func (r *runner) effects(ctx context.Context, d *delivery, outputs []engine.Output) error {
	for i, o := range outputs {
		topic := o.Topic
		if topic == "" {
			topic = d.member.record.OutputTopic
		}
		if topic == "" {
			return engine.Reject(fmt.Sprintf("output %d: it has no topic, and the worker has no output topic", i))
		}
		m := nats.NewMsg(topic)
		m.Data = o.Data
		for name, values := range o.Header {
			if !strings.HasPrefix(strings.ToLower(name), "nats-") {
				m.Header[name] = values
			}
		}
		id := r.slot.name + ":" + d.meta.Stream + ":" + messageKey(d) + ":" + strconv.Itoa(i)
		if _, err := r.host.js.PublishMsg(ctx, m, jetstream.WithMsgID(id)); err != nil {
			return fmt.Errorf("publish output %d to %s: %w", i, topic, err)
		}
	}
	return d.state.commit(ctx, messageKey(d))
}

// fail makes the server deliver a message again after a delay, or makes a dead
// letter of it.
func (r *runner) fail(d *delivery, attempt int, err error) {
	var rejected *engine.RejectError
	switch {
	case errors.Is(err, ErrDetached), errors.Is(err, ErrStale):
		// This is not the handler's fault and does not count as an attempt. The
		// host that took over gets the message.
		_ = d.msg.Nak()
		if errors.Is(err, ErrStale) {
			r.halting.Store(true) // the slot starts a new runner, which claims the fence again
			if it := r.iterator.Load(); it != nil {
				it.Drain()
			}
		}
		return
	case errors.As(err, &rejected) || attempt >= r.host.cfg.attempts():
		r.deadLetter(d, attempt, err)
		return
	}
	d.member.counts.Failed.Add(1)
	delay := r.host.cfg.RetryBase << min(attempt-1, 20)
	if delay > r.host.cfg.RetryMax || delay <= 0 {
		delay = r.host.cfg.RetryMax
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 5*time.Second)
	defer cancel()
	if err := r.host.states.note(ctx, r.slot.name, messageKey(d), tries{Begun: d.tries.Begun, Failed: attempt}); err != nil {
		r.host.log.Warn("hosted worker: note a failure", "worker", d.member.record.ID, "message", d.id, "err", err)
	}
	r.host.log.Debug("hosted worker: message failed", "worker", d.member.record.ID, "message", d.id, "attempt", attempt, "err", err)
	_ = d.msg.NakWithDelay(delay)
}

// deadLetter stores a dead letter for a message, and terminates the message once the
// server has the letter.
func (r *runner) deadLetter(d *delivery, attempt int, why error) {
	rec := d.member.record
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
	defer cancel()
	err := r.host.letters.put(ctx, r.host.letters.dead+rec.ID, r.slot.name+":"+messageKey(d), &DeadLetter{
		Worker: rec.ID, Reason: why.Error(), Topic: d.msg.Subject(), Message: d.id, Attempts: attempt, Digest: rec.Digest,
		Header: d.header, Data: d.data,
	})
	if err == nil {
		d.member.counts.Failed.Add(1)
		d.member.counts.DeadLetters.Add(1)
		r.host.log.Warn("hosted worker: dead letter", "worker", rec.ID, "message", d.id, "attempts", attempt, "err", why)
	}
	r.answer(err, func() error { return d.msg.TermWithReason(text.Clip(text.OneLine(why.Error()), 200)) }, d)
}

// answer ends a message with ok when err is nil. Otherwise it makes the server deliver
// the message again.
func (r *runner) answer(err error, ok func() error, d *delivery) {
	switch {
	case err == nil && d.body == "":
		_ = ok()
		return
	case err == nil:
		// Remove the body only when the server has confirmed that it will not deliver
		// the message again.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
		defer cancel()
		if err = d.msg.DoubleAck(ctx); err == nil {
			err = r.host.letters.drop(ctx, r.host.letters.body+d.body)
		}
		if err != nil {
			r.host.log.Warn("hosted worker: answer a message that was redriven", "slot", r.slot.name, "message", d.id, "err", err)
		}
		return
	}
	r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "err", err)
	_ = d.msg.NakWithDelay(r.host.cfg.RetryBase)
}

// matches reports whether subject matches pattern, by the rules of NATS.
func matches(pattern, subject string) bool {
	for {
		p, restP, moreP := strings.Cut(pattern, ".")
		t, restS, moreS := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return t != ""
		case p != "*" && p != t:
			return false
		case !moreP || !moreS:
			return moreP == moreS
		}
		pattern, subject = restP, restS
	}
}
