package operator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// flows watches the entities of workflows, of a type from the first question about it on.
type flows struct {
	s *Server

	mu     sync.Mutex // guards the fields below
	types  map[string]*flow
	closed bool
}

// flow is one type of workflow.
type flow struct {
	whole    *feed.Feed[*operatorv1.Entity] // read while a client watches: entities may take much memory
	counting *feed.Feed[struct{}]           // has no values: it only fills written
	written  written
}

func (f *flows) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, o := range f.types {
		o.close()
	}
}

func (o *flow) close() {
	o.counting.Close()
	o.whole.Close()
}

// flow returns the flow of a type that exists. Its writes are counted until the server is closed.
func (f *flows) flow(typ string) *flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.types[typ]; o != nil {
		return o
	}
	o := new(flow)
	area, failed := f.s.cfg.Workflows, f.s.watchFailed("the workflow "+typ)
	o.counting = feed.New(func(ctx context.Context, _ Sink[struct{}]) error {
		return area.Watch(ctx, typ, o.written.sink())
	}, feed.Options[struct{}]{Always: true, Failed: failed})
	o.whole = feed.New(func(ctx context.Context, to Sink[*operatorv1.Entity]) error {
		return area.Watch(ctx, typ, to)
	}, feed.Options[*operatorv1.Entity]{Failed: failed})
	f.types[typ] = o
	if f.closed {
		o.close()
	}
	return o
}

// ages returns how long the entities of a type have been in each phase, for a page, which leaves out
// what cannot be read now.
func (s *Server) ages(ctx context.Context, typ string) any {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	counts, _ := s.cfg.Workflows.Counts(ctx, typ, s.cfg.StuckAfter)
	return counts
}

// written counts the writes of each entity, by minutes of the clock.
type written struct {
	mu     sync.Mutex // guards the fields below
	minute time.Time  // when the present minute began
	now    map[string]int
	before map[string]int // of the minute before
}

// sink returns the sink of a watch, whose writes it counts once the watch has what there was.
func (w *written) sink() Sink[*operatorv1.Entity] {
	isSynced := false
	return func(it stream.Item[*operatorv1.Entity]) {
		switch it.Kind {
		case stream.Synced:
			isSynced = true
		case stream.Gap:
			isSynced = false
		case stream.Put:
			if isSynced {
				w.count(it.Key)
			}
		}
	}
}

func (w *written) count(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnLocked()
	w.now[id]++
}

// turnLocked begins a new minute when it is time.
func (w *written) turnLocked() {
	minute := time.Now().Truncate(time.Minute)
	if minute.Equal(w.minute) {
		return
	}
	w.before = nil
	if minute.Sub(w.minute) == time.Minute {
		w.before = w.now
	}
	w.minute, w.now = minute, map[string]int{}
}

// maxNamed is how many hot entities one type may have in a diagnosis.
const maxNamed = 5

// hot returns the entities that were written most often in the present minute or the one before.
func (w *written) hot(typ string, least int) (list []diagnosis.Hot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnLocked()
	counts := maps.Clone(w.now)
	for id, n := range w.before {
		counts[id] = max(counts[id], n)
	}
	for id, n := range counts {
		if n >= least {
			list = append(list, diagnosis.Hot{Type: typ, ID: id, Since: w.minute, Writes: n})
		}
	}
	slices.SortFunc(list, func(a, b diagnosis.Hot) int { return cmp.Compare(b.Writes, a.Writes) })
	return list[:min(len(list), maxNamed)]
}
