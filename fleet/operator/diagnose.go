package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// How old a diagnosis may be. Every page and call shares it.
const (
	diagnoseEvery = time.Second  // for a call
	diagnoseShown = 3 * pageBeat // for a page, which does not wait for the next one
)

// diagnosed is the latest diagnosis.
type diagnosed struct {
	latest atomic.Pointer[dated] // nil before the first
	renew  fsm.Wake              // begins the next one, for which nobody waits

	sem     chan struct{} // of size 1: guards the fields below
	ends    recentEvents
	starts  recentEvents       // those that tell of the end of the life before
	letters map[string][]tally // by worker: how many dead letters it had, oldest first
}

// dated is a diagnosis and when it was made.
type dated struct {
	*operatorv1.DiagnoseResponse
	at          time.Time
	fingerprint string // which findings it has
}

func (d *dated) isWithin(age time.Duration) bool { return d != nil && time.Since(d.at) < age }

// fingerprint names the findings, without what changes in their texts with the time.
func fingerprint(answer *operatorv1.DiagnoseResponse) string {
	list := slices.Clone(answer.GetNotLookedAt())
	for _, f := range answer.GetFindings() {
		list = append(list, f.GetRule()+" "+f.GetSubject())
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// renewDiagnosis makes a new diagnosis whenever one is asked for, until ctx ends.
func (s *Server) renewDiagnosis(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.diagnosed.renew:
			_, _ = s.Diagnosis(ctx) // the only error is that ctx has ended
		}
	}
}

// tally is how many dead letters a worker had at a time.
type tally struct {
	at time.Time
	n  int64
}

// Times of the counts of dead letters.
const (
	tallyEvery = 30 * time.Second
	tallyFor   = 10 * time.Minute
)

// noteLetters notes how many dead letters a worker has, and returns how many have come within the last
// minutes in which the server has looked; "" for none.
func (d *diagnosed) noteLetters(now time.Time, id string, n int64) string {
	if d.letters == nil {
		d.letters = map[string][]tally{}
	}
	list := slices.DeleteFunc(d.letters[id], func(t tally) bool { return now.Sub(t.at) > tallyFor || t.n > n })
	if len(list) == 0 || now.Sub(list[len(list)-1].at) >= tallyEvery {
		list = append(list, tally{now, n})
	}
	d.letters[id] = list
	took, came := now.Sub(list[0].at).Round(time.Second), n-list[0].n
	if took < time.Minute || came <= 0 {
		return ""
	}
	return fmt.Sprintf(", %d of them within %v", came, took)
}

// Diagnosis returns what is wrong in the whole fleet, the worst first, at most a second
// old. The caller must not change it.
func (s *Server) Diagnosis(ctx context.Context) (*operatorv1.DiagnoseResponse, error) {
	d := &s.diagnosed
	select {
	case d.sem <- struct{}{}:
		defer func() { <-d.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if last := d.latest.Load(); last.isWithin(diagnoseEvery) {
		return last.DiagnoseResponse, nil
	}
	begun := time.Now()
	answer := s.diagnose(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d.latest.Store(&dated{answer, begun, fingerprint(answer)})
	return answer, nil
}

// shownDiagnosis returns the latest diagnosis for a page. When it is older than diagnoseEvery, a new
// one is made in the background, and the page is told when it differs. The page waits only when the
// latest is older than diagnoseShown.
func (s *Server) shownDiagnosis(ctx context.Context) (*operatorv1.DiagnoseResponse, error) {
	last := s.diagnosed.latest.Load()
	if !last.isWithin(diagnoseShown) {
		return s.Diagnosis(ctx)
	}
	if !last.isWithin(diagnoseEvery) {
		s.diagnosed.renew.Notify()
	}
	return last.DiagnoseResponse, nil
}

// isNewDiagnosis returns a function that reports whether the diagnosis says something else than it did
// at the last call. It keeps the diagnosis young enough for a page.
func (s *Server) isNewDiagnosis() func() bool {
	shown := ""
	if last := s.diagnosed.latest.Load(); last != nil {
		shown = last.fingerprint
	}
	return func() bool {
		last := s.diagnosed.latest.Load()
		if !last.isWithin(pageBeat) {
			s.diagnosed.renew.Notify()
		}
		if last == nil || last.fingerprint == shown {
			return false
		}
		shown = last.fingerprint
		return true
	}
}

// diagnose looks at every area. An area that cannot be looked at is named in the
// answer.
func (s *Server) diagnose(ctx context.Context) *operatorv1.DiagnoseResponse {
	l := &look{
		s:      s,
		fleet:  diagnosis.Fleet{Now: time.Now(), Letters: map[string]string{}, More: map[string]string{}},
		answer: new(operatorv1.DiagnoseResponse),
	}
	f := &l.fleet
	for _, o := range s.deps.outages() {
		f.Away = append(f.Away, diagnosis.Away{Name: o.name, Since: o.since, Err: clip(o.err.Error(), maxName)})
	}
	within, cancel := context.WithTimeout(ctx, s.cfg.Timeout/3)
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
	f, area := &l.fleet, l.s.cfg.Processes
	ends := &l.s.diagnosed.ends
	var tooMany error // the newest were read
	read := func(events *recentEvents, keep func(*operatorv1.Event) bool, kinds ...string) error {
		err := events.read(ctx, area, f.Now, kinds, keep)
		if errors.Is(err, errEnds) {
			tooMany = err
			return nil
		}
		return err
	}
	err := read(ends, all, "exit", "lost", "dropped", "killed", "returned")
	bad, tooManyBad := ends.bad()
	if err == nil && slices.ContainsFunc(bad, isLost) { // the starts of a large fleet are read only when they are needed
		starts := &l.s.diagnosed.starts
		err = read(starts, tells, "joined")
		bad = append(bad, starts.list...)
	}
	sortEnds(f, bad)
	if err == nil {
		f.Downs, err = readDowns(ctx, area, f.Now)
	}
	if err = cmp.Or(err, tooMany, tooManyBad); err != nil {
		l.notLookedAt("the journal", err)
		return
	}
	l.lookedAt(len(ends.list), "end of the last hour", "ends of the last hour")
}

func (l *look) atWorkers(ctx context.Context) {
	f, area, d := &l.fleet, l.s.cfg.Workers, &l.s.diagnosed
	var err error
	if f.Workers, err = area.List(ctx); err != nil {
		l.notLookedAt("the hosted workers", err)
	} else {
		l.lookedAt(len(f.Workers), "hosted worker", "hosted workers")
		there := map[string]bool{}
		for _, w := range f.Workers {
			there[w.GetId()] = true
		}
		maps.DeleteFunc(d.letters, func(id string, _ []tally) bool { return !there[id] })
	}
	for _, w := range f.Workers {
		f.More[w.GetId()] = d.noteLetters(f.Now, w.GetId(), w.GetDeadLetters())
		if w.GetDeadLetters() > 0 && len(f.Letters) < 20 {
			if letters, err := area.DeadLetters(ctx, w.GetId(), "", "", 1); err == nil && len(letters) > 0 {
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
	if err != nil {
		l.notLookedAt("the streams of NATS", err)
	} else if isLooked {
		l.lookedAt(streams, "stream", "streams")
	}
}

// choose returns a function that reports whether a finding is about a service, or about a process
// when there is one. A process may have ended, and its id may lack the service. What is neither among
// those that the caller sees nor in the journal is an error that names what was probably meant.
func (s *Server) choose(
	ctx context.Context, who Principal, seen roster, service, process string,
) (func(*operatorv1.Finding) bool, error) {
	if process != "" {
		id, err := s.chooseProcess(ctx, who, seen, process)
		return func(f *operatorv1.Finding) bool { return f.GetSubject() == "process/"+id }, err
	}
	if seen.living[service] == 0 {
		last, err := s.newestEvent(ctx, who, presence.EventQuery{Service: service})
		if err != nil {
			return nil, err
		}
		if last == nil {
			return nil, unknown("service", service, slices.Sorted(maps.Keys(seen.living)))
		}
	}
	return func(f *operatorv1.Finding) bool {
		kind, name, _ := strings.Cut(f.GetSubject(), "/")
		if kind == "process" {
			owner, living := seen.service(name)
			return owner == service || living == 0 && owner == identity.Token(service)
		}
		return kind == "service" && name == service
	}, nil
}

// chooseProcess returns the whole id of a process.
func (s *Server) chooseProcess(ctx context.Context, who Principal, seen roster, id string) (string, error) {
	p, err := seen.find("process", id)
	if err != nil || p != nil {
		return p.GetId(), err
	}
	last, err := s.newestEvent(ctx, who, presence.EventQuery{Process: id})
	if err != nil || last != nil {
		return last.GetProcess(), err
	}
	var names []string
	for _, whole := range slices.Sorted(maps.Keys(seen.byID)) {
		_, instance, _ := strings.Cut(whole, ".")
		names = append(names, whole, instance)
	}
	return "", unknown("process", id, names)
}

// newestEvent returns the newest event of the journal that a query selects and the caller sees, nil when
// there is none.
func (s *Server) newestEvent(ctx context.Context, who Principal, q presence.EventQuery) (*operatorv1.Event, error) {
	page, _, err := seenPage(1, 0, func(before uint64, limit int) ([]*operatorv1.Event, uint64, error) {
		q.Before, q.Limit = before, limit
		return s.cfg.Processes.Events(ctx, q)
	}, func(e *operatorv1.Event) bool { return who.sees(object{service: e.GetService()}) })
	var ours *Error
	switch {
	case errors.As(err, &ours) && ours.Reason == ReasonNotServed: // the fleet keeps no journal
		return nil, nil
	case err != nil || len(page) == 0:
		return nil, err
	}
	return page[0], nil
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
		if e.GetKind() == "joined" {
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
		case e.GetKind() == "joined":
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
	endsRead = 20        // pages that one look reads at most
	maxEnds  = 1000      // bad ends that are kept
)

// downsRead is how many changes of probes are read.
const downsRead = 500

// readDowns reads from the journal which probes have gone down in the last minutes, newest first.
func readDowns(ctx context.Context, area Processes, now time.Time) ([]*operatorv1.Event, error) {
	q := presence.EventQuery{Kinds: []string{"probe"}, Since: now.Add(-diagnosis.FlapTime), Limit: downsRead}
	events, _, err := area.Events(ctx, q)
	return slices.DeleteFunc(events, func(e *operatorv1.Event) bool { return e.GetTo() != "down" }), err
}

var errEnds = errors.New("there are more ends in the last hour than are looked at")

// recentEvents are the events of some kinds within the last hour, as the journal has them. An event of the
// journal does not change, so each look reads only those that are new: for an hour after a rollout of
// a large fleet there are thousands. One goroutine at a time uses it.
type recentEvents struct {
	list   []*operatorv1.Event // newest first
	newest *operatorv1.Event   // that was read, also when it was not kept
	cutAt  time.Time           // events before this time were not read, because there were too many; zero when all were
}

// maxPast is how many events of the last hour are looked at.
const maxPast = endsPage * endsRead

// read reads what has come since the last look, or all when that cannot be told, as of a journal that
// was made anew. It keeps the events that keep chooses. When there are more events in the hour than
// are looked at, it has the newest ones, and the error is errEnds. After another error it has what it
// had before.
func (x *recentEvents) read(ctx context.Context, area Processes, now time.Time, kinds []string, keep func(*operatorv1.Event) bool) error {
	q := presence.EventQuery{Kinds: kinds, Since: now.Add(-endsFor)}
	var fresh []*operatorv1.Event
	var err error
	if x.newest != nil {
		q.After = x.newest.GetSeq() - 1
		fresh, err = readBack(ctx, area, q)
	}
	n := len(fresh) - 1
	isThere := n >= 0 && proto.Equal(fresh[n], x.newest) // what was read before is still in the journal
	switch {
	case err != nil:
	case isThere:
		fresh = fresh[:n]
	default:
		q.After = 0
		fresh, err = readBack(ctx, area, q)
	}
	if err != nil {
		return err
	}
	if !isThere {
		x.list, x.newest, x.cutAt = nil, nil, time.Time{}
	}
	if len(fresh) > 0 {
		x.newest = fresh[0]
	}
	if len(fresh) >= maxPast {
		x.cutAt = fresh[len(fresh)-1].GetAt().AsTime()
	}
	isOut := func(e *operatorv1.Event) bool { return e.GetAt().AsTime().Before(q.Since) || !keep(e) }
	x.list = slices.DeleteFunc(slices.Concat(fresh, x.list), isOut)
	if len(x.list) > maxPast {
		x.list = x.list[:maxPast]
		x.cutAt = x.list[maxPast-1].GetAt().AsTime()
	}
	if x.cutAt.Before(q.Since) {
		return nil
	}
	return fmt.Errorf("%w: only those since %s", errEnds, x.cutAt.UTC().Format("15:04 UTC"))
}

// isLost reports whether the next life of a process may tell how it ended.
func isLost(e *operatorv1.Event) bool { return e.GetKind() == "lost" && e.GetLife() != nil }

// all keeps each event.
func all(*operatorv1.Event) bool { return true }

// tells keeps the events "joined" that tell of the end of the life before.
func tells(e *operatorv1.Event) bool { return e.GetFrom() != "" }

// bad returns the ends that the rules look at: not the clean ones. When there are too many, the error
// is errEnds.
func (x *recentEvents) bad() ([]*operatorv1.Event, error) {
	var bad []*operatorv1.Event
	for _, e := range x.list {
		if e.GetKind() != "exit" || diagnosis.Bad(e) {
			bad = append(bad, e)
		}
	}
	if len(bad) > maxEnds {
		return bad[:maxEnds], fmt.Errorf("%w: only the newest %d that are bad", errEnds, maxEnds)
	}
	return bad, nil
}

// readBack reads events from the journal, newest first, and no more than are looked at.
func readBack(ctx context.Context, area Processes, q presence.EventQuery) (list []*operatorv1.Event, err error) {
	for q.Limit = endsPage; len(list) < maxPast; {
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
