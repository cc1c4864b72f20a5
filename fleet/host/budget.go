package host

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// budget is what a host has for its workers: places in which children handle messages, and
// memory. There are as many places as MaxHandlers, or as messages for which there is memory.
//
//   - Each tenant has one place of its own. So a tenant that handles no message waits for no other.
//   - The other places are for all tenants, in the order of arrival. A grant bounds those of a tenant.
//   - A worker whose last message took long, or that has had none here, gets one of half of them.
//   - What waits in the host and what the server does not have yet may be a quarter of the memory. While
//     it is more, a worker takes one message at a time.
type budget struct {
	memory  int64
	message int64         // the memory of a message that is handled
	places  chan struct{} // has a token for each that is taken
	slow    chan struct{}
	loads   *semaphore.Weighted // bytes
	held    atomic.Int64        // bytes of what waits, and of what the server does not have yet
	slots   atomic.Int64        // that are open
	taken   atomic.Int64        // places, those of tenants included

	forPlace  waits
	forMemory waits

	mu      sync.Mutex // guards tenants
	tenants map[string]*tenant
}

// waits counts those that wait, and those that had to wait until now.
type waits struct {
	now atomic.Int64
	all atomic.Uint64
}

func (w *waits) begin() (end func()) {
	w.now.Add(1)
	w.all.Add(1)
	return func() { w.now.Add(-1) }
}

// Waits says what messages wait for, and for how many there was nothing at once until now.
type Waits struct {
	ForPlace, ForMemory    int
	ForPlaces, ForMemories uint64
	Memory, UsedMemory     int64 // the budget, and what is taken of it
	TakenPlaces            int
}

// tenant has the places of a tenant.
type tenant struct {
	budget  *budget
	own     chan struct{}
	granted chan struct{} // nil for no bound
}

// newBudget returns the budget of a configuration with its defaults.
func newBudget(cfg *Config) *budget {
	b := &budget{message: cfg.memoryOfMessage(), tenants: make(map[string]*tenant)}
	b.memory = max(cmp.Or(cfg.MemoryBudget, defaultMemory()), 2*b.message)
	places := min(cfg.MaxHandlers, int(b.memory/b.message))
	b.places = make(chan struct{}, places-1) // a tenant has one of its own
	b.slow = make(chan struct{}, max(1, cap(b.places)/2))
	b.loads = semaphore.NewWeighted(b.memory / 4)
	return b
}

// memoryOfMessage returns the most that the host holds while a child handles a message.
func (c *Config) memoryOfMessage() int64 {
	return isolate.Holds(engine.Config{Limits: c.Limits, MaxCall: c.maxCall()}) + 3*int64(c.HTTP.WithDefaults().MaxResponse) +
		effects.MaxStateBytes + effects.MaxTimersOfKey*engine.MaxTimerData + 4*int64(c.MaxMessage)
}

// maxCall is the largest value, body or data of a timer in a call of code. A value is one
// message of the server, which takes 1 MiB unless it is told otherwise.
func (c *Config) maxCall() int64 {
	return max(c.maxValue, int64(c.HTTP.WithDefaults().MaxRequest), engine.MaxTimerData)
}

// defaultMemory is a third of the process's limit of memory, and 256 MiB without one.
func defaultMemory() int64 {
	limit := debug.SetMemoryLimit(-1)
	if group, _, err := cgroup.MemoryLimit(os.DirFS("/")); err == nil && group > 0 {
		limit = min(limit, group)
	}
	if limit == math.MaxInt64 {
		return 256 << 20
	}
	return limit / 3
}

// Waits says what messages and loads wait for on this host.
func (h *Host) Waits() Waits {
	b := h.budget
	return Waits{
		ForPlace:    int(b.forPlace.now.Load()),
		ForMemory:   int(b.forMemory.now.Load()),
		ForPlaces:   b.forPlace.all.Load(),
		ForMemories: b.forMemory.all.Load(),
		Memory:      b.memory,
		UsedMemory:  b.held.Load() + b.taken.Load()*b.message,
		TakenPlaces: int(b.taken.Load()),
	}
}

// tenant returns the places of a tenant with these grants.
func (b *budget) tenant(name string, granted Grant) *tenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tenants[name]
	if t == nil {
		t = &tenant{budget: b, own: make(chan struct{}, 1)}
		most := granted.Handlers
		if granted.Memory > 0 {
			most = min(cmp.Or(most, math.MaxInt32), max(1, int(granted.Memory/b.message)))
		}
		if most > 0 {
			t.granted = make(chan struct{}, most)
		}
		b.tenants[name] = t
	}
	return t
}

// enter waits for a place. leave gives it back.
func (t *tenant) enter(ctx context.Context, slow bool) (leave func(), err error) {
	var taken []chan struct{}
	var waits bool
	giveBack := func() {
		for _, place := range taken {
			<-place
		}
	}
	// take takes a place of one of these; the one that is nil has none.
	take := func(place, own chan struct{}) (isOwn bool) {
		select {
		case own <- struct{}{}:
			taken = append(taken, own)
			return true
		default:
		}
		select {
		case place <- struct{}{}:
			taken = append(taken, place)
			return false
		default:
		}
		if !waits { // a message that waits for both kinds of places counts once
			waits = true
			t.budget.forPlace.all.Add(1)
		}
		t.budget.forPlace.now.Add(1)
		defer t.budget.forPlace.now.Add(-1)
		select {
		case own <- struct{}{}:
			taken = append(taken, own)
			return true
		case place <- struct{}{}:
			taken = append(taken, place)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return false
	}
	if t.granted != nil {
		take(t.granted, nil)
	}
	isOwn := false
	if err == nil && slow {
		isOwn = take(t.budget.slow, t.own)
	}
	if err == nil && !isOwn && take(t.budget.places, t.own) && slow {
		<-t.budget.slow // it has its own place instead
		taken = slices.DeleteFunc(taken, func(place chan struct{}) bool { return place == t.budget.slow })
	}
	if err != nil {
		giveBack()
		return nil, err
	}
	t.budget.taken.Add(1)
	return func() {
		t.budget.taken.Add(-1)
		giveBack()
	}, nil
}

// load waits for the memory that a load of code takes: the code is copied a few times on its way
// from the server to a child. leave gives it back.
func (b *budget) load(ctx context.Context, size int) (leave func(), err error) {
	const copies = 4
	n := min(copies*int64(size), b.memory/4)
	if !b.loads.TryAcquire(n) {
		defer b.forMemory.begin()()
		if err := b.loads.Acquire(ctx, n); err != nil {
			return nil, fmt.Errorf("no memory for the code: %w", err)
		}
	}
	return func() { b.loads.Release(n) }, nil
}

// cacheRoom bounds the stored values that one slot keeps in memory: all slots together keep a
// quarter of the memory beside it.
func (b *budget) cacheRoom() int {
	return int(min(maxCache, b.memory/4/max(1, b.slots.Load())))
}

// isFull reports whether what is held is more than its part of the memory.
func (b *budget) isFull() bool { return b.held.Load() > b.memory/4 }

// account is what a slot holds.
type account struct {
	budget *budget
	less   fsm.Wake // what a message has produced is less

	mu       sync.Mutex // guards everything below
	held     int64
	staged   int64 // of held: effects that are not committed
	unsent   int64 // of held: outputs that are not sent
	unstored int64 // of held: committed values that are not on their subjects
	closed   bool
}

func (b *budget) open() *account {
	b.slots.Add(1)
	return &account{budget: b, less: fsm.NewWake()}
}

// close gives back what the account has.
func (a *account) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		a.budget.held.Add(-a.held)
		a.budget.slots.Add(-1)
	}
}

// add counts bytes of messages that wait. A negative number gives them back.
func (a *account) add(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addLocked(n)
}

func (a *account) addLocked(n int64) {
	if !a.closed {
		a.held += n
		a.budget.held.Add(n)
	}
}

// stage counts bytes of effects until they are committed.
func (a *account) stage(n int64) { a.produce(&a.staged, n) }

// send counts bytes of outputs until they are sent.
func (a *account) send(n int64) { a.produce(&a.unsent, n) }

// store counts bytes of values until they are on their subjects.
func (a *account) store(n int64) { a.produce(&a.unstored, n) }

// produce counts bytes that a message has produced.
func (a *account) produce(part *int64, n int64) {
	a.mu.Lock()
	a.addLocked(n)
	*part += n
	a.mu.Unlock()
	if n < 0 {
		a.less.Notify()
	}
}

// maxProduced is how much a slot may have produced before its next message is handled.
const maxProduced = 4 << 20

// hasRoom reports whether the next message of the slot may be handled. While the budget is full, that is
// one at a time, and none while the slot has more than its part of outputs and values to write.
func (a *account) hasRoom() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	produced := a.staged + a.unsent
	return produced+a.unstored == 0 || produced <= maxProduced &&
		(!a.budget.isFull() || a.staged == 0 && a.unsent+a.unstored <= int64(a.budget.cacheRoom()))
}

// isEmpty reports whether the server has everything that was produced. The log has the values.
func (a *account) isEmpty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.staged+a.unsent == 0
}

// lookAgain is how often a slot that waits looks whether there is room.
const lookAgain = 250 * time.Millisecond

// await waits until cond returns true. It returns ctx's cause when ctx ends first.
func (a *account) await(ctx context.Context, cond func() bool) error {
	if cond() {
		return nil
	}
	defer a.budget.forMemory.begin()()
	for !cond() {
		select {
		case <-a.less:
		case <-time.After(lookAgain): // other slots may have made room
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
