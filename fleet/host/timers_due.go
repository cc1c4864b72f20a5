package host

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
)

// takeTimers puts the timers that are due into the queue, behind the messages of their keys.
func (r *runner) takeTimers() {
	r.partition.timers.taking.Lock()
	defer r.partition.timers.taking.Unlock()
	if r.halting.Load() {
		return
	}
	now := r.host.states.now(r.taking)
	for _, t := range r.partition.timers.take(now, max(1, r.host.cfg.Prefetch/2)) {
		if r.queue.Add(string(t.Key), r.deliveryOf(t), 0) != nil {
			return // the runner halts, and the next one reads the timers again
		}
	}
}

// stopTimers returns when takeTimers does not run any more. The runner has halted.
func (r *runner) stopTimers() {
	r.partition.timers.stopClock()
	r.partition.timers.taking.Lock()
	defer r.partition.timers.taking.Unlock()
}

// deliveryOf returns the delivery of a timer that is due.
func (r *runner) deliveryOf(t *pendingTimer) *delivery {
	d := &delivery{
		id:    "timer:" + t.slot + ":" + t.ID,
		topic: t.Topic,
		header: nats.Header{
			HeaderTimer:       {t.Name},
			HeaderTimerDue:    {t.Due.Format(time.RFC3339Nano)},
			HeaderTimerWorker: {t.worker.id},
		},
		timer:        t,
		maybeHandled: t.maybeHandled,
	}
	if key := string(t.Key); key != t.Topic {
		d.header[r.keyHeader()] = []string{key}
	}
	return d
}

// completeTimer reads the data of a timer. It reports false for a timer that is gone: its
// worker or an operator has cancelled it, or its worker has set it again.
func (r *runner) completeTimer(ctx context.Context, d *delivery) (exists bool, err error) {
	t, s := d.timer, r.host.states
	if !r.partition.timers.has(t) {
		return false, nil
	}
	cancelled, err := last(ctx, s.stream, s.cancelledOf(t.slot, t.worker)+t.ID)
	if err != nil {
		return true, err
	}
	if cancelled != nil {
		r.partition.stage(&step{writes: []stateWrite{t.removal()}, then: func(error) {}})
		return false, nil
	}
	if d.complete {
		return true, nil
	}
	data, found, err := r.partition.cache.get(ctx, s.timersOf(t.slot, t.worker)+t.place)
	if err != nil {
		return true, err
	}
	var stored storedTimer
	if found {
		err = json.Unmarshal(data, &stored)
	}
	if err != nil || stored.ID != t.ID {
		r.host.log.Error("hosted worker: a timer has no data", "worker", t.worker.id, "timer", t.Name, "error", err)
		r.partition.timers.apply([]stateWrite{t.removal()})
		return false, nil // it can never be handled
	}
	d.data, d.complete = stored.Data, true
	return true, nil
}

// handleOf returns the handle for the handler of a message with this key.
func (r *runner) handleOf(m *member, key string, d *delivery) *handle {
	timers := handleTimers{
		source: r.partition.timers,
		clock:  r.host.states.now,
		id:     func() string { return r.partition.timers.nextID(r.partition.fence) },
		slot:   r.slot.name,
		key:    key,
		topic:  d.topic,
	}
	fired := ""
	if d.timer != nil {
		fired = d.timer.Name
	}
	return newHandle(r.partition.cache, m.record, m.web, timers, r.host.maxTimers(m.record), fired)
}
