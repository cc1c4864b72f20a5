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
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// partition is a slot that this host has claimed: what its log says, in memory, and the
// goroutine that commits. A handler's effects are staged when it returns, and later
// handlers of the slot see them at once. All that is staged while a commit is under way
// goes into the next one. When a commit is refused because another host has the slot,
// everything that is staged behind it is void too, and the partition has failed.
type partition struct {
	host   *Host
	slot   string
	fence  uint64
	log    *slotLog
	relay  *relay
	cells  *cells
	timers *timers
	old    bool // marks of an earlier version of this package may exist

	ctx    context.Context // of commits; ends when the partition is abandoned
	cancel context.CancelFunc
	wake   chan struct{} // of size 1
	quit   chan struct{} // closed to end commits once everything is written
	ended  chan struct{} // closed when commits has returned
	failed func(error)   // called once, when a commit was refused

	confirmed atomic.Pointer[time.Time] // when the newest write of the log that succeeded began

	mu      sync.Mutex // guards everything below
	known   known
	staged  []*effects
	flying  bool     // a commit is under way
	unsaved bool     // known has changed since the last commit
	active  bool     // the goroutine that commits runs, or has ended for good
	err     error    // why the partition failed, or ErrDetached once it has ended
	entries []*entry // that the log still has, the oldest first
}

// effects are what one step of a message has caused. They are committed as a whole.
type effects struct {
	seq     uint64 // of the message
	done    bool   // the message was answered
	tries   *tries
	doom    *doom
	writes  []write
	outputs []*output
	size    int
	then    func(error) // called once the outcome is known
}

// tick is how long progress that has no effects of its own may stay unwritten.
const tick = 250 * time.Millisecond

// claim takes a slot for this host. source names the stream of its messages, and when
// that stream was made. failed is called when the slot is lost.
func (h *Host) claim(ctx context.Context, slot, source string, failed func(error)) (*partition, error) {
	fence, err := h.states.claim(ctx, slot, h.cfg.HostID)
	if err != nil {
		return nil, err
	}
	p := &partition{host: h, slot: slot, fence: fence, failed: failed, wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
		active: true, // until the log is read
		log:    &slotLog{chain{states: h.states, stream: h.logs, subject: h.logSubject(slot), fence: fence}}}
	began := time.Now()
	p.entries, err = p.log.open(ctx, h.cfg.HostID, h.states.fenceSubject(slot))
	p.confirmed.Store(&began)
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", slot, err)
	}
	p.fence = p.log.fence
	if p.old, err = h.states.marked(ctx, slot); err != nil {
		return nil, fmt.Errorf("slot %s: %w", slot, err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.cells = newCells(h.states, slot, fence) // whose chain is on the subject of the tokens
	p.timers = newTimers(h.states, slot)
	p.relay = newRelay(h, p.sent, p.holds)
	if err := p.replay(ctx, source); err != nil {
		p.cancel()
		p.relay.stop()
		return nil, fmt.Errorf("slot %s: %w", slot, err)
	}
	p.mu.Lock()
	p.active = false
	begin := p.unsaved || p.cells.waits()
	p.mu.Unlock()
	if begin {
		p.nudge()
	}
	if twins := p.timers.twins(); len(twins) > 0 {
		p.stage(&effects{writes: twins, then: func(error) {}})
	}
	return p, nil
}

// replay restores what the log says. Values and outputs of its commits may have been
// written and published already.
func (p *partition) replay(ctx context.Context, source string) error {
	outputs, k := p.log.unsent(p.entries)
	p.known = k
	known := make(map[life]bool)
	lives := func(worker, uid string) (bool, error) { // whether a worker still exists
		of := life{worker, uid}
		if _, is := known[of]; !is {
			rec, err := p.host.records.get(ctx, worker)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return false, err
			}
			known[of] = err == nil && rec.UID == uid
		}
		return known[of], nil
	}
	now := p.host.states.now(ctx)
	if err := p.timers.load(ctx, now, lives); err != nil {
		return err
	}
	for _, e := range p.entries {
		var values []write
		for _, w := range e.Values {
			is, err := lives(w.Worker, w.UID)
			if err != nil {
				return err
			}
			if is && !w.Mark {
				values = append(values, w)
			}
		}
		p.timers.restore(values, now)
		p.cells.restore(values, e.last)
		e.Values = nil
		e.Outputs, e.Known = nil, nil
	}
	if p.known.Source != source {
		p.known.Source, p.known.Done, p.known.Tries, p.known.Doomed = source, lanes.Progress{}, nil, nil
	}
	p.known.Tries, p.known.Doomed = cloned(p.known.Tries), cloned(p.known.Doomed)
	for _, o := range outputs {
		p.relay.add(o)
	}
	p.unsaved = len(p.entries) > 1
	return nil
}

func cloned[V any](m map[uint64]V) map[uint64]V {
	if m == nil {
		return make(map[uint64]V)
	}
	return maps.Clone(m)
}

// holds returns nil when this host had the slot less than holdFor ago, by its own clock.
// If it does not know, it asks the log.
func (p *partition) holds(ctx context.Context) error {
	if time.Since(*p.confirmed.Load()) > holdFor/2 {
		if err := p.commit(ctx, &effects{}); err != nil {
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

// raise notes that every message up to floor was answered.
func (p *partition) raise(floor uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known.Done.Raise(floor)
}

// about returns what is known about a message.
func (p *partition) about(seq uint64) (done bool, was tries, doomed *doom) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, ok := p.known.Tries[seq]
	if !ok {
		was = tries{Begun: 1}
	}
	if d, ok := p.known.Doomed[seq]; ok {
		doomed = &d
	}
	return p.known.Done.Has(seq), was, doomed
}

// stage takes the effects of a step. e.then is called once they are committed, or with
// the reason why they are not. A message that is done and has no effects is done at
// once, unless its handler may have seen effects that are not committed yet.
func (p *partition) stage(e *effects) {
	p.mu.Lock()
	if p.err != nil {
		err := p.err
		p.mu.Unlock()
		e.then(err)
		return
	}
	_, tried := p.known.Tries[e.seq]
	_, doomed := p.known.Doomed[e.seq]
	if e.done && !tried && !doomed && len(e.writes)+len(e.outputs) == 0 && len(p.staged) == 0 && !p.flying {
		p.known.Done.Done(e.seq)
		first := !p.unsaved
		p.unsaved = true
		p.mu.Unlock()
		if first {
			p.nudge()
		}
		e.then(nil)
		return
	}
	p.staged = append(p.staged, e)
	p.timers.assign(e.writes)
	p.cells.stage(e.writes)
	p.timers.apply(e.writes)
	p.mu.Unlock()
	p.nudge()
}

// commit stages effects and waits for the outcome.
func (p *partition) commit(ctx context.Context, e *effects) error {
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

// nudge has commits look at what there is to write.
func (p *partition) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
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
			p.host.log.Warn("hosted worker: its commits ended", "slot", p.slot, "err", err)
		}
		p.host.running.Done()
	})
}

// sent notes that an output was published, or stored as a letter.
func (p *partition) sent(o *output) {
	p.mu.Lock()
	p.known.Sent.Done(o.number + 1) // 0 is no number of a message in a Progress
	p.unsaved = true
	p.mu.Unlock()
	p.nudge()
}
