package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// index has every process of the fleet, from one watch. All lists and pages read it.
type index struct {
	s *Server

	mu     sync.Mutex // guards the fields below
	list   map[string]*operatorv1.Process
	synced bool

	stop context.CancelFunc
	done chan struct{}
}

// newIndex returns an index of an area whose watch reports every process, and nil for
// any other area.
func newIndex(s *Server) *index {
	if _, ok := s.cfg.Processes.(interface{ indexed() }); !ok || s.processes == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &index{s: s, list: map[string]*operatorv1.Process{}, stop: cancel, done: make(chan struct{})}
	go x.run(ctx)
	return x
}

func (x *index) close() {
	if x != nil {
		x.stop()
		<-x.done
	}
}

func (x *index) run(ctx context.Context) {
	defer close(x.done)
	for ctx.Err() == nil {
		r := x.s.processes.Read("")
		fresh := map[string]*operatorv1.Process{}
		for {
			items, err := r.Next(ctx, batch)
			if err != nil {
				break // ctx has ended, or the reader was too slow: read all again
			}
			x.apply(items, &fresh)
		}
		r.Close()
	}
}

// apply takes items. Until the sync they go into fresh, which then replaces the list.
func (x *index) apply(items []stream.Item[*operatorv1.Process], fresh *map[string]*operatorv1.Process) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, it := range items {
		list := *fresh
		if list == nil {
			list = x.list
		}
		switch it.Kind {
		case stream.Put:
			list[it.Key] = it.Value
		case stream.Deleted:
			delete(list, it.Key)
		case stream.Synced:
			if *fresh != nil {
				x.list, *fresh, x.synced = *fresh, nil, true
			}
		}
	}
}

// all returns the processes, in any order, and whether the index knows them. The caller
// must not change them.
func (x *index) all() ([]*operatorv1.Process, bool) {
	if x == nil {
		return nil, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Values(x.list)), x.synced
}

// listed returns every process, with what is wrong with it now.
func (s *Server) listed(ctx context.Context) ([]*operatorv1.Process, error) {
	if list, ok := s.index.all(); ok {
		return list, nil
	}
	list, err := s.cfg.Processes.List(ctx)
	return slices.Clone(list), err
}

// diagnoseEvery is how old a diagnosis may be. Every page and call shares it.
const diagnoseEvery = time.Second

// diagnosed is the latest diagnosis.
type diagnosed struct {
	sem chan struct{} // of size 1: held by the one that diagnoses

	mu     sync.Mutex // guards the fields below
	at     time.Time
	answer *operatorv1.DiagnoseResponse
}

// diagnosis returns what is wrong in the whole fleet, at most a second old.
func (s *Server) diagnosis(ctx context.Context) (*operatorv1.DiagnoseResponse, error) {
	d := &s.diagnosed
	select {
	case d.sem <- struct{}{}:
		defer func() { <-d.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	answer, at := d.answer, d.at
	d.mu.Unlock()
	if answer != nil && time.Since(at) < diagnoseEvery {
		return answer, nil
	}
	begun := time.Now()
	answer = s.diagnose(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d.mu.Lock()
	d.answer, d.at = answer, begun
	d.mu.Unlock()
	return answer, nil
}

// Rule is a rule by which a diagnosis finds what is wrong.
type Rule struct {
	Name     string
	Severity string // "error" or "warning"
	Means    string // what is wrong, in one sentence
}

// Rules returns all rules.
func Rules() []Rule {
	list := make([]Rule, len(diagnosis.Rules))
	for i, r := range diagnosis.Rules {
		list[i] = Rule(r)
	}
	return list
}

// Diagnosis returns what is wrong in the whole fleet, the worst first, at most a second
// old. The caller must not change it.
func (s *Server) Diagnosis(ctx context.Context) (*operatorv1.DiagnoseResponse, error) {
	return s.diagnosis(ctx)
}

// maxEnds is how many ends of the last hour are looked at.
const maxEnds = 200

// diagnose looks at every area. An area that cannot be looked at is named in the
// answer.
func (s *Server) diagnose(ctx context.Context) *operatorv1.DiagnoseResponse {
	answer := new(operatorv1.DiagnoseResponse)
	f := diagnosis.Fleet{Now: time.Now(), Letters: map[string]string{}}
	looked := func(n int, one, many string) {
		if n == 1 {
			many = one
		}
		answer.LookedAt = append(answer.LookedAt, fmt.Sprint(n, " ", many))
	}
	not := func(what string, err error) {
		answer.NotLookedAt = append(answer.NotLookedAt, what+": "+clip(message(s.deps.explain(err)), maxName))
	}
	for _, o := range s.deps.outages() {
		f.Away = append(f.Away, diagnosis.Away{Name: o.name, Since: o.since, Err: clip(o.err.Error(), maxName)})
	}
	within, cancel := context.WithTimeout(ctx, s.cfg.Timeout/3)
	defer cancel()
	if s.cfg.Processes != nil {
		var err error
		if f.Processes, err = s.listed(within); err != nil {
			not("the processes", err)
		} else {
			looked(len(f.Processes), "process", "processes")
		}
		if area, ok := s.cfg.Processes.(Journal); ok {
			events, _, err := area.Events(within, EventQuery{Kinds: []string{"exit", "lost", "dropped", "killed", "returned"}, Since: f.Now.Add(-time.Hour), Limit: maxEnds})
			if err != nil {
				not("the journal", err)
			} else {
				sortEnds(&f, events)
				looked(len(events), "event of the last hour", "events of the last hour")
			}
		}
	}
	if s.cfg.Workers != nil {
		var err error
		if f.Workers, err = s.cfg.Workers.List(within); err != nil {
			not("the hosted workers", err)
		} else {
			looked(len(f.Workers), "hosted worker", "hosted workers")
		}
		for _, w := range f.Workers {
			if w.GetDeadLetters() > 0 && len(f.Letters) < 20 {
				if letters, err := s.cfg.Workers.DeadLetters(within, w.GetId(), "", 1); err == nil && len(letters) > 0 {
					f.Letters[w.GetId()] = clip(letters[0].GetReason(), maxName)
				}
			}
		}
	}
	if s.cfg.Workflows != nil {
		var err error
		if f.Workflows, err = s.cfg.Workflows.Definitions(within); err != nil {
			not("the workflows", err)
		} else {
			looked(len(f.Workflows), "workflow", "workflows")
		}
	}
	f.Stuck, f.Hot = s.flows.look(s.cfg.StuckAfter, s.cfg.HotWrites)
	answer.Findings = diagnosis.Diagnose(f)
	return answer
}

// sortEnds puts the events of the journal, newest first, into the fleet. A process that
// returned was not lost.
func sortEnds(f *diagnosis.Fleet, events []*operatorv1.Event) {
	returned := map[string]bool{}
	for _, e := range events {
		switch {
		case e.GetKind() == "returned":
			returned[e.GetProcess()] = true
		case e.GetKind() == "killed":
			f.Killed = append(f.Killed, e)
		case e.GetKind() == "lost" && returned[e.GetProcess()]:
		default:
			f.Ends = append(f.Ends, e)
		}
	}
	slices.Reverse(f.Ends)
	slices.Reverse(f.Killed)
}
