package fsm

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Event is one change of state of one life.
//
// The ID identifies a life. Kind and Name do not: two supervisors may each have a
// child "w", and a restarted child keeps its name. Within one life Seq is 1, 2,
// 3, … without a gap.
type Event struct {
	ID      uint64    // of the life, unique in this process; 0 only for a gap
	Parent  uint64    // the ID of the life that it belongs to, such as its supervisor's; 0 for none
	Attempt int       // the number of the run, from 1, in a life that runs again and again; 0 for a change of the life as a whole
	Kind    string    // "app", "worker", "probe", …
	Name    string    // the name within its kind; not unique
	Seq     uint64    // 1 for a life's first change, 2 for its second; for a gap the number of events lost
	From    string    // the state that the life left
	To      string    // the state that the life entered
	At      time.Time // when it changed
	Cause   error     // why; nil when no reason is known
}

// KindGap is the Kind of the event that takes the place of events that a slow
// reader has lost. Its Seq is their number.
const KindGap = "gap"

// IsGap reports whether e takes the place of lost events; Seq is their number.
func (e Event) IsGap() bool { return e.Kind == KindGap }

// ErrClosed is returned by [Subscription.Next] once the subscription is closed
// and all its events were read.
var ErrClosed = errors.New("fsm: subscription is closed")

// Dispatcher delivers the events of any number of machines to any number of
// readers. Each reader sees the events of one life in the order in which they
// happened, each once. A reader that is too slow loses the oldest ones, and a gap
// event ([KindGap]) tells it how many. A reader never delays a machine.
//
// The zero value is ready, starts nothing and needs no closing. All methods
// may be called concurrently.
type Dispatcher struct {
	owner atomic.Uint64 // the life that owns this dispatcher; 0 for none
	next  atomic.Pointer[Dispatcher]
	subs  atomic.Pointer[[]*Subscription] // replaced under mu, never changed in place

	mu sync.Mutex // held while subs is replaced
}

// hasReader reports whether an event that is published now would reach a reader. d may be
// nil.
func (d *Dispatcher) hasReader() bool {
	for n := d; n != nil; n = n.next.Load() {
		if n.subs.Load() != nil {
			return true
		}
	}
	return false
}

// publish fills in e.Parent and appends e to every reader's ring. Machines call it
// under their own lock, which keeps the events in order; it never waits for a
// reader.
func (d *Dispatcher) publish(e Event) {
	for n := d; n != nil; n = n.next.Load() {
		if owner := n.owner.Load(); owner != 0 && owner != e.ID {
			e.Parent = owner
			break
		}
	}
	for n := d; n != nil; n = n.next.Load() {
		subs := n.subs.Load()
		if subs == nil {
			continue
		}
		for _, s := range *subs {
			s.put(e)
		}
	}
}

// SetOwner sets the life that owns this dispatcher: id is its [Machine.ID], 0 for
// none. An event of another life passes one or more dispatchers; the owner of the
// first one that has an owner becomes its Parent. So a part belongs to the whole
// to which it forwards its events.
func (d *Dispatcher) SetOwner(id uint64) { d.owner.Store(id) }

// Forward also sends every event from now on to next, so that the readers of a
// whole get the events of its parts. A later call replaces an earlier one; nil
// ends the forwarding. Forward panics when dispatchers would forward in a circle.
func (d *Dispatcher) Forward(next *Dispatcher) {
	for n := next; n != nil; n = n.next.Load() {
		if n == d {
			panic("fsm: events are forwarded in a circle")
		}
	}
	d.next.Store(next)
}

// Subscribe returns a reader of all events from now on. The reader keeps at most
// buffer unread events, and at least 1.
func (d *Dispatcher) Subscribe(buffer int) *Subscription {
	s := &Subscription{from: d, limit: max(buffer, 1), wake: NewWake()}
	d.mu.Lock()
	defer d.mu.Unlock()
	var subs []*Subscription
	if now := d.subs.Load(); now != nil {
		subs = append(subs, *now...)
	}
	subs = append(subs, s)
	d.subs.Store(&subs)
	return s
}

// Listen calls fn with every event from now on, one at a time, in a goroutine of
// its own. A slow fn delays no machine: when there are more than buffer unread
// events, a gap event replaces the oldest. stop ends the calls. It returns when
// fn has got all events published before. stop may be called twice, but not from
// fn. A panic of fn ends the process, as on any goroutine of the program.
func (d *Dispatcher) Listen(buffer int, fn func(Event)) (stop func()) {
	s := d.Subscribe(buffer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range s.All(context.Background()) {
			fn(e)
		}
	}()
	return func() {
		s.Close()
		<-done
	}
}

func (d *Dispatcher) remove(s *Subscription) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.subs.Load()
	if now == nil {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(*now), func(other *Subscription) bool { return other == s })
	if len(kept) == 0 {
		d.subs.Store(nil)
		return
	}
	d.subs.Store(&kept)
}

// Subscription is one reader's place in the stream of events.
type Subscription struct {
	from  *Dispatcher
	limit int
	wake  Wake // there may be events to read

	mu     sync.Mutex // guards everything below
	ring   []Event    // grows up to limit; unread are count events from head on
	head   int
	count  int
	lost   uint64 // events dropped before the oldest unread one
	closed bool
}

func (s *Subscription) put(e Event) {
	s.mu.Lock()
	switch {
	case s.closed:
	case s.count < s.limit:
		if s.count == len(s.ring) {
			s.growLocked()
		}
		s.ring[(s.head+s.count)%len(s.ring)] = e
		s.count++
	default: // full: drop the oldest event
		s.ring[s.head] = e
		s.head = (s.head + 1) % len(s.ring)
		s.lost++
	}
	s.mu.Unlock()
	s.wake.Notify()
}

func (s *Subscription) growLocked() {
	bigger := make([]Event, min(max(2*len(s.ring), 8), s.limit))
	n := copy(bigger, s.ring[s.head:])
	copy(bigger[n:], s.ring[:s.head])
	s.ring, s.head = bigger, 0
}

// take returns the next event, if there is one.
func (s *Subscription) take() (e Event, ok, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost > 0 {
		e = Event{Kind: KindGap, Seq: s.lost, At: time.Now()}
		s.lost = 0
		return e, true, false
	}
	if s.count == 0 {
		return Event{}, false, s.closed
	}
	e = s.ring[s.head]
	s.ring[s.head] = Event{} // do not keep its Cause in memory
	s.head = (s.head + 1) % len(s.ring)
	s.count--
	return e, true, false
}

// Next waits for the next event and returns it. When ctx ends first, it returns
// ctx's error. When the subscription is closed and all its events were read, it
// returns [ErrClosed]. Only one goroutine may read a subscription at a time.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, closed := s.take()
		if ok {
			return e, nil
		}
		if closed {
			s.wake.Notify() // wake a later Next too
			return Event{}, ErrClosed
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// All yields the events until ctx ends or the subscription is closed.
func (s *Subscription) All(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for {
			e, err := s.Next(ctx)
			if err != nil || !yield(e) {
				return
			}
		}
	}
}

// Close ends the subscription. Events published before can still be read. A
// second call does nothing.
func (s *Subscription) Close() {
	s.from.remove(s)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wake.Notify()
}
