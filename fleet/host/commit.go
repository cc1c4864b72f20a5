package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// commits writes what is staged until nothing is left to write; then nudge starts it
// again. Once quit is closed it writes everything and ends for good.
func (p *partition) commits() (err error) {
	rests := false
	defer func() {
		if !rests {
			close(p.ended)
		}
	}()
	var later <-chan time.Time // set while there is something to write later
	for {
		if err := p.write(false); err != nil {
			return err
		}
		if later == nil {
			if rests = p.rest(); rests {
				return nil
			}
			later = time.After(tick)
		}
		select {
		case <-p.wake:
		case <-later:
			later = nil
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

// rest reports whether nothing is left to write, so that the goroutine that commits may
// return.
func (p *partition) rest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.quit:
		return false
	default:
	}
	if p.err == nil && (len(p.staged) > 0 || p.unsaved || p.cells.waits()) {
		return false
	}
	p.active = false
	return true
}

// write commits everything that is staged. With progress it also writes progress that
// has no effects.
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
		p.cells.commit(e.Values, e.last)
		p.mu.Lock()
		p.flying = false
		p.known.learn(batch) // not before: what is not committed is not done
		for i, o := range e.Outputs {
			o.number, o.since = e.Known.Next+uint64(i), e.at
			o.id = p.log.outputID(p.fence, o.number)
		}
		p.known.Next = e.Known.Next + uint64(len(e.Outputs))
		outputs := e.Outputs
		e.upTo = p.known.Next
		e.Values, e.Outputs, e.Known = nil, nil, nil
		p.entries = append(p.entries, e)
		p.mu.Unlock()
		for _, o := range outputs {
			p.relay.add(o)
		}
		for _, b := range batch {
			b.then(nil)
		}
		progress = false
	}
}

// next returns the next entry to write and the effects in it, or nil when there is
// nothing to write.
func (p *partition) next(progress bool) (*entry, []*effects) {
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
	e := &entry{Fence: p.fence}
	values := make(map[string]int)
	for _, b := range batch {
		for _, w := range b.writes {
			subject := p.host.states.subject(&w)
			if i, again := values[subject]; again {
				e.Values[i] = w // only the newest value counts
				continue
			}
			values[subject] = len(e.Values)
			e.Values = append(e.Values, w)
		}
		e.Outputs = append(e.Outputs, b.outputs...)
	}
	k := p.known
	k.Done, k.Sent, k.Tries, k.Doomed = k.Done.Clone(), k.Sent.Clone(), maps.Clone(k.Tries), maps.Clone(k.Doomed)
	k.learn(batch)
	e.Known = &k
	p.unsaved, p.flying = false, true
	return e, batch
}

// learn adds what effects say about their messages.
func (k *known) learn(batch []*effects) {
	for _, b := range batch {
		if b.tries != nil {
			k.Tries[b.seq] = *b.tries
		}
		if b.doom != nil {
			k.Doomed[b.seq] = *b.doom
		}
		if b.done {
			k.Done.Done(b.seq)
		}
	}
	maps.DeleteFunc(k.Tries, func(seq uint64, _ tries) bool { return k.Done.Has(seq) })
	maps.DeleteFunc(k.Doomed, func(seq uint64, _ doom) bool { return k.Done.Has(seq) })
}

// fail makes everything that is staged void.
func (p *partition) fail(err error, batch []*effects) {
	if !errors.Is(err, ErrStale) {
		err = fmt.Errorf("%w: %w", ErrDetached, err)
	}
	p.mu.Lock()
	p.err, p.flying = err, false
	void := append(batch, p.staged...)
	p.staged = nil
	p.mu.Unlock()
	p.relay.cancel() // the next holder publishes the rest
	p.failed(err)
	for _, e := range void {
		e.then(err)
	}
}

// tidy writes values to their own subjects and removes entries that are not needed any
// more: those whose outputs were sent and whose values were written.
func (p *partition) tidy(last bool) {
	ctx, cancel := context.WithTimeout(p.ctx, commitWithin)
	defer cancel()
	flushed, err := p.cells.flush(ctx)
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
		p.host.log.Warn("hosted worker: write state", "slot", p.slot, "err", err)
	}
	p.mu.Lock()
	n, size := 0, 0
	for n < len(p.entries)-1 { // the newest stays: it has what is known
		e := p.entries[n]
		if e.last > flushed || p.known.Sent.Floor() < e.upTo {
			break
		}
		n++
		size += int(e.last-e.first) + 1
	}
	if n == 0 || size < trimEvery && !last {
		p.mu.Unlock()
		return
	}
	keep, old := p.entries[n].first, p.entries[:n:n]
	p.mu.Unlock()
	if last { // all slots of a host that stops end at once
		leave, err := p.host.states.asking.enter(ctx, false)
		if err != nil {
			return // the next holder trims
		}
		defer leave()
	}
	if err := p.log.trim(ctx, keep, old); err != nil {
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			p.host.log.Warn("hosted worker: trim the log", "slot", p.slot, "err", err)
		}
		return
	}
	p.mu.Lock()
	p.entries = p.entries[n:]
	p.mu.Unlock()
}

// sendWithin is how long a slot that ends waits for its outputs. The next holder
// publishes the others.
const sendWithin = 2 * time.Second

// trimEvery is how many messages of a log may be superfluous before they are removed.
const trimEvery = 256

// stop writes what is staged, ends the relay and the commits, and returns. Outputs that
// were not sent when ctx ends stay in the log for the next host.
func (p *partition) stop(ctx context.Context) {
	p.mu.Lock()
	lost := p.err != nil
	p.mu.Unlock()
	if !lost {
		sending, cancel := context.WithTimeout(ctx, sendWithin)
		_ = p.relay.room(sending, 1)
		cancel()
	}
	close(p.quit)
	p.nudge()
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	p.cancel()
	<-p.ended
	p.relay.stop()
}
