package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// diagnoseEvery is how old a diagnosis may be. Every page and call shares it.
const diagnoseEvery = time.Second

// diagnosed is the latest diagnosis.
type diagnosed struct {
	sem    chan struct{} // of size 1: guards the fields below
	latest *operatorv1.DiagnoseResponse
	at     time.Time // when the look for it began
	ended  time.Time
	ends   recentEvents
	starts recentEvents // those that tell of the end of the life before
}

// Diagnosis returns what is wrong in the whole fleet, the worst first, at most a second old, or as old
// as the look for it took. The caller must not change it.
func (s *Server) Diagnosis(ctx context.Context) (*operatorv1.DiagnoseResponse, error) {
	d := &s.diagnosed
	asked := time.Now()
	select {
	case d.sem <- struct{}{}:
		defer func() { <-d.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d.latest != nil && (time.Since(d.at) < diagnoseEvery || d.ended.After(asked)) {
		return d.latest, nil
	}
	begun := time.Now()
	answer := s.diagnose(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d.latest, d.at, d.ended = answer, begun, time.Now()
	return answer, nil
}

// lookAway is how long a look at every area may take while a dependency is away: most of them cannot
// be looked at then, and a page waits for it.
const lookAway = 500 * time.Millisecond

// diagnose looks at every area. An area that cannot be looked at is named in the
// answer.
func (s *Server) diagnose(ctx context.Context) *operatorv1.DiagnoseResponse {
	l := &look{
		s:      s,
		fleet:  diagnosis.Fleet{Now: time.Now(), Letters: map[string]string{}},
		answer: new(operatorv1.DiagnoseResponse),
	}
	f := &l.fleet
	down := s.deps.outages()
	for _, o := range down {
		why := clip(o.err.Error(), maxName)
		if errors.Is(o.err, canary.ErrNoWrites) { // it answers
			l.refused, l.refusedSince = why, o.since
			continue
		}
		f.Away = append(f.Away, diagnosis.Away{Name: o.name, Since: o.since, Err: why})
	}
	limit := s.cfg.Timeout / 3
	if len(down) > 0 {
		limit = min(limit, lookAway)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if s.cfg.Processes != nil {
		l.atProcesses(within)
		l.atJournal(within)
	}
	if s.cfg.Workers != nil {
		l.atWorkers(within)
	}
	if s.cfg.Workflows != nil {
		l.atWorkflows(within)
	}
	l.atStore()
	l.answer.Findings = diagnosis.Diagnose(l.fleet)
	return l.answer
}

// look is one look at every area: what was found, and the answer, which says what was looked at.
type look struct {
	s      *Server
	fleet  diagnosis.Fleet
	answer *operatorv1.DiagnoseResponse

	refused      string // why NATS takes no writes, as the check of a dependency says
	refusedSince time.Time
}

// lookedAt notes how many things of an area there were.
func (l *look) lookedAt(n int, one, many string) {
	if n == 1 {
		many = one
	}
	l.answer.LookedAt = append(l.answer.LookedAt, fmt.Sprint(n, " ", many))
}

// notLookedAt notes an area that could not be looked at.
func (l *look) notLookedAt(what string, err error) {
	l.answer.NotLookedAt = append(l.answer.NotLookedAt, what+": "+clip(client.Message(l.s.deps.explain(err)), maxName))
}

func (l *look) atProcesses(ctx context.Context) {
	var err error
	if l.fleet.Processes, err = l.s.listed(ctx); err != nil {
		l.notLookedAt("the processes", err)
		return
	}
	l.lookedAt(len(l.fleet.Processes), "process", "processes")
}

func (l *look) atJournal(ctx context.Context) {
	f, area, d := &l.fleet, l.s.cfg.Processes, &l.s.diagnosed
	err := d.ends.read(ctx, area, f.Now, "exit", "lost", "dropped", "killed", "returned")
	events, tooMany := d.ends.list, d.ends.tooMany()
	// The starts of a large fleet are read only when they are needed.
	if err == nil && slices.ContainsFunc(events, isLost) {
		err = d.starts.read(ctx, area, f.Now, "joined")
		events, tooMany = slices.Concat(events, d.starts.list), cmp.Or(tooMany, d.starts.tooMany())
	}
	sortEnds(f, events)
	if err == nil {
		f.Downs, err = readDowns(ctx, area, f.Now)
	}
	if err = cmp.Or(err, tooMany); err != nil {
		l.notLookedAt("the journal", err)
		return
	}
	l.lookedAt(len(d.ends.list), "end of the last hour", "ends of the last hour")
}

func (l *look) atWorkers(ctx context.Context) {
	f, area := &l.fleet, l.s.cfg.Workers
	var err error
	if f.Workers, err = area.List(ctx); err != nil {
		l.notLookedAt("the hosted workers", err)
		return
	}
	l.lookedAt(len(f.Workers), "hosted worker", "hosted workers")
	for _, w := range f.Workers {
		if w.GetDeadLetters() > 0 && len(f.Letters) < 20 {
			if letters, err := area.DeadLetters(ctx, w.GetId(), "", 0, 1); err == nil && len(letters) > 0 {
				f.Letters[w.GetId()] = clip(letters[0].GetReason(), maxName)
			}
		}
	}
}

func (l *look) atWorkflows(ctx context.Context) {
	f := &l.fleet
	var err error
	if f.Workflows, err = l.s.cfg.Workflows.Definitions(ctx); err != nil {
		l.notLookedAt("the workflows", err)
	} else {
		l.lookedAt(len(f.Workflows), "workflow", "workflows")
	}
	for _, d := range f.Workflows {
		l.atEntities(ctx, d.GetType())
	}
	area, ok := l.s.cfg.Workflows.(interface {
		hooks(ctx context.Context, typ string) ([]diagnosis.Hook, error)
	})
	if !ok {
		return
	}
	for _, d := range f.Workflows {
		hooks, err := area.hooks(ctx, d.GetType())
		if err != nil {
			l.notLookedAt("the hooks of "+d.GetType(), err)
		}
		f.Hooks = append(f.Hooks, hooks...)
	}
}

// atEntities finds the entities of a type that are stuck, and those that are written again and again.
func (l *look) atEntities(ctx context.Context, typ string) {
	f, cfg := &l.fleet, l.s.cfg
	counts, err := cfg.Workflows.Counts(ctx, typ, cfg.StuckAfter)
	if err != nil {
		l.notLookedAt("the phases of "+typ, err)
	}
	for _, c := range counts {
		if c.Stuck > 0 {
			f.Stuck = append(f.Stuck, diagnosis.Stuck{
				Type:  typ,
				Phase: c.Phase,
				ID:    c.OldestID,
				Since: c.Oldest,
				Count: c.Stuck,
				Limit: cfg.StuckAfter,
			})
		}
	}
	f.Hot = append(f.Hot, l.s.flows.flow(typ).written.hot(typ, cfg.HotWrites)...)
}

func (l *look) atStore() {
	facts, streams, isLooked, err := l.s.store.facts()
	l.fleet.Store = facts
	if l.refused != "" {
		l.fleet.Store.Refused, l.fleet.Store.RefusedSince = l.refused, l.refusedSince
	}
	if err != nil {
		l.notLookedAt("the streams of NATS", err)
	} else if isLooked {
		l.lookedAt(streams, "stream", "streams")
	}
}

// choose returns a function that reports whether a finding is about a service, or about a process
// when there is one. A process may have ended, and its id may lack the service. What is neither among
// those that the caller sees nor in a finding is an error that names what was probably meant.
func choose(
	seen roster, findings []*operatorv1.Finding, service, process string,
) (chosen func(*operatorv1.Finding) bool, err error) {
	chosen = func(f *operatorv1.Finding) bool {
		kind, name, _ := strings.Cut(f.GetSubject(), "/")
		if kind == "process" {
			owner, living := seen.service(name)
			return owner == service || living == 0 && owner == identity.Token(service)
		}
		return kind == "service" && name == service
	}
	what, name, names, isSeen := "service", service, slices.Sorted(maps.Keys(seen.living)), seen.living[service] > 0
	if process != "" {
		p, err := seen.find("process", process)
		if err != nil {
			return nil, err
		}
		chosen = func(f *operatorv1.Finding) bool {
			id, ok := strings.CutPrefix(f.GetSubject(), "process/")
			_, instance, _ := strings.Cut(id, ".")
			return ok && (id == cmp.Or(p.GetId(), process) || p == nil && instance == process)
		}
		what, name, names, isSeen = "process", process, nil, p != nil
		for _, whole := range slices.Sorted(maps.Keys(seen.byID)) {
			_, instance, _ := strings.Cut(whole, ".")
			names = append(names, whole, instance)
		}
	}
	if !isSeen && !slices.ContainsFunc(findings, chosen) {
		return nil, unknown(what, name, names)
	}
	return chosen, nil
}

// unknown is the error for a name that nothing has, with the one that was probably meant.
func unknown(what, name string, names []string) error {
	meant := ""
	if near := suggest.Nearest(name, names); near != "" {
		meant = fmt.Sprintf("; did you mean %s?", near)
	}
	return Errorf(connect.CodeNotFound, ReasonNotFound, what, "there is no %s %q that you may see%s", what, clip(name, maxName), meant)
}

// sortEnds puts the events of the journal, newest first, into the fleet. A process that
// returned was not lost. What the next life of a lost process tells of its end counts more than
// what its last announcement suggests.
func sortEnds(f *diagnosis.Fleet, events []*operatorv1.Event) {
	type life struct {
		service string
		began   time.Time
	}
	returned, told := map[string]bool{}, map[life]*operatorv1.Event{}
	of := func(e *operatorv1.Event) life { return life{e.GetService(), e.GetLife().AsTime()} }
	for _, e := range events {
		if e.GetKind() == "joined" && e.GetFrom() != "" {
			told[of(e)] = e
		}
	}
	for _, e := range events {
		if words := told[of(e)]; isLost(e) && words != nil {
			better := proto.CloneOf(e)
			better.To, better.ExitStatus = words.GetFrom(), words.GetExitStatus()
			better.Cause = words.GetCause() + "; " + e.GetCause()
			e = better
		}
		switch {
		case e.GetKind() == "joined", e.GetKind() == "exit" && !diagnosis.Bad(e):
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

// Limits of a diagnosis.
const (
	endsFor  = time.Hour // how long an end is looked at
	endsPage = 1000      // events that are read at once
	maxPast  = 20_000    // events that one look reads at most
)

// downsRead is how many changes of probes are read.
const downsRead = 500

// readDowns reads from the journal which probes have gone down in the last minutes, newest first.
func readDowns(ctx context.Context, area Processes, now time.Time) ([]*operatorv1.Event, error) {
	q := presence.EventQuery{Kinds: []string{"probe"}, Since: now.Add(-diagnosis.FlapTime), Limit: downsRead}
	events, _, err := area.Events(ctx, q)
	return slices.DeleteFunc(events, func(e *operatorv1.Event) bool { return e.GetTo() != "down" }), err
}

// isLost reports whether the next life of a process may tell how it ended.
func isLost(e *operatorv1.Event) bool { return e.GetKind() == "lost" && e.GetLife() != nil }

// recentEvents are the newest events of some kinds within the last hour, as the journal has them. An
// event of the journal does not change, so each look reads only those that are new: for an hour after a
// rollout of a large fleet there are thousands. One goroutine at a time uses it.
type recentEvents struct {
	list []*operatorv1.Event // newest first
}

// read reads what has come since the last look, or all when that cannot be told, as of a journal that
// was made anew. After an error it has what it had before.
func (x *recentEvents) read(ctx context.Context, area Processes, now time.Time, kinds ...string) error {
	q := presence.EventQuery{Kinds: kinds, Since: now.Add(-endsFor), Limit: endsPage}
	known := x.list
	if len(known) > 0 {
		q.After = known[0].GetSeq() - 1
	}
	fresh, err := readBack(ctx, area, q)
	last := len(fresh) - 1
	switch {
	case err != nil || len(known) == 0:
	case last >= 0 && proto.Equal(fresh[last], known[0]): // what was read before is still in the journal
		fresh = fresh[:last]
	default:
		q.After, known = 0, nil
		fresh, err = readBack(ctx, area, q)
	}
	if err != nil {
		return err
	}
	isOld := func(e *operatorv1.Event) bool { return e.GetAt().AsTime().Before(q.Since) }
	x.list = slices.DeleteFunc(slices.Concat(fresh, known), isOld)
	x.list = x.list[:min(len(x.list), maxPast)]
	return nil
}

// tooMany returns an error when there may have been more events than are looked at. Those are older than
// all that it has, so as soon as one of these is too old, there are none.
func (x *recentEvents) tooMany() error {
	if len(x.list) < maxPast {
		return nil
	}
	since := x.list[maxPast-1].GetAt().AsTime().UTC().Format("15:04 UTC")
	return fmt.Errorf("there are more ends in the last hour than are looked at: only those since %s", since)
}

// readBack reads events from the journal, newest first, and no more than are looked at.
func readBack(ctx context.Context, area Processes, q presence.EventQuery) (list []*operatorv1.Event, err error) {
	for len(list) < maxPast {
		events, next, err := area.Events(ctx, q)
		if err != nil {
			return nil, err
		}
		list = append(list, events...)
		if q.Before = next; next == 0 {
			break
		}
	}
	return list, nil
}
