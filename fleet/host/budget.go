package host

import (
	"cmp"
	"container/list"
	"context"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// budget is what a host has for its workers: places in which children handle messages, and
// memory. A message is handled when there is a place, and memory for the most that it may
// produce. What it has produced counts until the server has it.
//
//   - While others have workers on the host, a tenant leaves each of them a place, and the
//     memory of two messages, that it may take at once.
//   - A tenant has at most half of the memory while others have workers here, or what is granted.
//   - Messages that wait count for at most a quarter of that: what counts in full always ends.
//   - Tenants that wait take turns, those with fewer places first, and so do the workers of each.
//   - A worker whose last message took long, or that has had none here, gets no more than half of
//     the places.
type budget struct {
	places int
	memory int64
	floor  int64 // of each tenant: the memory of two messages

	mu      sync.Mutex // guards everything below
	tenants map[string]*tenantBudget
	taken   int // places
	slow    int // places that slow workers have
	used    int64
	turn    uint64
	waits   Waits
}

// Waits says what messages wait for, and for how many there was nothing at once until now.
type Waits struct {
	ForPlace, ForMemory     int
	ForPlaces, ForMemories  uint64
	Memory, UsedMemory      int64 // the budget, and what is taken of it
	MostPlaces, TakenPlaces int
}

// tenantBudget is the part of a tenant. The budget's mutex guards its fields.
type tenantBudget struct {
	accounts int
	places   int   // granted; 0 for no limit of its own
	memory   int64 // granted; 0 is half
	taken    int
	used     int64        // reserved for messages that are handled, or produced by them
	unread   int64        // messages that wait
	turn     uint64       // when it last took a place
	waiting  [2]list.List // of *waiter: quick, and slow
	over     atomic.Bool
}

// account is the part of a slot. Its zero value counts nothing.
type account struct {
	budget *budget
	tenant *tenantBudget
	name   string
	used   int64
	unread int64
	closed bool
}

// waiter is a message, or a load, that waits.
type waiter struct {
	account *account
	place   bool
	slow    bool
	memory  int64
	ticket  uint64 // later waiters have greater ones
	at      *list.Element
	lacks   *int // the count that has it; nil while it has not had to wait
	entered chan struct{}
}

// newBudget returns the budget of a configuration with its defaults.
func newBudget(cfg *Config) *budget {
	floor := 2 * cfg.memoryOf(cfg.Limits, cfg.MaxMessage, true)
	return &budget{
		places:  cfg.MaxHandlers,
		memory:  max(cmp.Or(cfg.MemoryBudget, defaultMemory()), floor),
		floor:   floor,
		tenants: make(map[string]*tenantBudget),
	}
}

// memoryOf returns the most that the host holds while it handles a message of so many bytes.
func (c *Config) memoryOf(l engine.Limits, message int, sendsHTTP bool) int64 {
	most := isolate.Holds(engine.Config{Limits: l, MaxCall: c.maxCall()}) +
		effects.MaxStateBytes + effects.MaxTimersOfKey*engine.MaxTimerData + 4*int64(message)
	if sendsHTTP {
		most += 3 * int64(c.HTTP.WithDefaults().MaxResponse)
	}
	return most
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

// open returns an account of the tenant of a record.
func (h *Host) open(r *Record, name string) *account {
	return h.budget.open(r.Tenant, name, h.bounds(r.Tenant))
}

// Waits says what messages and loads wait for on this host.
func (h *Host) Waits() Waits { return h.budget.now() }

// open returns an account of a tenant. Close it.
func (b *budget) open(tenant, name string, granted Grant) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tenants[tenant]
	if t == nil {
		t = &tenantBudget{places: granted.Handlers, memory: granted.Memory}
		b.tenants[tenant] = t
	}
	t.accounts++
	return &account{budget: b, tenant: t, name: name}
}

// close gives back what the account has.
func (a *account) close() {
	b, t := a.budget, a.tenant
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	t.unread -= a.unread
	b.countLocked(t, -a.used)
	t.accounts--
	for name, other := range b.tenants {
		if other.accounts == 0 && other.taken == 0 && other.used == 0 {
			delete(b.tenants, name)
		}
	}
	b.admitLocked()
}

// add counts memory that a message has produced, without waiting: the place of the message has
// reserved it. A negative number gives memory back.
func (a *account) add(n int64) {
	if a == nil || n == 0 {
		return
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed {
		return
	}
	a.used += n
	b.countLocked(a.tenant, n)
	if n < 0 {
		b.admitLocked()
	}
}

// addUnread counts memory of messages that wait.
func (a *account) addUnread(n int64) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed {
		return
	}
	a.unread += n
	a.tenant.unread += n
	b.judgeLocked(a.tenant)
	if n < 0 {
		b.admitLocked()
	}
}

// hasRoomToRead reports whether the slot may ask for many messages. Messages that wait have at
// most a quarter of the memory. A slot without any may always ask for one.
func (a *account) hasRoomToRead() bool {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	return a.tenant.unread < b.limitLocked(a.tenant)/4
}

// awaitLimit waits while the tenant has more memory than its limit.
func (a *account) awaitLimit(ctx context.Context) error {
	if !a.tenant.over.Load() {
		return nil
	}
	leave, err := a.enter(ctx, waiter{})
	if err == nil {
		leave()
	}
	return err
}

// enter waits for what w wants. leave gives it back.
func (a *account) enter(ctx context.Context, w waiter) (leave func(), err error) {
	w.account, w.entered = a, make(chan struct{})
	b := a.budget
	b.mu.Lock()
	b.turn++
	w.ticket, w.at = b.turn, a.tenant.queue(&w).PushBack(&w)
	b.admitLocked()
	if !isClosed(w.entered) {
		b.noteWaitLocked(&w)
	}
	b.mu.Unlock()
	select {
	case <-w.entered:
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		if isClosed(w.entered) {
			b.leaveLocked(&w)
		} else {
			b.forgetLocked(&w)
			b.admitLocked()
		}
		return nil, context.Cause(ctx)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.leaveLocked(&w)
	}, nil
}

func (b *budget) leaveLocked(w *waiter) {
	t := w.account.tenant
	b.countLocked(t, -w.memory)
	if w.place {
		b.taken--
		t.taken--
		if w.slow {
			b.slow--
		}
	}
	b.admitLocked()
}

// countLocked changes what a tenant has.
func (b *budget) countLocked(t *tenantBudget, n int64) {
	b.used += n
	t.used += n
	b.judgeLocked(t)
}

// judgeLocked notes whether a tenant has more than its limit.
func (b *budget) judgeLocked(t *tenantBudget) {
	t.over.Store(t.used > b.limitLocked(t)-b.unreadLocked(t))
}

// limitLocked returns the most memory of a tenant.
func (b *budget) limitLocked(t *tenantBudget) int64 {
	switch {
	case t.memory > 0:
		return max(t.memory, b.floor)
	case len(b.tenants) > 1:
		return max(b.memory/2, b.floor)
	}
	return b.memory
}

// admitLocked lets waiters in, until the next one of each tenant has to wait.
func (b *budget) admitLocked() {
	for {
		var next *waiter
		for _, t := range b.tenants {
			w := b.firstLocked(t)
			if w == nil || !b.hasPlaceLocked(w) || !b.hasMemoryLocked(w) {
				continue
			}
			if next == nil || t.isBefore(next.account.tenant) {
				next = w
			}
		}
		if next == nil {
			return
		}
		b.takeLocked(next)
	}
}

// isBefore reports whether t gets a place before other.
func (t *tenantBudget) isBefore(other *tenantBudget) bool {
	return cmp.Or(cmp.Compare(t.taken, other.taken), cmp.Compare(t.turn, other.turn)) < 0
}

// firstLocked returns the waiter of a tenant that is next, nil when there is none.
func (b *budget) firstLocked(t *tenantBudget) *waiter {
	var first *waiter
	for i := range t.waiting {
		front := t.waiting[i].Front()
		if front == nil {
			continue
		}
		w := front.Value.(*waiter) //nolint:errcheck,forcetypeassert // the list has nothing else
		hasTurn := !w.slow || t.taken == 0 || b.slow < max(1, b.places/2)
		if hasTurn && (first == nil || w.ticket < first.ticket) {
			first = w
		}
	}
	return first
}

func (b *budget) hasPlaceLocked(w *waiter) bool {
	t, free := w.account.tenant, b.places-b.taken
	switch {
	case !w.place:
		return true
	case free <= 0 || t.places > 0 && t.taken >= t.places:
		return false
	case t.taken == 0:
		return true
	}
	for _, other := range b.tenants {
		if other.taken == 0 && other.accounts > 0 && other != t {
			free-- // it is left to that one
		}
	}
	return free > 0
}

func (b *budget) hasMemoryLocked(w *waiter) bool {
	t := w.account.tenant
	own := t.used + w.memory
	switch {
	case own <= b.floor:
		return true
	case own > b.limitLocked(t)-b.unreadLocked(t):
		return t.used == 0 // it could never enter otherwise
	}
	free := b.memory - b.used - w.memory
	for _, other := range b.tenants {
		free -= b.unreadLocked(other)
		if other != t && other.accounts > 0 {
			free -= max(0, b.floor-other.used)
		}
	}
	return free >= 0
}

// unreadLocked returns the memory for which the waiting messages of a tenant count.
func (b *budget) unreadLocked(t *tenantBudget) int64 { return min(t.unread, b.limitLocked(t)/4) }

// takeLocked lets w in.
func (b *budget) takeLocked(w *waiter) {
	t := w.account.tenant
	b.forgetLocked(w)
	b.countLocked(t, w.memory)
	if w.place {
		b.taken++
		t.taken++
		b.turn++
		t.turn = b.turn
		if w.slow {
			b.slow++
		}
	}
	close(w.entered)
}

// forgetLocked takes w out of those that wait.
func (b *budget) forgetLocked(w *waiter) {
	w.account.tenant.queue(w).Remove(w.at)
	if w.lacks != nil {
		*w.lacks--
	}
}

// queue returns the queue of a waiter: the quick ones pass the slow ones.
func (t *tenantBudget) queue(w *waiter) *list.List {
	if w.slow {
		return &t.waiting[1]
	}
	return &t.waiting[0]
}

// noteWaitLocked counts w among those that wait.
func (b *budget) noteWaitLocked(w *waiter) {
	if b.hasPlaceLocked(w) && b.firstLocked(w.account.tenant) == w {
		w.lacks = &b.waits.ForMemory
		b.waits.ForMemories++
	} else {
		w.lacks = &b.waits.ForPlace
		b.waits.ForPlaces++
	}
	*w.lacks++
}

// now returns what waits now.
func (b *budget) now() Waits {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits
	w.Memory, w.UsedMemory, w.MostPlaces, w.TakenPlaces = b.memory, b.used, b.places, b.taken
	for _, t := range b.tenants {
		w.UsedMemory += t.unread
	}
	return w
}

// cacheRoom bounds the stored values that one slot keeps in memory: all slots together keep a
// quarter of the budget beside it.
func (b *budget) cacheRoom() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	slots := int64(0)
	for _, t := range b.tenants {
		slots += int64(t.accounts)
	}
	return min(maxCache, b.memory/4/max(1, slots))
}
