package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// board is the content of top: the processes of a fleet, and how many entities of
// each workflow are in each phase. Watches write to it, the screen reads it.
type board struct {
	url string

	mu        sync.Mutex // guards the fields below
	away      map[string]string
	processes map[string]*operatorv1.Process // nil: the server has none to show
	flows     map[string]*flow               // by type
}

// flow is one workflow on the board.
type flow struct {
	phases []string          // in the order of its definition
	in     map[string]string // the phase of each entity
	counts map[string]int64  // of each phase
}

func newBoard(url string) *board {
	return &board{url: url, away: map[string]string{}, processes: map[string]*operatorv1.Process{}, flows: map[string]*flow{}}
}

func (f *flow) put(id, phase string) {
	if before, ok := f.in[id]; ok {
		f.counts[before]--
	}
	f.in[id] = phase
	f.counts[phase]++
}

func (f *flow) drop(id string) {
	if before, ok := f.in[id]; ok {
		f.counts[before]--
		delete(f.in, id)
	}
}

// load fills the board once, without a watch.
func (b *board) load(ctx context.Context, a *api) error {
	list, err := a.Processes.ListProcesses(ctx, &operatorv1.ListProcessesRequest{PageSize: 1000})
	if err != nil && !notServed(err) {
		return err
	}
	b.mu.Lock()
	for _, p := range list.GetProcesses() {
		b.processes[p.GetId()] = p
	}
	if err != nil {
		b.processes = nil
	}
	b.mu.Unlock()
	defs, err := a.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
	if err != nil && !notServed(err) {
		return err
	}
	for _, d := range defs.GetDefinitions() {
		f, _ := b.flow(d)
		for _, p := range d.GetPhases() {
			f.counts[p.GetName()] = p.GetCount()
		}
	}
	return nil
}

// notServed reports whether err says that the server does not serve this area.
func notServed(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeUnimplemented
}

// flow returns the flow of a definition, and whether it is new.
func (b *board) flow(d *operatorv1.Definition) (f *flow, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f = b.flows[d.GetType()]
	if fresh = f == nil; fresh {
		f = &flow{in: map[string]string{}, counts: map[string]int64{}}
		b.flows[d.GetType()] = f
	}
	f.phases = f.phases[:0]
	for _, p := range d.GetPhases() {
		f.phases = append(f.phases, p.GetName())
	}
	return f, fresh
}

// watcher records on the board which watch is interrupted.
func (b *board) watcher(what string) watcher {
	return watcher{
		lost: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.away[what] = "the watch ended"
			if err != nil {
				b.away[what] = message(err)
			}
		},
		back: func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.away, what)
		},
	}
}

// typesEvery is how often top looks for new workflows.
const typesEvery = 10 * time.Second

// feed keeps the board up to date until ctx ends. It returns when all goroutines
// that it started have returned: nil, or why there is nothing to show.
func (b *board) feed(ctx context.Context, a *api) error {
	asked := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	run := func(watch func() error) {
		running.Go(func() {
			if err := watch(); err != nil && !notServed(err) {
				cancel(err)
			}
		})
	}
	run(func() error { return b.feedProcesses(ctx, a) })
	run(func() error {
		for {
			defs, err := a.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
			if err != nil && (notServed(err) || !passing(err)) {
				return err
			}
			for _, d := range defs.GetDefinitions() {
				if f, fresh := b.flow(d); fresh {
					run(func() error { return b.feedFlow(ctx, a, d.GetType(), f) })
				}
			}
			pause := time.NewTimer(typesEvery)
			select {
			case <-ctx.Done():
				pause.Stop()
				return nil
			case <-pause.C:
			}
		}
	})
	<-ctx.Done()
	running.Wait()
	if asked.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

func (b *board) feedProcesses(ctx context.Context, a *api) error {
	seen := newMemory(func(x, y *operatorv1.Process) bool { return false })
	err := follow(ctx, b.watcher("processes"), func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.WatchProcessesResponse], error) {
		return a.Processes.WatchProcesses(ctx, &operatorv1.WatchProcessesRequest{})
	}, seen.begin, func(m *operatorv1.WatchProcessesResponse) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		p := m.GetProcess()
		switch m.GetKind() {
		case operatorv1.WatchResponse_KIND_PUT:
			seen.put(p.GetId(), p)
			b.processes[p.GetId()] = p
		case operatorv1.WatchResponse_KIND_DELETED:
			seen.drop(p.GetId())
			delete(b.processes, p.GetId())
		case operatorv1.WatchResponse_KIND_SYNCED:
			for _, id := range seen.sync() {
				delete(b.processes, id)
			}
		}
		return nil
	})
	if notServed(err) {
		b.mu.Lock()
		b.processes = nil
		b.mu.Unlock()
	}
	return err
}

func (b *board) feedFlow(ctx context.Context, a *api, typ string, f *flow) error {
	seen := newMemory(func(x, y struct{}) bool { return false })
	return follow(ctx, b.watcher(typ), func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.WatchResponse], error) {
		return a.Workflows.Watch(ctx, &operatorv1.WatchRequest{Type: typ})
	}, seen.begin, func(m *operatorv1.WatchResponse) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		e := m.GetEntity()
		switch m.GetKind() {
		case operatorv1.WatchResponse_KIND_PUT:
			seen.put(e.GetId(), struct{}{})
			f.put(e.GetId(), e.GetPhase())
		case operatorv1.WatchResponse_KIND_DELETED:
			seen.drop(e.GetId())
			f.drop(e.GetId())
		case operatorv1.WatchResponse_KIND_SYNCED:
			for _, id := range seen.sync() {
				f.drop(id)
			}
		}
		return nil
	})
}

// lines returns the board as text, with lines of any length.
func (b *board) lines(now time.Time, colours bool) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &table{colours: colours}
	t.row(cell{b.url, strong})
	if len(b.away) > 0 {
		first := slices.Sorted(maps.Keys(b.away))[0]
		t.row(cell{fmt.Sprintf("lost the server (%s); trying again; this is the last known state", b.away[first]), bad})
	}
	text := t.text()
	for _, section := range []*table{b.processTable(now, colours), b.flowTable(colours)} {
		if section != nil {
			text = append(append(text, '\n'), section.text()...)
		}
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (b *board) processTable(now time.Time, colours bool) *table {
	if b.processes == nil {
		return nil
	}
	list := slices.SortedFunc(maps.Values(b.processes), func(x, y *operatorv1.Process) int {
		return strings.Compare(x.GetService()+"\x00"+x.GetId(), y.GetService()+"\x00"+y.GetId())
	})
	ready := 0
	for _, p := range list {
		if p.GetReady() {
			ready++
		}
	}
	t := &table{colours: colours}
	t.row(cell{fmt.Sprintf("%d processes, %d ready", len(list), ready), strong})
	t.head("SERVICE", "PROCESS", "PHASE", "READY", "UNITS", "IN FLIGHT", "AGE", "REASON")
	for _, p := range list {
		var inFlight int64
		for _, s := range p.GetServers() {
			inFlight += s.GetInFlight()
		}
		why := p.GetSuspended()
		if why == "" {
			why = p.GetReason()
		}
		t.row(p.GetService(), p.GetId(), state(p.GetPhase()), readyCell(p), units(p), fmt.Sprint(inFlight), age(p.GetStartedAt(), now), why)
	}
	return t
}

func (b *board) flowTable(colours bool) *table {
	if len(b.flows) == 0 {
		return nil
	}
	t := &table{colours: colours}
	t.row(cell{fmt.Sprintf("%d workflows", len(b.flows)), strong})
	t.head("TYPE", "ENTITIES", "PHASES")
	for _, typ := range slices.Sorted(maps.Keys(b.flows)) {
		f := b.flows[typ]
		var total int64
		var counts []string
		for phase, n := range f.counts {
			total += n
			if n > 0 && !slices.Contains(f.phases, phase) { // a phase that the table does not have
				counts = append(counts, fmt.Sprintf("%s! %d", phase, n))
			}
		}
		slices.Sort(counts)
		known := make([]string, 0, len(f.phases))
		for _, phase := range f.phases {
			if n := f.counts[phase]; n > 0 {
				known = append(known, fmt.Sprintf("%s %d", phase, n))
			}
		}
		t.row(typ, fmt.Sprint(total), strings.Join(append(known, counts...), "  "))
	}
	return t
}
