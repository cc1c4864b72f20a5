// Package memguard watches the heap of the whole process while interpreted code
// runs. It is for runtimes that cannot bound the memory of one script.
package memguard

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// period is the time between two measurements of the heap while a call is watched.
const period = 5 * time.Millisecond

// Guard ends calls that make the process's heap grow too much. It measures the
// heap only while a call has run for longer than a period, in one goroutine that
// ends soon after the last call. The zero value is ready to use.
type Guard struct {
	mu      sync.Mutex
	calls   map[*Call]struct{}
	running bool
}

// Call is one call that is watched.
type Call struct {
	guard  *Guard
	limit  int64
	end    func()
	began  time.Time
	base   int64 // the heap at the first measurement; 0 before that
	broken bool
}

// Watch calls end, once, when the heap has grown by more than limit bytes since
// about now. When several calls are watched, the guard first ends the one with
// the smallest limit, and of these the youngest. Call Done when the call has
// returned.
func (g *Guard) Watch(limit int64, end func()) *Call {
	c := &Call{guard: g, limit: limit, end: end, began: time.Now()}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls == nil {
		g.calls = make(map[*Call]struct{})
	}
	g.calls[c] = struct{}{}
	if !g.running {
		g.running = true
		go g.look()
	}
	return c
}

// Done ends the watch and reports whether the call broke its limit.
func (c *Call) Done() (broken bool) {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	delete(c.guard.calls, c)
	return c.broken
}

// look runs while there are calls, and for a few periods after the last one, so
// that not every one of many quick calls starts it again.
func (g *Guard) look() {
	tick := time.NewTicker(period)
	defer tick.Stop()
	idle := 0
	for range tick.C {
		g.mu.Lock()
		if len(g.calls) == 0 {
			idle++
			if idle > 3 {
				g.running = false
				g.mu.Unlock()
				return
			}
			g.mu.Unlock()
			continue
		}
		idle = 0
		g.judge(heap())
		g.mu.Unlock()
	}
}

// judge ends the youngest call that the heap has outgrown.
func (g *Guard) judge(now int64) {
	suspect := g.suspect(now)
	if suspect == nil {
		return
	}
	// Garbage does not count, only memory that is still in use.
	runtime.GC()
	if suspect = g.suspect(heap()); suspect != nil {
		suspect.broken = true
		suspect.end()
	}
}

func (g *Guard) suspect(now int64) *Call {
	var found *Call
	for c := range g.calls {
		if c.base == 0 {
			c.base = max(now, 1)
		}
		if c.broken || now-c.base <= c.limit {
			continue
		}
		if found == nil || c.limit < found.limit || c.limit == found.limit && c.began.After(found.began) {
			found = c
		}
	}
	return found
}

// heap returns the bytes of heap objects, including dead objects that were not
// swept yet.
func heap() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
