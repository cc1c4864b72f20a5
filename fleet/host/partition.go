package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// partition is a slot that this host has claimed. It has the content of the slot's log in
// memory, and the goroutine that commits. A handler's effects are staged when it returns, and
// later handlers of the slot see them at once. All effects that are staged during a commit go
// into the next one. When the server refuses a commit because another host has the slot, all
// staged effects are void too, and the partition has failed.
type partition struct {
	host   *Host
	slot   string
	fence  uint64
	log    *slotLog
	relay  *relay
	cache  *stateCache
	timers *timers
	memory *account // closed when the partition has ended

	ctx    context.Context // of commits; ends when the partition is abandoned
	cancel context.CancelFunc
	wake   fsm.Wake
	quit   chan struct{} // closed to end commits once everything is written
	ended  chan struct{} // closed when commits has ended for good
	failed func(error)   // called when another host has the slot, perhaps more than once

	confirmed atomic.Pointer[time.Time] // when the newest successful write to the log began

	mu         sync.Mutex // guards everything below
	known      known
	staged     []*step
	committing bool     // a commit is under way
	unsaved    bool     // known has changed since the last commit
	active     bool     // the goroutine that commits runs, or has ended for good
	err        error    // why the partition failed, or ErrDetached once it has ended
	entries    []*entry // entries that the log still has, the oldest first
}

// step is what one step of a message has caused: its effects, and what was decided about it. It
// is committed as a whole.
type step struct {
	seq     uint64 // of the message
	done    bool   // the message was answered
	tries   *tries
	writes  []stateWrite
	outputs []*output
	size    int
	then    func(error) // called once the outcome is known
}

// attach makes a step belong to the delivery, and returns it.
func (d *delivery) attach(e *step) *step {
	e.seq = d.seq
	if d.timer != nil {
		d.carry(e)
	}
	return e
}

// carry has the step of a timer change the record of the timer, where a message has its tries in
// the log: the answer removes the record, and anything else writes it again.
func (d *delivery) carry(e *step) {
	if e.done { // the handler may have set the timer again, behind its removal
		e.writes = append([]stateWrite{d.timer.removal()}, e.writes...)
		return
	}
	next := *d.timer
	if e.tries != nil {
		next.Tries, e.tries = *e.tries, nil
	}
	w := next.write(d.data)
	e.size += len(w.Data)
	e.writes, d.timer = append(e.writes, w), &next
}

// claim takes a slot for this host. source names the stream of its messages, and when that
// stream was made. members are the workers that run. failed is called when the slot is lost.
func (h *Host) claim(
	ctx context.Context, slot, source string, members []*Record, memory *account, failed func(error),
) (*partition, error) {
	fence, err := h.states.claim(ctx, slot, h.cfg.HostID)
	if err != nil {
		return nil, err
	}
	p := &partition{
		host:   h,
		slot:   slot,
		log:    h.slotLog(slot, fence),
		failed: failed,
		memory: memory,
		wake:   fsm.NewWake(),
		quit:   make(chan struct{}),
		ended:  make(chan struct{}),
		active: true, // until the log is read
	}
	began := time.Now()
	p.confirmed.Store(&began)
	p.entries, err = p.log.open(ctx, h.cfg.HostID)
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", slot, err)
	}
	p.fence = p.log.fence
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.cache = newStateCache(h.states, slot, fence)
	p.cache.memory = memory
	p.timers = newTimers(h.states, slot, members)
	p.cache.chain.blocked = p.log.blocked
	p.relay = newRelay(h, memory, p.sent, p.confirmHold)
	if err := p.replay(ctx, source); err != nil {
		p.cancel()
		p.relay.stop()
		return nil, fmt.Errorf("slot %s: %w", slot, err)
	}
	p.mu.Lock()
	p.active = false
	begin := p.unsaved || p.cache.isDirty()
	p.mu.Unlock()
	if begin {
		p.wakeCommits()
	}
	return p, nil
}

// replay restores the state of the slot from the log. An earlier host may have written the
// values and published the outputs of its commits already.
func (p *partition) replay(ctx context.Context, source string) error {
	outputs, k := p.log.unsent(p.entries)
	lookedUp := make(map[workerUID]bool)
	exists := func(of workerUID) (bool, error) {
		if _, ok := lookedUp[of]; !ok {
			rec, err := p.host.records.get(ctx, of.id)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return false, err
			}
			lookedUp[of] = err == nil && rec.UID == of.uid
		}
		return lookedUp[of], nil
	}
	timers, err := p.timers.stored(ctx)
	if err != nil {
		return err
	}
	for _, e := range p.entries {
		var values []stateWrite
		for _, w := range e.Values {
			is, err := exists(workerUID{w.Worker, w.UID})
			if err != nil {
				return err
			}
			if is {
				values = append(values, w)
			}
		}
		p.cache.stage(values)
		p.cache.commit(values, e.last)
		timers = append(timers, values...) // the later ones count
		e.Values, e.Outputs, e.Known = nil, nil, nil
	}
	if err := p.timers.restore(timers, p.host.states.now(ctx), exists); err != nil {
		return err
	}
	if k.Source != source {
		k.Source, k.Done, k.Tries = source, lanes.Progress{}, nil
	}
	p.known = k.clone()
	p.unsaved = len(p.entries) > 1
	p.relay.add(outputs) // from here on the relay calls sent
	return nil
}

// confirmHold returns nil when this host had the slot less than holdFor ago, by its own clock. When
// the newest write is older than half of that, it writes to the log to find out.
func (p *partition) confirmHold(ctx context.Context) error {
	if time.Since(*p.confirmed.Load()) > holdFor/2 {
		if err := p.commit(ctx, &step{}); err != nil {
			return err
		}
	}
	if since := time.Since(*p.confirmed.Load()); since > holdFor {
		return fmt.Errorf("the log of the slot answers slowly: %v", since)
	}
	return nil
}

// skip notes that no message with a sequence between after and before will come.
func (p *partition) skip(after, before uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known.Done.Skip(after+1, before-1)
}

// raiseFloor notes that every message up to floor was answered.
func (p *partition) raiseFloor(floor uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known.Done.Raise(floor)
}

// isDone reports whether a message was answered.
func (p *partition) isDone(seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known.Done.Has(seq)
}

// earlierTries returns what earlier deliveries of a message have come to.
func (p *partition) earlierTries(seq uint64) tries {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, ok := p.known.Tries[seq]; ok {
		return was
	}
	return tries{Begun: 1}
}

// stage takes the effects of a step. It has e.then called with nil once they are committed, or
// with the reason why they are not. A message that is done and has no effects is done at once,
// unless its handler may have seen effects that are not committed yet.
func (p *partition) stage(e *step) {
	p.mu.Lock()
	if p.err != nil {
		err := p.err
		p.mu.Unlock()
		e.then(err)
		return
	}
	if p.endsAtOnceLocked(e) {
		p.known.Done.Done(e.seq)
		first := !p.unsaved
		p.unsaved = true
		p.mu.Unlock()
		if first {
			p.wakeCommits()
		}
		e.then(nil)
		return
	}
	p.memory.stage(int64(e.size))
	p.staged = append(p.staged, e)
	p.timers.assignPlaces(e.writes)
	p.cache.stage(e.writes)
	p.timers.apply(e.writes)
	p.mu.Unlock()
	p.wakeCommits()
}

// endsAtOnceLocked reports whether a step says only that a message is done, and nothing before it
// waits for a commit.
func (p *partition) endsAtOnceLocked(e *step) bool {
	_, tried := p.known.Tries[e.seq]
	pending := p.committing || len(p.staged) > 0
	return e.done && !tried && !pending && len(e.writes)+len(e.outputs) == 0
}

// commit stages effects and waits for the outcome.
func (p *partition) commit(ctx context.Context, e *step) error {
	result := make(chan error, 1)
	e.then = func(err error) { result <- err }
	p.stage(e)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wakeCommits makes commits look for effects to write, and starts commits when that does not run.
func (p *partition) wakeCommits() {
	p.wake.Notify()
	p.mu.Lock()
	start := !p.active
	p.active = true
	p.mu.Unlock()
	if !start {
		return
	}
	p.host.running.Add(1)
	call.Go("commits of slot "+p.slot, p.commits, func(err error) {
		if err != nil && !errors.Is(err, ErrStale) {
			p.host.log.Warn("hosted worker: its commits ended", "slot", p.slot, "error", err)
		}
		p.host.running.Done()
	})
}

// sent notes that an output was published, or stored as a dead letter.
func (p *partition) sent(o *output) {
	p.mu.Lock()
	p.known.Sent.Done(o.number + 1) // a Progress counts messages from 1
	p.unsaved = true
	p.mu.Unlock()
	p.wakeCommits()
}

// clone returns a copy that shares nothing with k.
func (k known) clone() known {
	k.Done, k.Sent = k.Done.Clone(), k.Sent.Clone()
	was := k.Tries
	k.Tries = make(map[uint64]tries, len(was))
	maps.Copy(k.Tries, was)
	return k
}
