package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// index has every process of the fleet, from one watch. All lists and pages read it. A
// process announces itself every few seconds; the index passes on only what is new, so a
// fleet at rest costs its watchers nothing.
type index struct {
	alive *feed.Reader[*operatorv1.Process] // keeps the watch going; nothing reads it

	mu     sync.Mutex // guards the fields below
	list   map[string]known
	fresh  map[string]known // from the begin of a watch to its sync; then it replaces list
	synced bool
}

// known is a process as it was announced last, and as watchers know it.
type known struct{ last, told *operatorv1.Process }

// newIndex returns an index of an area whose watch reports every process, and nil for
// any other area.
func newIndex(area Processes) *index {
	if _, ok := area.(interface{ indexed() }); !ok {
		return nil
	}
	return &index{}
}

// begin keeps the watch of the processes going.
func (x *index) begin(processes *feed.Feed[*operatorv1.Process]) {
	if x != nil {
		x.alive = processes.Read("")
	}
}

func (x *index) close() {
	if x != nil {
		x.alive.Close()
	}
}

// through returns a sink for one run of the watch. It remembers every item, and passes on
// to another sink what is new.
func (x *index) through(to Sink[*operatorv1.Process]) Sink[*operatorv1.Process] {
	if x == nil {
		return to
	}
	x.take(stream.Item[*operatorv1.Process]{Kind: stream.Gap})
	return func(it stream.Item[*operatorv1.Process]) {
		if x.take(it) {
			to(it)
		}
	}
}

// take remembers an item, and reports whether it is new for watchers.
func (x *index) take(it stream.Item[*operatorv1.Process]) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch it.Kind {
	case stream.Put:
		if x.fresh != nil {
			x.fresh[it.Key] = known{it.Value, it.Value}
			return true
		}
		old, ok := x.list[it.Key]
		if ok && sameNews(old.told, it.Value) {
			share(it.Value, old.told)
			x.list[it.Key] = known{it.Value, old.told}
			return false
		}
		x.list[it.Key] = known{it.Value, it.Value}
	case stream.Deleted:
		delete(x.list, it.Key)
		delete(x.fresh, it.Key)
	case stream.Gap:
		x.fresh = map[string]known{}
	case stream.Synced:
		if x.fresh != nil {
			x.list, x.fresh, x.synced = x.fresh, nil, true
		}
	}
	return true
}

// sameNews reports whether two announcements of a process tell an operator the same. Times
// of the announcement, the use of memory, and small changes of the load tell nothing.
func sameNews(a, b *operatorv1.Process) bool {
	switch {
	case a.GetPhase() != b.GetPhase(), a.GetReady() != b.GetReady(), a.GetSuspended() != b.GetSuspended(), a.GetReason() != b.GetReason(),
		a.GetWaiting() != b.GetWaiting(), a.GetVersion() != b.GetVersion(), a.GetService() != b.GetService(), a.GetHost() != b.GetHost(), a.GetPid() != b.GetPid(),
		a.GetTruncated() != b.GetTruncated(), a.GetSuspect() != b.GetSuspect(), a.GetMemoryLimitBytes() != b.GetMemoryLimitBytes(),
		len(a.GetPhases()) != len(b.GetPhases()), !a.GetStartedAt().AsTime().Equal(b.GetStartedAt().AsTime()), loadMoved(a, b):
		return false
	}
	if !slices.EqualFunc(a.GetFindings(), b.GetFindings(), func(a, b *operatorv1.Finding) bool { return a.GetRule() == b.GetRule() }) {
		return false
	}
	return shared(a.GetUnits(), b.GetUnits()) && shared(a.GetProbes(), b.GetProbes()) && shared(a.GetRestarts(), b.GetRestarts()) && shared(a.GetSteps(), b.GetSteps()) && a.GetBudget() == b.GetBudget() ||
		proto.Equal(&operatorv1.Process{Units: a.GetUnits(), Probes: a.GetProbes(), Restarts: a.GetRestarts(), Steps: a.GetSteps(), Budget: a.GetBudget()},
			&operatorv1.Process{Units: b.GetUnits(), Probes: b.GetProbes(), Restarts: b.GetRestarts(), Steps: b.GetSteps(), Budget: b.GetBudget()})
}

// shared reports whether two lists are one.
func shared[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// share makes p refer to the parts of told that say the same, so that the index has them
// once. sameNews holds for both.
func share(p, told *operatorv1.Process) {
	p.Units, p.Probes, p.Restarts, p.Steps, p.Budget, p.StartedAt = told.GetUnits(), told.GetProbes(), told.GetRestarts(), told.GetSteps(), told.GetBudget(), told.GetStartedAt()
	if proto.Equal(p.GetCounts(), told.GetCounts()) {
		p.Counts = told.GetCounts()
	}
	p.Phases, p.Servers, p.Findings = same(p.GetPhases(), told.GetPhases()), same(p.GetServers(), told.GetServers()), same(p.GetFindings(), told.GetFindings())
}

// same returns other when both lists say the same, and otherwise list.
func same[T proto.Message](list, other []T) []T {
	if slices.EqualFunc(list, other, func(a, b T) bool { return proto.Equal(a, b) }) {
		return other
	}
	return list
}

// loadMoved reports whether what the servers of a process do has changed by more than a
// quarter and by more than ten, or has begun or ended.
func loadMoved(a, b *operatorv1.Process) bool {
	sum := func(p *operatorv1.Process) (inFlight, connections int64) {
		for _, s := range p.GetServers() {
			inFlight += s.GetInFlight()
			connections += s.GetConnections()
		}
		return inFlight, connections
	}
	moved := func(a, b int64) bool {
		return (a == 0) != (b == 0) || max(a, b)-min(a, b) > max(10, max(a, b)/4)
	}
	wasInFlight, wasConnections := sum(a)
	inFlight, connections := sum(b)
	return len(a.GetServers()) != len(b.GetServers()) || moved(wasInFlight, inFlight) || moved(wasConnections, connections)
}

// all returns the processes, in any order, and whether the index knows them. The caller
// must not change them.
func (x *index) all() ([]*operatorv1.Process, bool) {
	if x == nil {
		return nil, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make([]*operatorv1.Process, 0, len(x.list))
	for _, k := range x.list {
		list = append(list, k.last)
	}
	return list, x.synced
}

// get returns the process of an id, which may lack the service, nil when the index does not
// have exactly one. As in the fleet, a key without a service counts only when there is no
// other.
func (x *index) get(id string) *operatorv1.Process {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var found *operatorv1.Process
	if !strings.Contains(id, ".") {
		for key, k := range x.list {
			switch _, short, _ := strings.Cut(key, "."); {
			case short != id:
			case found != nil:
				return nil
			default:
				found = k.last
			}
		}
	}
	if found == nil {
		found = x.list[id].last
	}
	return found
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
	sem  chan struct{} // of size 1: held by the one that diagnoses
	ends pastEnds      // only it uses them

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
			looking, stop := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout/3) // what is read is for all callers
			n, err := s.diagnosed.ends.read(looking, area, f.Now)
			stop()
			sortEnds(&f, s.diagnosed.ends.bad)
			if err != nil {
				not("the journal", err)
			} else {
				looked(n, "event of the last hour", "events of the last hour")
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
