package child

import (
	"io"
	"sync"
	"time"
)

// gatherer is the way to the pool. It writes what it is given at once, unless a handler
// streams messages faster than they can be written one by one. Then a goroutine writes,
// and messages wait while it does: each for no longer than the write before takes, as
// long as the goroutine finds a processor. What waits is written together.
//
// The first message of a query is written when Send returns. So the pool knows of every query that a
// handler has begun to answer, also when the handler then ends the process.
type gatherer struct {
	conn io.Writer
	mu   *sync.Mutex // guards the fields below; held by callers

	free    sync.Cond     // of mu: a write has ended
	writing bool          // a goroutine writes
	waiting []byte        // what it writes next
	spare   []byte        // a buffer that was written
	streams bool          // what comes now is a part of a stream
	hurries bool          // it may wait
	took    time.Duration // the last write of a part
	wrote   time.Time     // the end of it
	err     error         // of a write of the goroutine
}

const (
	maxWaiting = 64 << 10 // bytes; then senders wait
	tooLarge   = 32 << 10 // bytes that are not copied to wait; they are written alone
)

func newGatherer(conn io.Writer, mu *sync.Mutex) *gatherer {
	g := &gatherer{conn: conn, mu: mu}
	g.free.L = mu
	return g
}

// room waits until there is room for a message of so many bytes. It releases the lock
// meanwhile.
func (g *gatherer) room(size int) {
	for g.writing && (len(g.waiting) >= maxWaiting || size >= tooLarge) {
		g.free.Wait()
	}
}

// part says that the next message is a part of a stream. It may wait when it is not the
// first, not large, and comes sooner after the one before than that took to write.
func (g *gatherer) part(first bool, size int) {
	g.streams = true
	g.hurries = !first && size < tooLarge && (g.writing || time.Since(g.wrote) < g.took)
}

// Write writes a message, or keeps it for the goroutine that writes.
func (g *gatherer) Write(b []byte) (int, error) {
	streams, hurries := g.streams, g.hurries
	g.streams, g.hurries = false, false
	switch {
	case g.err != nil:
		return 0, g.err
	case !g.writing && !streams:
		return g.conn.Write(b)
	case !g.writing && !hurries:
		began := time.Now()
		n, err := g.conn.Write(b)
		g.wrote = time.Now()
		g.took = g.wrote.Sub(began)
		return n, err
	}
	g.waiting = append(g.waiting, b...)
	if !g.writing {
		g.writing = true
		go g.write()
	}
	return len(b), nil
}

// write writes until nothing waits.
func (g *gatherer) write() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.waiting) > 0 && g.err == nil {
		b := g.waiting
		g.waiting = g.spare[:0]
		g.mu.Unlock()
		began := time.Now()
		_, err := g.conn.Write(b)
		ended := time.Now()
		g.mu.Lock()
		g.err, g.wrote, g.took = err, ended, ended.Sub(began)
		if g.spare = b; cap(b) > 2*maxWaiting {
			g.spare = nil
		}
		g.free.Broadcast()
	}
	g.writing = false
	g.free.Broadcast()
}

// flush waits until nothing waits to be written.
func (g *gatherer) flush() {
	for g.writing {
		g.free.Wait()
	}
}
