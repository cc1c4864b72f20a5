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
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// flows watches the entities of all workflows.
type flows struct {
	s *Server

	mu     sync.Mutex // guards the fields below
	types  map[string]*flow
	closed bool
}

// flow is one type of workflow.
type flow struct {
	changes *feed.Feed[struct{}]           // one key, which changes with every entity
	whole   *feed.Feed[*operatorv1.Entity] // read while a client watches: entities may take much memory
	written written
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
	o.changes.Close()
	o.whole.Close()
}

// typesEvery is how often run looks for new types.
const typesEvery = 10 * time.Second

// run finds new types until ctx ends.
func (f *flows) run(ctx context.Context) {
	if f.s.cfg.Workflows == nil {
		return
	}
	look := time.NewTicker(typesEvery)
	defer look.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, f.s.cfg.Timeout)
		defs, _ := f.s.cfg.Workflows.Definitions(within) // after an error it looks again
		cancel()
		for _, d := range defs {
			f.flow(d.GetType())
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// flow returns the flow of a type that exists. It is watched until the server is closed.
func (f *flows) flow(typ string) *flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.types[typ]; o != nil {
		return o
	}
	o := new(flow)
	area, failed := f.s.cfg.Workflows, f.s.watchFailed("the workflow "+typ)
	o.changes = feed.New(func(ctx context.Context, to Sink[struct{}]) error {
		return area.Watch(ctx, typ, o.watcher(to))
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
func (s *Server) ages(ctx context.Context, typ string) (list []dashboard.Age) {
	counts, _ := s.cfg.Workflows.Counts(ctx, typ, s.cfg.StuckAfter)
	for _, c := range counts {
		list = append(list, dashboard.Age{
			Phase:  c.Phase,
			Count:  c.Entities,
			Oldest: c.OldestID,
			Since:  c.Oldest,
			Median: max(0, time.Since(c.Median)),
			Stuck:  c.Stuck,
		})
	}
	return list
}

// watcher counts the writes of a watch, and passes on that something has changed.
func (o *flow) watcher(to Sink[struct{}]) Sink[*operatorv1.Entity] {
	isSynced := false
	return func(it stream.Item[*operatorv1.Entity]) {
		switch it.Kind {
		case stream.Synced:
			isSynced = true
			to.Sync()
		case stream.Gap:
			isSynced = false
			to.Gap()
		case stream.Put, stream.Deleted:
			if isSynced && it.Kind == stream.Put {
				o.written.count(it.Key, time.Now())
			}
			to.Put("", struct{}{})
		}
	}
}

// written counts how often each entity is written within a minute.
type written struct {
	mu     sync.Mutex // guards the fields below
	begin  time.Time  // of the present minute
	now    map[string]int
	before map[string]int // in the minute before
}

func (w *written) count(id string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnLocked(now)
	w.now[id]++
}

// turnLocked begins a new minute when the present one is over.
func (w *written) turnLocked(now time.Time) {
	age := now.Sub(w.begin)
	if age < time.Minute {
		return
	}
	if w.before = w.now; age >= 2*time.Minute {
		w.before = nil
	}
	w.begin, w.now = now, map[string]int{}
}

// maxNamed is how many hot entities one type may have in a diagnosis.
const maxNamed = 5

// hot returns the entities that were written most often within this minute or the one before.
func (w *written) hot(typ string, least int) (list []diagnosis.Hot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnLocked(time.Now())
	most := maps.Clone(w.now)
	for id, n := range w.before {
		most[id] = max(most[id], n)
	}
	for id, n := range most {
		if n >= least {
			list = append(list, diagnosis.Hot{Type: typ, ID: id, Since: w.begin, Writes: n})
		}
	}
	slices.SortFunc(list, func(a, b diagnosis.Hot) int { return cmp.Compare(b.Writes, a.Writes) })
	return list[:min(len(list), maxNamed)]
}
