package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/trace"
)

// run calls the handler and returns its effects.
func (r *runner) run(ctx context.Context, t *task, a *attempt) (*step, error) {
	m := a.member
	a.state = r.handleOf(m, t.Key, a.delivery)
	r.lookAhead(t, a)
	number := a.tries.Failed + 1
	if a.tries.CanaryFailed {
		number++ // so that the code can see that this is not the first attempt
	}
	started := time.Now()
	a.began.Store(started.UnixNano())
	outputs, err := m.handle(ctx, r.messageOf(a.delivery, m, number), a.state)
	a.began.Store(0)
	took := time.Since(started)
	r.countKill(a, err)
	cause := context.Cause(ctx)
	causeSaysMore := errors.Is(cause, ErrDetached) || !errors.Is(err, engine.ErrLimit)
	if cause != nil && causeSaysMore {
		err = cause
	}
	if !isDetached(err) {
		m.counts.ran(time.Now(), took, err != nil)
	}
	if err != nil {
		return nil, err
	}
	return r.effects(t.Key, a, outputs)
}

// isDetached reports whether another host may have the message by now. That is not the
// handler's fault and does not count as an attempt.
func isDetached(err error) bool { return errors.Is(err, ErrDetached) || errors.Is(err, ErrStale) }

// messageOf returns a message as a handler sees it.
func (r *runner) messageOf(d *delivery, m *member, attempt int) *engine.Message {
	return &engine.Message{
		Worker:  m.record.ID,
		ID:      d.id,
		Topic:   d.topic,
		Attempt: attempt,
		Fence:   r.partition.fence,
		Header:  d.header,
		Data:    d.data,
		Timer:   d.firedTimer(),
	}
}

// maxAhead bounds how many messages a child handles ahead, and maxAheadSize their bytes.
const (
	maxAhead     = 64
	maxAheadSize = 256 << 10
)

// lookAhead tells the program which messages will come next, so that its child need not wait
// for the host between two of them. A worker with waiting messages then handles five times as
// many (BenchmarkIsolation of bench/host). A slow worker gains nothing.
func (r *runner) lookAhead(t *task, a *attempt) {
	p, ok := a.member.program.(engine.Forerunner)
	if !ok || a.member.slow.Load() || len(r.members) > 1 {
		return
	}
	p.Ahead(func() (messages []*engine.Message) {
		size := 0
		for _, next := range r.queue.Behind(t, maxAhead) {
			size += len(next.data)
			if size > maxAheadSize || !r.isFirstAttempt(next, a.member) {
				break
			}
			messages = append(messages, r.messageOf(next, a.member, 1))
		}
		return messages
	})
}

// isFirstAttempt reports whether a message was never tried, and the program of m, the only
// member of the runner, may handle it at once.
func (r *runner) isFirstAttempt(d *delivery, m *member) bool {
	if d.maybeHandled || d.redriven || d.timer != nil || r.partition.isDone(d.seq) {
		return false
	}
	was := r.partition.earlierTries(d.seq)
	if was.Letter != nil || was.Failed > 0 || was.CanaryFailed || !matches(m.record.Topic, d.topic) {
		return false
	}
	return r.members[0].versionFor(d, was).program == m.program
}

// What a value and an output take in an entry of the log beside their texts, in bytes.
const (
	valueOverhead  = 100
	outputOverhead = 250
)

// effects returns the effects of a handler, or an error when the server could never store them.
func (r *runner) effects(key string, a *attempt, outputs []engine.Output) (*step, error) {
	rec := a.member.record
	e := &step{writes: append(a.state.changes(), a.state.timerChanges()...)}
	limit := int(r.host.nc.MaxPayload()) - headerRoom
	for _, w := range e.writes {
		e.size += len(w.Key) + len(w.Data) + valueOverhead
		if len(w.Data) > limit {
			return nil, &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d bytes for a value", limit)}
		}
	}
	for _, o := range outputs {
		topic := cmp.Or(o.Topic, rec.OutputTopic)
		if topic == "" {
			a.member.counts.Discarded.Add(1) // a result for which the worker has no topic
			continue
		}
		if r.host.reserved(topic) {
			return nil, engine.Reject(fmt.Sprintf("output to %s: %v", topic, errReserved))
		}
		if _, err := r.host.mayPublish(rec, topic); err != nil {
			return nil, engine.Reject(err.Error())
		}
		out := &output{
			Key:    key,
			Worker: rec.ID,
			Tenant: rec.Tenant,
			Digest: rec.Digest,
			Cause:  a.id,
			Topic:  topic,
			Header: make(map[string][]string, len(o.Header)),
			Data:   o.Data,
		}
		e.size += len(topic) + len(o.Data) + len(rec.Tenant) + outputOverhead
		for name, values := range o.Header {
			if isServerHeader(name) || isHostHeader(name) {
				continue
			}
			out.Header[name] = values
			for _, v := range values {
				e.size += len(name) + len(v)
			}
		}
		if trace.FromHeader(out.Header).Parent == "" {
			trace.FromHeader(a.header).Set(out.Header)
		}
		e.outputs = append(e.outputs, out)
	}
	return e, nil
}

// isServerHeader reports whether the server acts upon a header.
func isServerHeader(name string) bool { return strings.HasPrefix(strings.ToLower(name), "nats-") }

// isHostHeader reports whether hosts act upon a header: it names the slot that a message is
// for, a timer, or where a body is. Code that could send it would speak for the host.
func isHostHeader(name string) bool { return strings.HasPrefix(strings.ToLower(name), "lifecycle-") }

// fail handles a failed attempt: the message waits for its next attempt, or becomes a dead
// letter. t is nil when the runner was abandoned.
func (r *runner) fail(t *task, a *attempt, err error) {
	if isDetached(err) {
		r.retryLater(t, a.delivery, r.host.cfg.RetryBase)
		return
	}
	r.judge(a, true)
	m, number := a.member, a.tries.Failed+1
	_, isRejected := errors.AsType[*engine.RejectError](err)
	isLast := isRejected || number >= r.host.cfg.attempts()
	if isLast && !m.isCanary {
		r.giveUp(t, a, number, err)
		return
	}
	counted := tries{Begun: max(a.tries.Begun, 1), Failed: number, CanaryFailed: a.tries.CanaryFailed}
	delay := r.host.cfg.backoff().After(number)
	line := fmt.Sprintf("message %s, attempt %d: %v", a.id, number, err)
	if m.isCanary {
		// The message goes to the worker's own version. That attempt does not count, and a
		// message that the canary rejects is not rejected.
		counted = tries{Begun: counted.Begun, CanaryFailed: true}
		delay = r.host.cfg.RetryBase
		line = fmt.Sprintf("message %s failed in the canary and goes to the version before it: %v", a.id, err)
	}
	m.counts.Failed.Add(1)
	if err := r.note(a, &step{tries: &counted}); err != nil {
		r.host.log.Warn("hosted worker: note a failure", "worker", m.record.ID, "message", a.id, "error", err)
	}
	r.host.lines.add(m.record, true, line)
	r.host.log.LogAttrs(r.ctx, slog.LevelDebug, "hosted worker: message failed", append(trace.FromHeader(a.header).Attrs(),
		slog.String("worker", m.record.ID), slog.String("message", a.id), slog.Int("attempt", number), slog.Any("error", err))...)
	r.retryLater(t, a.delivery, delay)
}

// note commits what was decided about a message, also when its handler's time is over.
func (r *runner) note(a *attempt, e *step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), commitWithin)
	defer cancel()
	return r.partition.commit(ctx, a.attach(e))
}

// giveUp decides that a message becomes a dead letter. The decision is committed before the
// letter is written: a host that finds it calls no handler.
func (r *runner) giveUp(t *task, a *attempt, attempts int, why error) {
	rec := a.member.record
	noted := a.tries
	noted.Letter = &deadLetterDecision{
		Worker:     rec.ID,
		UID:        rec.UID,
		Tenant:     rec.Tenant,
		Generation: rec.Generation,
		Digest:     rec.Digest,
		Attempts:   attempts,
		Reason:     text.Clip(why.Error(), maxReason),
	}
	if err := r.note(a, &step{tries: &noted}); err != nil {
		r.retryLater(t, a.delivery, r.host.cfg.RetryBase)
		return
	}
	a.member.counts.Failed.Add(1)
	line := fmt.Sprintf("message %s is a dead letter after attempt %d: %s", a.id, attempts, noted.Letter.Reason)
	r.host.lines.add(rec, true, line)
	r.storeDeadLetter(t, a.delivery, *noted.Letter)
}
