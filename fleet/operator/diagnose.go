package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// diagnoseEvery is how old a diagnosis may be. Every page and call shares it.
const diagnoseEvery = time.Second

// diagnosed is the latest diagnosis.
type diagnosed struct {
	sem chan struct{} // of size 1: guards the fields below

	ends   []*operatorv1.Event // the bad ones that were read last
	at     time.Time
	answer *operatorv1.DiagnoseResponse
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
		bad, n, err := readEnds(within, s.cfg.Processes, f.Now)
		if err == nil || errors.Is(err, errEnds) {
			s.diagnosed.ends = bad
		}
		sortEnds(&f, s.diagnosed.ends)
		if err != nil {
			not("the journal", err)
		} else {
			looked(n, "event of the last hour", "events of the last hour")
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

// Limits of a diagnosis.
const (
	endsFor  = time.Hour // how long an end is looked at
	endsPage = 1000      // events that are read at once
	endsRead = 20        // pages that one look reads at most
	maxEnds  = 1000      // bad ends that are kept
)

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
			return bad, n, nil
		}
		if q.Before = next; len(bad) > maxEnds || next == 0 {
			bad = bad[:maxEnds]
			break
		}
	}
	return bad, n, fmt.Errorf("%w: only the newest %d", errEnds, n)
}
