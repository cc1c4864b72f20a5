package host

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// cells are the values of a slot's workers as its handlers see them: those of the server
// with everything that was staged since. The log has every write first. flush brings
// the values to their own subjects later, each one once for all the commits since.
//
// A flush is an atomic batch. Its last message is a link of the chain on the slot's
// fence, so neither a host that was replaced nor a batch that arrives late can change a
// value.
type cells struct {
	states *states
	chain  chain

	mu    sync.Mutex // guards everything below
	cells map[string]*cell
	size  int              // bytes in cells
	gen   uint64           // counts writes
	dirty map[string]write // committed values that are not on their subjects yet
	upTo  uint64           // sequence of the log up to which dirty, or the server, has everything
	order []string         // subjects of dirty, in the order of their first commit

	reads map[string]int  // values that were read one by one, by the prefix of their worker
	whole map[string]bool // prefixes of which cells has every value that the server has
	drops int             // how often values were dropped to make room
	link  uint64          // sequence of the newest flush that is known to be stored
}

// cell is a value, as the next handler sees it.
type cell struct {
	data    []byte
	missing bool
	gen     uint64
	clean   bool // the server has it
}

// maxCells bounds the values that a slot keeps in memory although the server has them.
const maxCells = 4 << 20

func newCells(s *states, slot string, fence uint64) *cells {
	return &cells{states: s, link: fence, cells: make(map[string]*cell), dirty: make(map[string]write), reads: make(map[string]int), whole: make(map[string]bool),
		chain: chain{states: s, stream: s.stream, subject: s.fenceSubject(slot), fence: fence, last: fence}}
}

// get returns a value of a worker, and false when there is none. prefix is that of the
// worker's values. The caller must not change the value.
func (c *cells) get(ctx context.Context, prefix, key string) ([]byte, bool, error) {
	subject := prefix + key
	c.mu.Lock()
	found := c.cells[subject]
	if found == nil && c.reads[prefix] == readOnes && !c.whole[prefix] {
		c.reads[prefix]++ // once
		c.mu.Unlock()
		_ = c.readAll(ctx, prefix) // if it fails, each value is read when it is needed
		c.mu.Lock()
		found = c.cells[subject]
	}
	if found == nil && c.whole[prefix] {
		found = &cell{missing: true, clean: true}
	}
	c.mu.Unlock()
	if found == nil {
		m, err := last(ctx, c.states.stream, subject)
		if err != nil {
			return nil, false, err
		}
		found = cellOf(m)
		c.mu.Lock()
		if c.reads[prefix] < readOnes {
			c.reads[prefix]++
		}
		if newer := c.cells[subject]; newer != nil {
			found = newer
		} else {
			c.set(subject, found)
		}
		c.mu.Unlock()
	}
	return found.data, !found.missing, nil
}

// cellOf returns the cell of a message of the server, or of none.
func cellOf(m *jetstream.RawStreamMsg) *cell {
	if m == nil || m.Header.Get(headerOp) != "" {
		return &cell{missing: true, clean: true}
	}
	return &cell{data: m.Data, clean: true}
}

// A worker that has read readOnes values one by one gets the others all at once, when
// they are at most maxWhole and do not take more than half of the room.
const (
	readOnes = 8
	maxWhole = 2000
)

// readAll reads the values of a worker, all in a few round trips. Any replica of the
// stream may answer. One that has the claim of the slot, or the newest flush, has every
// value that was written before it, and only this host writes. From another one readAll
// takes nothing.
func (c *cells) readAll(ctx context.Context, prefix string) error {
	c.mu.Lock()
	drops, link := c.drops, c.link
	c.mu.Unlock()
	read := make(map[string]*cell)
	size, whole, current := 0, true, link == 0
	err := forwardOf(ctx, c.states.stream, []string{prefix + ">", c.chain.subject}, 1, maxWhole+2, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		if m.Subject() == c.chain.subject {
			current = current || meta.Sequence.Stream >= link
			return true, nil
		}
		one := &cell{data: m.Data(), missing: m.Headers().Get(headerOp) != "", clean: true}
		if one.missing {
			one.data = nil
		}
		read[m.Subject()] = one
		size += len(m.Subject()) + len(one.data)
		whole = len(read) <= maxWhole && size < maxCells/2
		return whole, nil
	})
	if err != nil || !whole {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !current {
		c.reads[prefix] = 0 // another replica may answer the next time
		return nil
	}
	for subject, one := range read {
		if c.drops != drops {
			return nil // what was read may be older than what was dropped
		}
		if c.cells[subject] == nil {
			c.set(subject, one)
		}
	}
	c.whole[prefix] = c.drops == drops
	return nil
}

// set replaces a cell and makes room. The caller holds the lock.
func (c *cells) set(subject string, now *cell) {
	if old := c.cells[subject]; old != nil {
		c.size -= len(subject) + len(old.data)
	}
	c.cells[subject] = now
	c.size += len(subject) + len(now.data)
	if c.size <= maxCells {
		return
	}
	clear(c.whole)
	c.drops++
	for subject, old := range c.cells {
		if old.clean && old != now {
			c.size -= len(subject) + len(old.data)
			delete(c.cells, subject)
		}
		if c.size <= maxCells/2 {
			return
		}
	}
}

// stage shows writes to the handlers that follow.
func (c *cells) stage(writes []write) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		c.gen++
		w.gen = c.gen
		c.set(c.states.subject(w), &cell{data: w.Data, missing: w.Deleted, gen: w.gen})
	}
}

// restore takes the writes of a commit of an earlier holder, whose values may not be on
// their subjects yet.
func (c *cells) restore(writes []write, at uint64) {
	c.stage(writes)
	c.commit(writes, at)
}

// commit notes that writes are in the log at a sequence.
func (c *cells) commit(writes []write, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range writes {
		subject := c.states.subject(&writes[i])
		if _, again := c.dirty[subject]; !again {
			c.order = append(c.order, subject)
		}
		c.dirty[subject] = writes[i]
	}
	c.upTo = at
}

// waits reports whether values wait for a flush.
func (c *cells) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dirty) > 0
}

// forget drops the values below a prefix: their worker is deleted.
func (c *cells) forget(prefix string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reads, prefix)
	delete(c.whole, prefix)
	for subject := range c.dirty {
		if strings.HasPrefix(subject, prefix) {
			delete(c.dirty, subject)
		}
	}
}

// maxFlush bounds the values of one batch, in number and in bytes. The server takes no
// batch of more than 1000 messages.
const (
	maxFlush      = 900
	maxFlushBytes = 4 << 20
)

// flush writes the committed values to their subjects. It returns the sequence of the
// log up to which all are written. The error wraps [ErrStale] when another host has
// claimed the slot. One flush may run at a time.
func (c *cells) flush(ctx context.Context) (uint64, error) {
	for {
		var writes []write
		size := 0
		c.mu.Lock()
		upTo := c.upTo
		for _, subject := range c.order {
			w, ok := c.dirty[subject]
			if !ok {
				continue
			}
			if size += len(w.Data); len(writes) > 0 && (len(writes) == maxFlush || size > maxFlushBytes) {
				break
			}
			writes = append(writes, w)
		}
		c.mu.Unlock()
		if len(writes) == 0 {
			return upTo, nil
		}
		msgs := make([]*nats.Msg, 0, len(writes)+1)
		for i := range writes {
			w := &writes[i]
			m := nats.NewMsg(c.states.subject(w))
			switch m.Data = w.Data; {
			case w.Deleted:
				m.Header.Set(headerOp, "DEL")
			case w.alarm != nil:
				m.Header.Set(headerOf, hashOf(w.alarm.Key, w.alarm.Name))
			}
			msgs = append(msgs, m)
		}
		link := nats.NewMsg(c.chain.subject)
		if err := c.chain.append(ctx, link, append(msgs, link)...); err != nil {
			return 0, fmt.Errorf("write state: %w", err)
		}
		c.mu.Lock()
		c.link = c.chain.last
		for i := range writes {
			w := &writes[i]
			subject := c.states.subject(w)
			if c.dirty[subject].gen == w.gen {
				delete(c.dirty, subject)
			}
			if now := c.cells[subject]; now != nil && now.gen == w.gen {
				now.clean = true
			}
		}
		left := c.order[:0]
		for _, subject := range c.order {
			if _, waits := c.dirty[subject]; waits {
				left = append(left, subject)
			}
		}
		c.order = left
		c.mu.Unlock()
	}
}
