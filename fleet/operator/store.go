package operator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// storing is an area that knows where the fleet is stored: FromPresence returns one.
type storing interface {
	streams(ctx context.Context) ([]presence.Stream, error)
	checkWrites(ctx context.Context) error
}

func (a fleet) streams(ctx context.Context) ([]presence.Stream, error) { return a.f.Streams(ctx) }

func (a fleet) checkWrites(ctx context.Context) error { return a.f.CheckWrites(ctx) }

// Times of the looks at the store.
const (
	storeEvery  = 5 * time.Second  // between two looks
	storeTime   = 5 * time.Second  // for one look
	missingTime = 10 * time.Second // a server that has just started may not know all of its streams yet
	lostShown   = 24 * time.Hour   // how long a loss is shown
	stallTime   = 2 * time.Minute  // a consumer that finishes nothing for this long stands still
	growWindow  = 30 * time.Second // the least that a consumer had left in each of these
	growWindows = 4                // has grown so many times in a row,
	growLeast   = 20               // by so many messages in all: its backlog grows
)

// store looks at the streams of the fleet at regular times, and remembers what it needs to say
// what has changed: which were lost, which consumers stand still, and which backlogs grow. It does not
// know what happened before the server started.
type store struct {
	area storing
	away func() bool // reports whether a dependency is away

	mu      sync.Mutex // guards the fields below
	known   map[string]*knownStream
	lost    []diagnosis.Lost
	looks   int
	listErr error // of the last look
	refused error // why the last write was refused
	since   time.Time
}

// knownStream is a stream as it was when it was seen last.
type knownStream struct {
	presence.Stream
	first     time.Time // when it was seen first
	missing   time.Time // since when it is missing, zero when it is there
	lost      bool      // that it is missing is noted
	consumers map[string]*knownConsumer
}

// knownConsumer is what is remembered of a consumer.
type knownConsumer struct {
	floor  uint64
	left   uint64    // messages that were not finished at the last look
	moved  time.Time // when it has finished a message, or had none to finish
	lows   []uint64  // the least that was left in each window, the latest last
	window time.Time // when the latest began
}

func newStore(area Processes, away func() bool) *store {
	w := &store{away: away, known: map[string]*knownStream{}}
	w.area, _ = area.(storing)
	return w
}

// run looks until ctx ends, unless the area does not know where it is stored.
func (w *store) run(ctx context.Context) {
	if w.area == nil {
		return
	}
	every(ctx, storeEvery, func() {
		if !w.away() {
			w.look(ctx)
		}
	})
}

// look looks at all streams, and finds out whether a write is taken.
func (w *store) look(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	list, listErr := w.area.streams(within)
	writing, end := context.WithTimeout(ctx, storeTime)
	defer end()
	refused := w.area.checkWrites(writing)
	if ctx.Err() != nil || w.away() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	w.listErr = listErr
	if refused != nil && w.refused == nil {
		w.since = time.Now()
	}
	w.refused = refused
	if listErr == nil {
		w.noteLocked(list, time.Now())
	}
}

// noteLocked compares the streams that there are with the ones that there were.
func (w *store) noteLocked(list []presence.Stream, now time.Time) {
	there := map[string]bool{}
	for _, s := range list {
		there[s.Name] = true
		old := w.known[s.Name]
		if old == nil {
			old = &knownStream{first: now}
			w.known[s.Name] = old
		} else if !old.Made.Equal(s.Made) && old.OnDisk && !old.lost {
			w.loseLocked(old, now)
		}
		old.Stream, old.missing, old.lost = s, time.Time{}, false
		old.noteConsumers(now)
	}
	for name, s := range w.known {
		switch {
		case there[name]:
		case !s.OnDisk, !s.missing.IsZero() && now.Sub(s.missing) > lostShown:
			delete(w.known, name) // a server that starts again has lost what was in memory, as it should
		case s.missing.IsZero():
			s.missing = now
		case now.Sub(s.missing) >= missingTime && !s.lost:
			s.lost = true
			w.loseLocked(s, s.missing)
		}
	}
	w.lost = slices.DeleteFunc(w.lost, func(l diagnosis.Lost) bool { return now.Sub(l.Since) > lostShown })
}

// loseLocked notes that a stream, as it was, is lost.
func (w *store) loseLocked(s *knownStream, at time.Time) {
	w.lost = append(w.lost, diagnosis.Lost{Stream: s.Name, Messages: s.Messages, Since: at})
}

// lostLocked returns what was lost, the largest first, and whether that is all that was on disk.
func (w *store) lostLocked() (list []diagnosis.Lost, isAll bool) {
	first := time.Now()
	names := map[string]bool{}
	for _, l := range w.lost {
		names[l.Stream] = true
		l.Missing = w.known[l.Stream] != nil && w.known[l.Stream].lost
		list = append(list, l)
		if l.Since.Before(first) {
			first = l.Since
		}
	}
	isAll = len(list) > 0
	for name, s := range w.known {
		if s.OnDisk && s.first.Before(first) && !names[name] {
			isAll = false
		}
	}
	if !isAll { // a stream that was made anew and had nothing is not a loss when there are several
		list = slices.DeleteFunc(list, func(l diagnosis.Lost) bool { return l.Messages == 0 && !l.Missing })
	}
	slices.SortFunc(list, func(a, b diagnosis.Lost) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Stream, b.Stream))
	})
	return list, isAll
}

// noteConsumers compares the consumers that there are with the ones that there were.
func (s *knownStream) noteConsumers(now time.Time) {
	before := s.consumers
	s.consumers = make(map[string]*knownConsumer, len(s.Consumers))
	for _, c := range s.Consumers {
		left := c.Pending + uint64(max(0, c.InHand))
		k := before[c.Name]
		if k == nil {
			k = &knownConsumer{moved: now}
		}
		failsAgain := c.Again > 0 && c.Host == "" // the same messages, while no other waits; those of a host become dead letters
		hasNothingToDo := c.Pending == 0 && !failsAgain || c.Paused
		if hasFinishedSome := c.Floor != k.floor || left < k.left; hasNothingToDo || hasFinishedSome {
			k.moved = now
		}
		k.floor, k.left = c.Floor, left
		if now.Sub(k.window) >= growWindow {
			k.window = now
			k.lows = append(k.lows, left)
			k.lows = k.lows[max(0, len(k.lows)-growWindows-1):]
		}
		latest := &k.lows[len(k.lows)-1]
		*latest = min(*latest, left)
		s.consumers[c.Name] = k
	}
}

// growth returns the least that was left in the first window, and whether it has grown in each since.
// A consumer that catches up between two bursts has little left in each window.
func (k *knownConsumer) growth() (from uint64, grows bool) {
	if len(k.lows) <= growWindows {
		return 0, false
	}
	for i := range k.lows[1:] {
		if k.lows[i+1] <= k.lows[i] {
			return 0, false
		}
	}
	from = k.lows[0]
	return from, k.lows[growWindows]-from >= growLeast
}

// facts returns what the rules look at, how many streams there are, and why they could not be
// looked at. looked is false for a server that does not look at any.
func (w *store) facts() (f diagnosis.Store, streams int, looked bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks == 0 {
		return f, 0, false, nil
	}
	now := time.Now()
	if w.refused != nil {
		f.Refused, f.RefusedSince = w.refused.Error(), w.since
	}
	f.Lost, f.Replaced = w.lostLocked()
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		s := w.known[name]
		if !s.missing.IsZero() {
			continue
		}
		streams++
		if s.Refuses {
			f.Full = append(f.Full, filled(s.Stream)...)
		}
		for _, c := range s.Consumers {
			k := s.consumers[c.Name]
			backlog := diagnosis.Backlog{
				Stream:         name,
				Consumer:       c.Name,
				Host:           c.Host,
				Left:           k.left,
				Unacknowledged: c.InHand,
				Redelivered:    c.Again,
				Since:          k.moved,
			}
			from, grows := k.growth()
			switch {
			case now.Sub(k.moved) >= stallTime:
				f.Stalled = append(f.Stalled, backlog)
			case grows:
				backlog.From, backlog.Since = from, now.Add(-growWindows*growWindow)
				f.Growing = append(f.Growing, backlog)
			}
		}
	}
	return f, streams, true, w.listErr
}

// filled returns the limit of a stream that is nearly or wholly used up.
func filled(s presence.Stream) []diagnosis.Full {
	const share = 0.9
	switch {
	case s.MaxBytes > 0 && float64(s.Bytes) >= share*float64(s.MaxBytes):
		return []diagnosis.Full{{Stream: s.Name, What: "bytes", Used: int64(s.Bytes), Most: s.MaxBytes}}
	case s.MaxMessages > 0 && float64(s.Messages) >= share*float64(s.MaxMessages):
		return []diagnosis.Full{{Stream: s.Name, What: "messages", Used: int64(s.Messages), Most: s.MaxMessages}}
	}
	return nil
}
