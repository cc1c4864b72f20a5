package host

import (
	"context"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// done ends a message whose effects are complete: answer is called once they are committed. t is
// nil when the runner was abandoned.
func (r *runner) done(t *task, d *delivery, e *step, answer func()) {
	e.done = true
	d.attach(e).then = func(err error) {
		if err != nil {
			r.giveBack(d, 0)
			return
		}
		r.forget(d)
		answer()
	}
	r.partition.stage(e)
	if t != nil {
		r.queue.Done(t)
	}
}

// storeDeadLetter stores the dead letter of a message, and terminates the message once the log says
// that it is done. t is nil when the runner was abandoned.
func (r *runner) storeDeadLetter(t *task, d *delivery, decision deadLetterDecision) {
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
	if err != nil {
		r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "error", err)
		r.retryLater(t, d, r.host.cfg.RetryBase)
		return
	}
	r.host.log.Warn("hosted worker: dead letter",
		"worker", letter.Worker, "message", d.id, "attempts", letter.Attempts, "error", letter.Reason)
	r.done(t, d, &step{}, func() {
		r.host.countLetter(decision.version())
		_ = d.acker.Load().terminate(text.Clip(text.OneLine(decision.Reason), 200))
	})
}
