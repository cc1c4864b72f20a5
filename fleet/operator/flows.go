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
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
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

// written counts the writes of each entity.
type written struct {
	mu    sync.Mutex // guards the fields below
	ofID  map[string]minutes
	swept time.Time // when entities without recent writes were last forgotten
}

// minutes counts the writes of one entity within the minute that begins at begin.
type minutes struct {
	begin  time.Time
	n      int
	before int // writes in the minute before
}

// maxWritten is how many entities may be counted before entities without recent writes are
// forgotten.
const maxWritten = 16_384

func (w *written) count(id string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ofID == nil {
		w.ofID = map[string]minutes{}
	}
	m, isKnown := w.ofID[id]
	if !isKnown && len(w.ofID) >= maxWritten {
		if now.Sub(w.swept) >= time.Second { // a sweep looks at all of them
			w.swept = now
			maps.DeleteFunc(w.ofID, func(_ string, m minutes) bool { return now.Sub(m.begin) > 2*time.Minute })
		}
		if len(w.ofID) >= maxWritten {
			return // as while many entities are created: none of them is hot
		}
	}
	switch age := now.Sub(m.begin); {
	case age > 2*time.Minute:
		m = minutes{begin: now}
	case age > time.Minute:
		m = minutes{begin: now, before: m.n}
	}
	m.n++
	w.ofID[id] = m
}

// maxNamed is how many hot entities one type may have in a diagnosis.
const maxNamed = 5

// hot returns the entities that were written most often within a minute.
func (w *written) hot(typ string, least int) (list []diagnosis.Hot) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, m := range w.ofID {
		if n := max(m.n, m.before); n >= least && now.Sub(m.begin) <= 2*time.Minute {
			list = append(list, diagnosis.Hot{Type: typ, ID: id, Since: m.begin, Writes: n})
		}
	}
	slices.SortFunc(list, func(a, b diagnosis.Hot) int { return cmp.Compare(b.Writes, a.Writes) })
	return list[:min(len(list), maxNamed)]
}
