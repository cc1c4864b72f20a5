package operator

import (
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
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// diagnoseEvery is how old a diagnosis may be. Every page and call shares it.
const diagnoseEvery = time.Second

// diagnosed is the latest diagnosis.
type diagnosed struct {
	sem chan struct{} // of size 1: guards the fields below

	ends   []*operatorv1.Event // the bad ones that were read last
	at     time.Time
	answer *operatorv1.DiagnoseResponse

	letters map[string][]tally // by worker: how many dead letters it had, oldest first
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

// more notes how many dead letters a worker has, and returns how many have come within the last
// minutes in which the server has looked; "" for none.
func (d *diagnosed) more(now time.Time, id string, n int64) string {
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
	if d.answer != nil && time.Since(d.at) < diagnoseEvery {
		return d.answer, nil
	}
	begun := time.Now()
	answer := s.diagnose(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d.answer, d.at = answer, begun
	return answer, nil
}

// diagnose looks at every area. An area that cannot be looked at is named in the
// answer.
func (s *Server) diagnose(ctx context.Context) *operatorv1.DiagnoseResponse {
	answer := new(operatorv1.DiagnoseResponse)
	f := diagnosis.Fleet{Now: time.Now(), Letters: map[string]string{}, More: map[string]string{}}
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
		bad, n, err := readEnds(within, s.cfg.Processes, f.Now)
		if err == nil || errors.Is(err, errEnds) {
			s.diagnosed.ends = bad
		}
		sortEnds(&f, s.diagnosed.ends)
		if err == nil {
			f.Downs, err = readDowns(within, s.cfg.Processes, f.Now)
		}
		if err != nil {
			not("the journal", err)
		} else {
			looked(n, "end of the last hour", "ends of the last hour")
		}
	}
	if s.cfg.Workers != nil {
		var err error
		if f.Workers, err = s.cfg.Workers.List(within); err != nil {
			not("the hosted workers", err)
		} else {
			looked(len(f.Workers), "hosted worker", "hosted workers")
			there := map[string]bool{}
			for _, w := range f.Workers {
				there[w.GetId()] = true
			}
			maps.DeleteFunc(s.diagnosed.letters, func(id string, _ []tally) bool { return !there[id] })
		}
		for _, w := range f.Workers {
			f.More[w.GetId()] = s.diagnosed.more(f.Now, w.GetId(), w.GetDeadLetters())
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
		if area, ok := s.cfg.Workflows.(interface {
			hooks(ctx context.Context, typ string) ([]diagnosis.Hook, error)
		}); ok {
			for _, d := range f.Workflows {
				hooks, err := area.hooks(within, d.GetType())
				if err != nil {
					not("the hooks of "+d.GetType(), err)
				}
				f.Hooks = append(f.Hooks, hooks...)
			}
		}
	}
	if f.Workflows != nil { // otherwise the entities that were seen last may be gone
		f.Stuck, f.Hot = s.flows.look(s.cfg.StuckAfter, s.cfg.HotWrites)
	}
	facts, streams, isLooked, err := s.store.facts()
	f.Store = facts
	if err != nil {
		not("the streams of NATS", err)
	} else if isLooked {
		looked(streams, "stream", "streams")
	}
	answer.Findings = diagnosis.Diagnose(f)
	return answer
}

// choose returns a function that reports whether a finding is about a service, or about a process
// when there is one. A process may have ended, and its id may lack the service. What neither
// announces itself nor is in the journal is an error that names what was probably meant.
func (s *Server) choose(ctx context.Context, who Principal, service, process string) (func(*operatorv1.Finding) bool, error) {
	if s.cfg.Processes == nil {
		return nil, notServed("processes")
	}
	all, err := s.listed(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(x *operatorv1.Process) bool { return !who.seesProcess(x) })
	services := map[string]string{}
	for _, x := range all {
		services[x.GetId()] = x.GetService()
	}
	if process != "" {
		id, err := s.chooseProcess(ctx, who, process, slices.Sorted(maps.Keys(services)))
		return func(f *operatorv1.Finding) bool { return f.GetSubject() == "process/"+id }, err
	}
	known := slices.Sorted(maps.Values(services))
	if !slices.Contains(known, service) {
		past, err := s.past(ctx, who, presence.EventQuery{Service: service})
		if err != nil {
			return nil, err
		}
		if past == nil {
			return nil, unknown("service", service, known)
		}
	}
	return func(f *operatorv1.Finding) bool {
		kind, name, _ := strings.Cut(f.GetSubject(), "/")
		if kind == "process" { // one that has ended is not listed; its id begins with its service
			owner, isListed := services[name]
			if !isListed {
				owner, _, _ = strings.Cut(name, ".")
			}
			return owner == service || !isListed && owner == identity.Token(service)
		}
		return kind == "service" && name == service
	}, nil
}

// chooseProcess returns the whole id of a process, of which known are those that announce
// themselves.
func (s *Server) chooseProcess(ctx context.Context, who Principal, id string, known []string) (string, error) {
	if slices.Contains(known, id) {
		return id, nil
	}
	var found, names []string
	for _, whole := range known {
		_, instance, _ := strings.Cut(whole, ".")
		if names = append(names, whole, instance); instance == id {
			found = append(found, whole)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", invalid("process", "several services have a process of this id: %s", strings.Join(found[:min(len(found), 8)], ", "))
	}
	past, err := s.past(ctx, who, presence.EventQuery{Process: id})
	switch {
	case err != nil:
		return "", err
	case past == nil:
		return "", unknown("process", id, names)
	}
	return past.GetProcess(), nil
}

// past returns the newest event of the journal that a query selects and the caller sees, nil when
// there is none.
func (s *Server) past(ctx context.Context, who Principal, q presence.EventQuery) (*operatorv1.Event, error) {
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
		if words := told[of(e)]; e.GetKind() == "lost" && e.GetLife() != nil && words != nil {
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

// readEnds reads the ends of processes of the last hour from the journal, newest first. It
// returns those that the rules look at: a rollout of a large fleet has thousands of clean
// ends, and the bad ones among them must not get lost. n is how many it has read; when
// there are more, the error is errEnds.
func readEnds(ctx context.Context, area Processes, now time.Time) (bad []*operatorv1.Event, n int, err error) {
	q := presence.EventQuery{
		Kinds: []string{"exit", "lost", "dropped", "killed", "returned"},
		Since: now.Add(-endsFor),
		Limit: endsPage,
	}
	for range endsRead {
		events, next, err := area.Events(ctx, q)
		if err != nil {
			return bad, n, err
		}
		n += len(events)
		for _, e := range events {
			if e.GetKind() != "exit" || diagnosis.Bad(e) {
				bad = append(bad, e)
			}
		}
		if next == 0 && len(bad) <= maxEnds {
			words, err := readWords(ctx, area, bad, q.Since)
			return append(bad, words...), n, err
		}
		if q.Before = next; len(bad) > maxEnds || next == 0 {
			bad = bad[:maxEnds]
			break
		}
	}
	return bad, n, fmt.Errorf("%w: only the newest %d", errEnds, n)
}

// readWords reads what the next lives of processes that disappeared tell of their ends. A start of a
// large fleet has thousands of events "joined", and only these are needed.
func readWords(ctx context.Context, area Processes, ends []*operatorv1.Event, since time.Time) (list []*operatorv1.Event, err error) {
	services := map[string]bool{}
	for _, e := range ends {
		if e.GetKind() == "lost" && e.GetLife() != nil {
			services[e.GetService()] = true
		}
	}
	for _, service := range slices.Sorted(maps.Keys(services)) {
		q := presence.EventQuery{Kinds: []string{"joined"}, Service: service, Since: since, Limit: endsPage}
		for range endsRead {
			events, next, err := area.Events(ctx, q)
			if err != nil {
				return list, err
			}
			for _, e := range events {
				if e.GetFrom() != "" {
					list = append(list, e)
				}
			}
			if q.Before = next; next == 0 {
				break
			}
		}
	}
	return list, nil
}
