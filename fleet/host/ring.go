package host

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// hang prepares the runner to take the timers of its slot as they come due.
func (r *runner) hang() {
	r.bell = time.AfterFunc(math.MaxInt64, r.ring)
	r.part.timers.rung = func() {
		r.rings.Add(1)
		r.bell.Reset(0)
	}
	r.part.timers.rung()
}

// silence returns when no ring runs any more. The runner has halted.
func (r *runner) silence() {
	if r.bell == nil {
		return
	}
	r.ringing.Lock()
	defer r.ringing.Unlock()
	r.bell.Stop()
}

// ringAtLeast is how often a runner looks whether a timer is due: the clock of the
// server may be set, and this process's own may run faster or slower.
const ringAtLeast = time.Minute

// ring puts the timers that are due into the queue, behind the messages of their keys,
// and sets the bell for the next one.
func (r *runner) ring() {
	r.ringing.Lock()
	defer r.ringing.Unlock()
	rings := r.rings.Load()
	if r.halting.Load() || r.part.timers.none() {
		return
	}
	now := r.host.states.now(r.taking)
	due, next := r.part.timers.take(now, max(1, r.host.cfg.Prefetch/2))
	for _, a := range due {
		if r.queue.Add(r.taking, string(a.Key), r.deliveryOf(a), 0) != nil {
			return // the runner halts, and the next one reads the timers again
		}
	}
	if next.IsZero() {
		return
	}
	r.bell.Reset(min(max(next.Sub(now), time.Millisecond), ringAtLeast))
	if r.rings.Load() != rings {
		r.bell.Reset(0) // it was rung meanwhile
	}
}

// deliveryOf returns the delivery of a timer that is due.
func (r *runner) deliveryOf(a *alarm) *delivery {
	d := &delivery{alarm: a, id: "timer:" + a.slot + ":" + a.ID, topic: a.Topic, suspect: a.old}
	d.msg.Store(&answerer{})
	d.header = nats.Header{HeaderTimer: {a.Name}, HeaderTimerDue: {a.Due.Format(time.RFC3339Nano)}, HeaderTimerWorker: {a.worker}}
	if key := string(a.Key); key != a.Topic {
		d.header[r.keyHeader()] = []string{key}
	}
	return d
}

// timerBody reads the data of a timer. A timer that is gone has failed: its worker or an
// operator has cancelled it, or its worker has set it again.
func (r *runner) timerBody(ctx context.Context, d *delivery) error {
	a, s := d.alarm, r.host.states
	if !r.part.timers.has(a) {
		d.failed.Store(true)
		return nil
	}
	m, err := last(ctx, s.stream, s.marksOf(a.slot, a.worker, a.uid)+a.place)
	if err != nil {
		return err
	}
	if m != nil && string(m.Data) == a.ID { // the mark stays: it is of no other timer
		d.failed.Store(true)
		r.part.stage(&effects{writes: []write{a.removal()}, then: func(error) {}})
		return nil
	}
	if d.read {
		return nil
	}
	data, found, err := r.part.cells.get(ctx, s.timersOf(a.slot, a.worker, a.uid), a.place)
	if err != nil {
		return err
	}
	var t timer
	if known := found && json.Unmarshal(data, &t) == nil && t.ID == a.ID; !known {
		r.host.log.Error("hosted worker: a timer has no data", "worker", a.worker, "timer", a.Name)
		d.failed.Store(true)
		r.part.timers.apply([]write{a.removal()})
		return nil
	}
	d.data, d.read = t.Data, true
	return nil
}

// past returns what is known of earlier deliveries of a message.
func (r *runner) past(d *delivery) (was tries, doomed *doom) {
	if d.alarm == nil {
		_, was, doomed = r.part.about(d.seq)
		return was, doomed
	}
	was = d.alarm.Tries
	was.Begun = max(was.Begun, 1)
	return was, d.alarm.Doom
}

// caused makes effects those of a delivery. What is known of a timer is in the timer
// itself, and it is gone once its message is done.
func (d *delivery) caused(e *effects) *effects {
	e.seq = d.seq
	switch {
	case d.alarm == nil:
	case e.done: // the handler may have set the timer again
		e.writes = slices.Insert(e.writes, 0, d.alarm.removal())
	default:
		next := *d.alarm
		if e.tries != nil {
			next.Tries = *e.tries
		}
		if e.doom != nil {
			next.Doom = e.doom
		}
		e.tries, e.doom = nil, nil
		w := next.write(d.data)
		e.size += len(w.Data)
		e.writes, d.alarm = append(e.writes, w), &next
	}
	return e
}

// memberFor returns the member that handles a delivery, nil if there is none. A timer
// belongs to the worker that has set it.
func (r *runner) memberFor(d *delivery) *member {
	worker := d.header.Get(HeaderTimerWorker)
	if d.alarm == nil && (!d.redriven || worker == "") {
		return r.pick(d.topic)
	}
	for _, m := range *r.members.Load() {
		if m.record.ID == worker && (d.alarm == nil || m.record.UID == d.alarm.uid) {
			m.turn.Store(r.slot.turn.Add(1))
			return m
		}
	}
	if d.alarm == nil {
		return r.pick(d.topic)
	}
	return nil
}

// firedOf returns the timer that has caused a message, nil if none has.
func (r *runner) firedOf(d *delivery) *engine.Fired {
	name := d.header.Get(HeaderTimer)
	switch {
	case d.alarm != nil:
		return &engine.Fired{Name: d.alarm.Name, Due: d.alarm.Due}
	case !d.redriven || name == "":
		return nil
	}
	due, _ := time.Parse(time.RFC3339Nano, d.header.Get(HeaderTimerDue)) // a host wrote it
	return &engine.Fired{Name: name, Due: due}
}

// timing returns the timers of a key for the handler of a message.
func (r *runner) timing(key string, d *delivery) timing {
	t := timing{source: r.part.timers, now: r.host.states.now, slot: r.slot.name, key: key, topic: d.topic, id: func() string { return r.part.timers.nextID(r.part.fence) }}
	if d.alarm != nil {
		t.fired = d.alarm.Name
	}
	return t
}
