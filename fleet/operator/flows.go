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

// flows watches the entities of all workflows, and knows which ones are stuck in a
// phase and which are written again and again.
type flows struct {
	s    *Server
	stop context.CancelFunc
	wait sync.WaitGroup

	mu    sync.Mutex // guards types
	types map[string]*flow
}

// flow is one type of workflow.
type flow struct {
	mu     sync.Mutex      // guards the fields below
	living map[string]life // the entities that are not in a terminal phase
	writes map[string]*heat
	hour   [60]minute // by the minute of the hour
}

// minute counts the transitions of one minute, and those into a terminal phase.
type minute struct {
	at           int64 // minutes since 1970
	moved, ended int
}

// brief is what flows and pages need of an entity. A feed of whole entities is kept only
// while a client watches them: a hundred thousand are hundreds of megabytes.
type brief struct {
	phase string
	since int64 // in nanoseconds since 1970
	over  bool  // in a terminal phase, or degraded
}

// briefFeed returns the feed of a type in brief.
func (s *Server) briefFeed(typ string) *feed.Feed[brief] {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.briefs[typ]
	if f == nil {
		names := map[string]string{} // of the phases: each text once
		f = feed.New(func(ctx context.Context, to Sink[brief]) error {
			return s.cfg.Workflows.Watch(ctx, typ, stream.Convert(to, func(e *operatorv1.Entity) brief {
				phase, ok := names[e.GetPhase()]
				if !ok {
					phase = e.GetPhase()
					if len(names) < maxFields {
						names[phase] = phase
					}
				}
				return brief{phase, e.GetUpdatedAt().AsTime().UnixNano(), e.GetTerminal() || e.GetDegraded() != ""}
			}))
		}, feedRetry, feedLinger, s.restarts("the workflow "+typ))
		if s.closed {
			f.Close()
		}
		s.briefs[typ] = f
	}
	return f
}

type life struct {
	phase string
	since int64 // when it was first seen in the phase, in nanoseconds since 1970
}

// heat counts the writes of one entity within the minute that begins at begin.
type heat struct {
	begin time.Time
	n     int
	last  int // of the minute before
}

// newFlows returns nil for an area whose watch is not complete.
func newFlows(s *Server) *flows {
	if _, ok := s.cfg.Workflows.(interface{ indexed() }); !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &flows{s: s, stop: cancel, types: map[string]*flow{}}
	f.wait.Go(func() { f.run(ctx) })
	return f
}

func (f *flows) close() {
	if f != nil {
		f.stop()
		f.wait.Wait()
	}
}

// run finds new types once a minute, and soon after the start.
func (f *flows) run(ctx context.Context) {
	for pause := time.Second; ; pause = time.Minute {
		within, cancel := context.WithTimeout(ctx, f.s.cfg.Timeout)
		defs, err := f.s.cfg.Workflows.Definitions(within)
		cancel()
		if err == nil {
			for _, d := range defs {
				f.begin(ctx, d.GetType())
			}
		} else {
			pause = time.Second
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

func (f *flows) begin(ctx context.Context, typ string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.types[typ] != nil {
		return
	}
	one := &flow{living: map[string]life{}, writes: map[string]*heat{}}
	f.types[typ] = one
	f.wait.Go(func() {
		for ctx.Err() == nil {
			r := f.s.briefFeed(typ).Read("")
			synced := false
			for {
				items, err := r.Next(ctx, batch)
				if err != nil {
					break // ctx has ended, or the reader was too slow: read all again
				}
				synced = one.apply(items, synced)
			}
			r.Close()
		}
	})
}

// apply takes items. What comes before the sync existed before, and is no write.
func (o *flow) apply(items []stream.Item[brief], synced bool) bool {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, it := range items {
		switch it.Kind {
		case stream.Synced:
			synced = true
		case stream.Deleted:
			delete(o.living, it.Key)
			delete(o.writes, it.Key)
		case stream.Put:
			e := it.Value
			old, ok := o.living[it.Key]
			if synced && ok && (e.over || old.phase != e.phase) {
				o.moved(now, e.over)
			}
			if e.over {
				delete(o.living, it.Key)
			} else if !ok || old.phase != e.phase {
				o.living[it.Key] = life{e.phase, e.since}
			}
			if synced {
				o.heated(it.Key, now)
			}
		}
	}
	return synced
}

// moved counts a transition.
func (o *flow) moved(now time.Time, ended bool) {
	at := now.Unix() / 60
	m := &o.hour[at%60]
	if m.at != at {
		*m = minute{at: at}
	}
	if m.moved++; ended {
		m.ended++
	}
}

// flow describes a type: how long its entities have been in their phases, and how many
// have moved. It is empty when the server does not watch the type.
func (f *flows) flow(typ string, stuckAfter time.Duration) (sum dashboard.Flow) {
	if f == nil {
		return sum
	}
	f.mu.Lock()
	o := f.types[typ]
	f.mu.Unlock()
	if o == nil {
		return sum
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.hour {
		if now.Unix()/60-m.at < 60 {
			sum.Moved += m.moved
			sum.Ended += m.ended
		}
	}
	phases, since := map[string]*dashboard.Age{}, map[string][]int64{}
	stuck := now.Add(-stuckAfter).UnixNano()
	for id, l := range o.living {
		a := phases[l.phase]
		if a == nil {
			a = &dashboard.Age{Phase: l.phase, Oldest: id, Since: time.Unix(0, l.since)}
			phases[l.phase] = a
		}
		if a.Count++; l.since < a.Since.UnixNano() {
			a.Oldest, a.Since = id, time.Unix(0, l.since)
		}
		if l.since <= stuck {
			a.Stuck++
		}
		since[l.phase] = append(since[l.phase], l.since)
	}
	for _, phase := range slices.Sorted(maps.Keys(phases)) {
		all := since[phase]
		slices.Sort(all)
		phases[phase].Median = max(0, now.Sub(time.Unix(0, all[len(all)/2])))
		sum.Ages = append(sum.Ages, *phases[phase])
	}
	return sum
}

// hotWindow is the time in which the writes of an entity are counted.
const hotWindow = time.Minute

func (o *flow) heated(id string, now time.Time) {
	h := o.writes[id]
	switch {
	case h == nil:
		h = &heat{begin: now}
		o.writes[id] = h
		if len(o.writes) > 4*maxLimiters { // entities that are quiet again
			for other, x := range o.writes {
				if now.Sub(x.begin) > 2*hotWindow {
					delete(o.writes, other)
				}
			}
		}
	case now.Sub(h.begin) > 2*hotWindow:
		*h = heat{begin: now}
	case now.Sub(h.begin) > hotWindow:
		*h = heat{begin: now, last: h.n}
	}
	h.n++
}

// maxNamed is how many stuck phases and hot entities one type may have in a diagnosis.
const maxNamed = 5

// look returns the stuck phases and the hot entities of all types.
func (f *flows) look(stuckAfter time.Duration, hotWrites int) (stuck []diagnosis.Stuck, hot []diagnosis.Hot) {
	if f == nil {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	before := now.Add(-stuckAfter).UnixNano()
	for typ, o := range f.types {
		o.mu.Lock()
		phases := map[string]*diagnosis.Stuck{}
		for id, l := range o.living {
			if l.since > before {
				continue
			}
			p := phases[l.phase]
			if p == nil {
				p = &diagnosis.Stuck{Type: typ, Phase: l.phase, ID: id, Since: time.Unix(0, l.since), Limit: stuckAfter}
				phases[l.phase] = p
			}
			if p.Count++; l.since < p.Since.UnixNano() {
				p.ID, p.Since = id, time.Unix(0, l.since)
			}
		}
		for _, p := range phases {
			stuck = append(stuck, *p)
		}
		var hottest []diagnosis.Hot
		for id, h := range o.writes {
			if n := max(h.n, h.last); n >= hotWrites && now.Sub(h.begin) <= 2*hotWindow {
				hottest = append(hottest, diagnosis.Hot{Type: typ, ID: id, Since: h.begin, Writes: n})
			}
		}
		o.mu.Unlock()
		slices.SortFunc(hottest, func(a, b diagnosis.Hot) int { return cmp.Compare(b.Writes, a.Writes) })
		hot = append(hot, hottest[:min(len(hottest), maxNamed)]...)
	}
	return stuck, hot
}
