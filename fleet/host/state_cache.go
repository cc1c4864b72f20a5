package host

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// stateCache has the values of a slot's workers as its handlers see them: the server's values
// with everything that was staged since. The log has every write first. flush writes the
// values to their own subjects later, each value once, however many commits changed it.
//
// A flush is an atomic batch. Its last message is a link of the chain on the slot's fence, so
// neither a host that was replaced nor a batch that arrives late can change a value.
type stateCache struct {
	states *states
	chain  chain
	memory *account // counts dirty; nil for a trial, which commits nothing

	mu     sync.Mutex // guards everything below
	values map[string]*cachedValue
	size   int                   // bytes in values that the server has
	gen    uint64                // counts writes
	dirty  map[string]stateWrite // committed values that are not on their subjects yet
	upTo   uint64                // sequence of the log up to which dirty, or the server, has everything
}

// cachedValue is a value, as the next handler sees it.
type cachedValue struct {
	data    []byte
	missing bool
	gen     uint64
	stored  bool // the server has it
}

// maxCache bounds the values that a slot keeps in memory although the server has them. When there
// are more, or more than the budget has room for, it forgets them all.
const maxCache = 4 << 20

func newStateCache(s *states, slot string, fence uint64) *stateCache {
	return &stateCache{
		states: s,
		chain:  chain{nc: s.nc, stream: s.stream, subject: s.fenceSubject(slot), fence: fence, last: fence},
		values: make(map[string]*cachedValue),
		dirty:  make(map[string]stateWrite),
	}
}

// get returns a value, and false when there is none. The caller must not change it.
func (c *stateCache) get(ctx context.Context, subject string) ([]byte, bool, error) {
	c.mu.Lock()
	v := c.values[subject]
	c.mu.Unlock()
	if v == nil {
		m, err := last(ctx, c.states.stream, subject)
		if err != nil {
			return nil, false, err
		}
		v = &cachedValue{missing: true, stored: true}
		if m != nil && m.Header.Get(headerOp) == "" {
			v = &cachedValue{data: m.Data, stored: true}
		}
		c.mu.Lock()
		if newer := c.values[subject]; newer != nil {
			v = newer
		} else {
			c.setLocked(subject, v)
		}
		c.mu.Unlock()
	}
	return v.data, !v.missing, nil
}

// setLocked replaces a value and makes room.
func (c *stateCache) setLocked(subject string, now *cachedValue) {
	c.dropLocked(subject)
	c.values[subject] = now
	if now.stored {
		c.size += len(subject) + len(now.data)
		c.makeRoomLocked(now)
	}
}

// makeRoomLocked forgets the values that the server has, except for one, when there are too many.
func (c *stateCache) makeRoomLocked(now *cachedValue) {
	if c.size <= c.states.budget.cacheRoom() {
		return
	}
	for subject, v := range c.values {
		if v.stored && v != now {
			c.dropLocked(subject)
		}
	}
}

func (c *stateCache) dropLocked(subject string) {
	if v := c.values[subject]; v != nil {
		if v.stored {
			c.size -= len(subject) + len(v.data)
		}
		delete(c.values, subject)
	}
}

// stage makes writes visible to later handlers.
func (c *stateCache) stage(writes []stateWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		c.gen++
		w.gen = c.gen
		c.setLocked(c.states.subject(w), &cachedValue{data: w.Data, missing: w.Deleted, gen: w.gen})
	}
}

// commit notes that writes are in the log at a sequence.
func (c *stateCache) commit(writes []stateWrite, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range writes {
		subject := c.states.subject(&writes[i])
		c.cleanLocked(subject)
		c.dirty[subject] = writes[i]
		c.memory.store(int64(len(subject) + len(writes[i].Data)))
	}
	c.upTo = at
}

// cleanLocked notes that a value waits for no flush.
func (c *stateCache) cleanLocked(subject string) {
	if w, ok := c.dirty[subject]; ok {
		delete(c.dirty, subject)
		c.memory.store(-int64(len(subject) + len(w.Data)))
	}
}

// isDirty reports whether values wait for a flush.
func (c *stateCache) isDirty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dirty) > 0
}

// forget drops the values below a prefix, also those that no flush has written: their worker
// is deleted.
func (c *stateCache) forget(prefix string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for subject := range c.dirty {
		if strings.HasPrefix(subject, prefix) {
			c.cleanLocked(subject)
		}
	}
	for subject := range c.values {
		if strings.HasPrefix(subject, prefix) {
			c.dropLocked(subject)
		}
	}
}

// maxFlush bounds the values of one batch, in number and in bytes. The server takes no batch
// of more than 1000 messages.
const (
	maxFlush      = 900
	maxFlushBytes = 4 << 20
)

// flush writes the committed values to their subjects. It returns the sequence of the log up
// to which all are written. The error wraps [ErrStale] when another host has claimed the
// slot. One flush may run at a time.
func (c *stateCache) flush(ctx context.Context) (uint64, error) {
	for {
		writes, upTo := c.nextFlush()
		if len(writes) == 0 {
			return upTo, nil
		}
		msgs := make([]*nats.Msg, 0, len(writes)+1)
		for i := range writes {
			m := nats.NewMsg(c.states.subject(&writes[i]))
			m.Data = writes[i].Data
			if writes[i].Deleted {
				m.Header.Set(headerOp, "DEL")
			}
			msgs = append(msgs, m)
		}
		if err := c.chain.append(ctx, append(msgs, nats.NewMsg(c.chain.subject))...); err != nil {
			return 0, fmt.Errorf("write state: %w", err)
		}
		c.flushed(writes)
	}
}

// nextFlush returns the writes of the next batch. When there are none, everything in the log up
// to sequence upTo is on its subject.
func (c *stateCache) nextFlush() (writes []stateWrite, upTo uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := 0
	for _, w := range c.dirty {
		size += len(w.Data)
		if len(writes) > 0 && (len(writes) == maxFlush || size > maxFlushBytes) {
			break
		}
		writes = append(writes, w)
	}
	return writes, c.upTo
}

// flushed notes that the server has writes.
func (c *stateCache) flushed(writes []stateWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range writes {
		subject, gen := c.states.subject(&writes[i]), writes[i].gen
		if c.dirty[subject].gen == gen {
			c.cleanLocked(subject)
		}
		if v := c.values[subject]; v != nil && v.gen == gen && !v.stored {
			v.stored = true
			c.size += len(subject) + len(v.data)
		}
	}
	c.makeRoomLocked(nil)
}
