package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// saveEvery is how long progress without effects may stay unwritten, and how long a value may
// be in the log alone before it is written to its own subject.
const saveEvery = 250 * time.Millisecond

// sendWithin is how long a slot that ends waits for its outputs. The next holder publishes
// the others.
const sendWithin = 2 * time.Second

// trimEvery is how many messages of a log may be superfluous before they are removed.
const trimEvery = 256

// commits writes what is staged until nothing is left to write; then wakeCommits starts it again.
// Once quit is closed it writes everything and ends for good.
func (p *partition) commits() error {
	paused := false
	defer func() {
		if !paused {
			close(p.ended)
		}
	}()
	var save <-chan time.Time // set while there is something to write later
	for {
		if err := p.write(false); err != nil {
			return err
		}
		if save == nil {
			if paused = p.pause(); paused {
				return nil
			}
			save = time.After(saveEvery)
		}
		select {
		case <-p.wake:
		case <-save:
			save = nil
			if err := p.write(true); err != nil {
				return err
			}
			p.tidy(false)
		case <-p.quit:
			err := p.write(true)
			for err == nil && !p.close() {
				err = p.write(false)
			}
			if err == nil {
				p.tidy(true)
			}
			return err
		}
	}
}

// close refuses further effects, and reports whether it could: nothing is staged.
func (p *partition) close() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && len(p.staged) > 0 {
		return false
	}
	if p.err == nil {
		p.err = ErrDetached
	}
	return true
}

// pause reports whether nothing is left to write: the goroutine that commits then returns, and
// wakeCommits starts it again.
func (p *partition) pause() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pending := len(p.staged) > 0 || p.unsaved || p.cache.isDirty()
	if isClosed(p.quit) || p.err == nil && pending {
		return false
	}
	p.active = false
	return true
}

// write commits everything that is staged. With progress it also writes progress that has no
// effects.
func (p *partition) write(progress bool) error {
	for {
		e, batch := p.next(progress)
		if e == nil {
			return nil
		}
		began := time.Now()
		if err := p.log.append(p.ctx, e); err != nil {
			p.fail(err, batch)
			return err
		}
		p.confirmed.Store(&began)
		p.cache.commit(e.Values, e.last)
		p.relay.add(p.committed(e, batch))
		p.mu.Lock()
		p.committing = false // stop waits for the outputs, so the relay must have them
		p.mu.Unlock()
		for _, b := range batch {
			p.memory.stage(-int64(b.size))
			b.then(nil)
		}
		progress = false
	}
}

// committed notes that an entry is in the log, and returns its outputs. Only then its messages
// are done.
func (p *partition) committed(e *entry, batch []*step) []*output {
	if len(e.Outputs) > 0 {
		e.at = p.host.states.now(p.ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known.learn(batch)
	outputs := e.Outputs
	for i, o := range outputs {
		o.number, o.since = e.Known.Next+uint64(i), e.at
		o.id = p.log.outputID(p.fence, o.number)
	}
	p.known.Next = e.Known.Next + uint64(len(outputs))
	e.upTo = p.known.Next
	e.Values, e.Outputs, e.Known = nil, nil, nil
	p.entries = append(p.entries, e)
	return outputs
}

// next returns the next entry to write and the effects in it, or nil when there is nothing to
// write.
func (p *partition) next(progress bool) (*entry, []*step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.staged) == 0 && !(progress && p.unsaved) {
		return nil, nil
	}
	room := int(p.host.nc.MaxPayload()) / 2 // more than half grows by the encoding
	n := 0
	for n < len(p.staged) && (n == 0 || room >= p.staged[n].size) {
		room -= p.staged[n].size
		n++
	}
	batch := p.staged[:n:n]
	p.staged = p.staged[n:]
	k := p.known.clone()
	k.learn(batch)
	e := &entry{Fence: p.fence, Known: &k}
	for _, b := range batch {
		e.Values = append(e.Values, b.writes...)
		e.Outputs = append(e.Outputs, b.outputs...)
	}
	e.Values = p.host.states.newest(e.Values)
	p.unsaved, p.committing = false, true
	return e, batch
}

// newest returns the writes that no later write replaces.
func (s *states) newest(writes []stateWrite) []stateWrite {
	if len(writes) < 2 {
		return writes
	}
	replaced := make(map[string]bool, len(writes))
	kept := make([]stateWrite, 0, len(writes))
	for _, w := range slices.Backward(writes) {
		if subject := s.subject(&w); !replaced[subject] {
			replaced[subject] = true
			kept = append(kept, w)
		}
	}
	slices.Reverse(kept)
	return kept
}

// learn adds what effects say about their messages.
func (k *known) learn(batch []*step) {
	for _, b := range batch {
		if b.tries != nil {
			k.Tries[b.seq] = *b.tries
		}
		if b.done {
			k.Done.Done(b.seq)
		}
	}
	maps.DeleteFunc(k.Tries, func(seq uint64, _ tries) bool { return k.Done.Has(seq) })
}

// fail makes everything that is staged void.
func (p *partition) fail(err error, batch []*step) {
	if !errors.Is(err, ErrStale) {
		err = fmt.Errorf("%w: %w", ErrDetached, err)
	}
	p.mu.Lock()
	p.err, p.committing = err, false
	void := append(batch, p.staged...)
	p.staged = nil
	p.mu.Unlock()
	p.relay.cancel() // the next holder publishes the rest
	p.failed(err)
	for _, e := range void {
		p.memory.stage(-int64(e.size))
		e.then(err)
	}
}

// tidy writes values to their own subjects. It removes the entries that are not needed any
// more, because their outputs were sent and their values written.
func (p *partition) tidy(last bool) {
	ctx, cancel := context.WithTimeout(p.ctx, commitWithin)
	defer cancel()
	flushed, err := p.cache.flush(ctx)
	if errors.Is(err, ErrStale) {
		p.mu.Lock()
		gone := p.err != nil
		p.mu.Unlock()
		if !gone {
			p.fail(err, nil)
		}
		return
	}
	if err != nil {
		p.host.log.Warn("hosted worker: write state", "slot", p.slot, "error", err)
	}
	keep, old := p.superfluous(flushed, last)
	if len(old) == 0 {
		return
	}
	if last { // all slots of a host that stops end at once
		if p.host.states.asking.Acquire(ctx, 1) != nil {
			return // the next holder trims
		}
		defer p.host.states.asking.Release(1)
	}
	if err := p.log.trim(ctx, keep, old); err != nil {
		if !errors.Is(err, jetstream.ErrStreamNotFound) && !(last && ctx.Err() != nil) { // the next holder trims
			p.host.log.Warn("hosted worker: trim the log", "slot", p.slot, "error", err)
		}
		return
	}
	p.mu.Lock()
	p.entries = p.entries[len(old):]
	p.mu.Unlock()
}

// superfluous returns the entries of the log that can be removed, and the sequence of the
// first one that stays. Values are written up to the sequence flushed. Unless all are asked
// for, it returns none as long as they are few.
func (p *partition) superfluous(flushed uint64, all bool) (keep uint64, old []*entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size := 0, 0
	for n < len(p.entries)-1 { // the newest stays: it has all that is known about messages
		e := p.entries[n]
		if e.last > flushed || p.known.Sent.Floor() < e.upTo {
			break
		}
		n++
		size += int(e.last-e.first) + 1
	}
	if n == 0 || size < trimEvery && !all {
		return 0, nil
	}
	return p.entries[n].first, p.entries[:n:n]
}

// stop writes what is staged, ends the relay and the commits, and returns. Outputs that were
// not sent when ctx ends stay in the log for the next host.
func (p *partition) stop(ctx context.Context) {
	p.mu.Lock()
	lost := p.err != nil
	pending := p.committing || len(p.staged) > 0
	p.mu.Unlock()
	if !lost {
		sending, cancel := context.WithTimeout(ctx, sendWithin)
		if pending { // the relay has the outputs once they are committed
			_ = p.commit(sending, &step{})
		}
		_ = p.memory.await(sending, p.memory.isEmpty)
		cancel()
	}
	close(p.quit)
	p.wakeCommits()
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	p.cancel()
	<-p.ended
	p.relay.stop()
	p.memory.close()
}
