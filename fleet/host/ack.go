package host

import (
	"context"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// done ends a message whose effects are complete. The message is acknowledged once they are
// committed.
func (r *runner) done(t *task, d *delivery, e *step, committed func()) {
	e.done = true
	d.attach(e).then = func(err error) {
		if err != nil {
			r.giveBack(d, 0)
			return
		}
		r.forget(d)
		if committed != nil {
			committed()
		}
		_ = d.acker.Load().ack()
	}
	r.partition.stage(e)
	r.queue.Done(t)
}

// storeDeadLetter stores the dead letter of a message, and terminates the message once the
// server has the letter. t is nil when the runner was abandoned. counts may be nil.
func (r *runner) storeDeadLetter(t *task, d *delivery, counts *Counts, decision deadLetterDecision) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
	defer cancel()
	letter := &DeadLetter{
		Worker:   decision.Worker,
		Reason:   decision.Reason,
		Topic:    d.topic,
		Message:  d.id,
		Attempts: decision.Attempts,
		Digest:   decision.Digest,
		Header:   d.header,
		Data:     d.data,
	}
	err := r.host.storeLetter(ctx, decision.Tenant, r.slot.name+":"+d.name(), letter)
	if err == nil {
		if counts != nil {
			counts.DeadLetters.Add(1)
		}
		r.host.log.Warn("hosted worker: dead letter",
			"worker", letter.Worker, "message", d.id, "attempts", letter.Attempts, "error", letter.Reason)
		err = r.partition.commit(ctx, d.attach(&step{done: true}))
	}
	if err != nil {
		r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "error", err)
		r.retryLater(t, d, r.host.cfg.RetryBase)
		return
	}
	r.forget(d)
	_ = d.acker.Load().terminate(text.Clip(text.OneLine(decision.Reason), 200))
	if t != nil {
		r.queue.Done(t)
	}
}
