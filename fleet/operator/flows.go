package operator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// flows watches the entities of all workflows, and knows which ones are stuck in a
// phase and which are written again and again.
type flows struct {
	s    *Server
	stop context.CancelFunc
	wait sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	types  map[string]*flow
	closed bool
}

// flow is one type of workflow.
type flow struct {
	brief *feed.Feed[brief]
	whole *feed.Feed[*operatorv1.Entity] // read while a client watches the entities

	mu     sync.Mutex        // guards writes
	writes map[string]writes // by id
}

// writes counts the writes of one entity within the minute that begins at begin.
type writes struct {
	begin  time.Time
	n      int
	before int // writes in the minute before
}

// brief has the few fields of an entity that a flow and the live pages need. Whole entities are
// kept only while a client watches them: a hundred thousand take hundreds of megabytes.
type brief struct {
	phase string
	since int64 // when it was first seen in the phase, in nanoseconds since 1970
	over  bool  // in a terminal phase, or degraded
}

func briefOf(e *operatorv1.Entity) brief {
	return brief{
		phase: unique.Make(e.GetPhase()).Value(),
		since: e.GetUpdatedAt().AsTime().UnixNano(),
		over:  e.GetTerminal() || e.GetDegraded() != "",
	}
}

func newFlows(s *Server) *flows {
	ctx, cancel := context.WithCancel(context.Background())
	f := &flows{s: s, stop: cancel, types: map[string]*flow{}}
	if s.cfg.Workflows != nil {
		f.wait.Go(func() { f.run(ctx) })
	}
	return f
}

func (f *flows) close() {
	f.stop()
	f.wait.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, o := range f.types {
		o.close()
	}
}

func (o *flow) close() {
	o.brief.Close()
	o.whole.Close()
}

// run finds new types once a minute, and soon after the start.
func (f *flows) run(ctx context.Context) {
	for pause := time.Second; ; pause = time.Minute {
		within, cancel := context.WithTimeout(ctx, f.s.cfg.Timeout)
		defs, err := f.s.cfg.Workflows.Definitions(within)
		cancel()
		if err != nil {
			pause = time.Second
		}
		for _, d := range defs {
			f.flow(d.GetType())
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
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
	o := &flow{writes: map[string]writes{}}
	area, failed := f.s.cfg.Workflows, f.s.watchFailed("the workflow "+typ)
	o.brief = feed.New(func(ctx context.Context, to Sink[brief]) error {
		return area.Watch(ctx, typ, stream.Convert(to, briefOf))
	}, feed.Options[brief]{Retry: feedRetry, Always: true, Failed: failed, Merge: o.merge})
	o.whole = feed.New(func(ctx context.Context, to Sink[*operatorv1.Entity]) error {
		return area.Watch(ctx, typ, to)
	}, feed.Options[*operatorv1.Entity]{Retry: feedRetry, Failed: failed})
	f.types[typ] = o
	if f.closed {
		o.close()
	}
	return o
}

// merge counts a write of an entity that existed before.
func (o *flow) merge(id string, old brief, known bool, new brief) (brief, bool) {
	if !known {
		return new, true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.countLocked(id, time.Now())
	if old.phase == new.phase && old.over == new.over {
		new.since = old.since
	}
	return new, true
}

// maxWritten is how many entities may be counted before entities without recent writes are
// forgotten.
const maxWritten = 16_384

func (o *flow) countLocked(id string, now time.Time) {
	w, ok := o.writes[id]
	switch {
	case !ok && len(o.writes) > maxWritten:
		maps.DeleteFunc(o.writes, func(_ string, w writes) bool { return now.Sub(w.begin) > 2*time.Minute })
		w.begin = now
	case !ok, now.Sub(w.begin) > 2*time.Minute:
		w = writes{begin: now}
	case now.Sub(w.begin) > time.Minute:
		w = writes{begin: now, before: w.n}
	}
	w.n++
	o.writes[id] = w
}

// ages describes how long entities have been in each phase that is not terminal.
func (o *flow) ages(stuckAfter time.Duration) (list []dashboard.Age) {
	now := time.Now()
	stuck := now.Add(-stuckAfter).UnixNano()
	phases, since := map[string]*dashboard.Age{}, map[string][]int64{}
	o.brief.Each(func(id string, e brief) {
		if e.over {
			return
		}
		a := phases[e.phase]
		if a == nil {
			a = &dashboard.Age{Phase: e.phase, Oldest: id, Since: time.Unix(0, e.since)}
			phases[e.phase] = a
		}
		if a.Count++; e.since < a.Since.UnixNano() {
			a.Oldest, a.Since = id, time.Unix(0, e.since)
		}
		if e.since <= stuck {
			a.Stuck++
		}
		since[e.phase] = append(since[e.phase], e.since)
	})
	for _, phase := range slices.Sorted(maps.Keys(phases)) {
		all := since[phase]
		slices.Sort(all)
		phases[phase].Median = max(0, now.Sub(time.Unix(0, all[len(all)/2])))
		list = append(list, *phases[phase])
	}
	return list
}

// maxNamed is how many hot entities one type may have in a diagnosis.
const maxNamed = 5

// look returns the stuck phases and the hot entities of all types.
func (f *flows) look(stuckAfter time.Duration, hotWrites int) (stuck []diagnosis.Stuck, hot []diagnosis.Hot) {
	f.mu.Lock()
	types := maps.Clone(f.types)
	f.mu.Unlock()
	for typ, o := range types {
		for _, a := range o.ages(stuckAfter) {
			if a.Stuck > 0 {
				stuck = append(stuck, diagnosis.Stuck{
					Type:  typ,
					Phase: a.Phase,
					ID:    a.Oldest,
					Since: a.Since,
					Count: a.Stuck,
					Limit: stuckAfter,
				})
			}
		}
		hot = append(hot, o.hot(typ, hotWrites)...)
	}
	return stuck, hot
}

// hot returns the entities that were written most often within a minute.
func (o *flow) hot(typ string, hotWrites int) (list []diagnosis.Hot) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, w := range o.writes {
		if n := max(w.n, w.before); n >= hotWrites && now.Sub(w.begin) <= 2*time.Minute {
			list = append(list, diagnosis.Hot{Type: typ, ID: id, Since: w.begin, Writes: n})
		}
	}
	slices.SortFunc(list, func(a, b diagnosis.Hot) int { return cmp.Compare(b.Writes, a.Writes) })
	return list[:min(len(list), maxNamed)]
}
