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

	ends   pastEnds
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
		looking, stop := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout/3) // what is read is for all callers
		n, err := s.diagnosed.ends.read(looking, s.cfg.Processes, f.Now)
		stop()
		sortEnds(&f, s.diagnosed.ends.bad)
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

// pastEnds are the ends of processes within the last hour, as the journal has them. Each
// look reads only what is new: a rollout of a large fleet has thousands of ends, and the
// bad ones among them must not get lost. One goroutine at a time uses it.
type pastEnds struct {
	bad    []*operatorv1.Event // what the rules look at, newest first
	times  []time.Time         // of all that were read, newest first
	newest *operatorv1.Event
	missed time.Time // when ends were last left out
}

// Limits of a diagnosis.
const (
	endsFor  = time.Hour // how long an end is looked at
	endsPage = 1000      // events that are read at once
	endsRead = 20        // pages that one look reads at most
	maxEnds  = 1000      // bad ends that are kept
)

var errEnds = errors.New("there are more ends in the last hour than are looked at")

// read reads what the journal has since the last look, and returns how many events of the
// last hour were looked at. After an error it has what it had before.
func (x *pastEnds) read(ctx context.Context, area Processes, now time.Time) (n int, err error) {
	since := now.Add(-endsFor)
	gone := func(at time.Time) bool { return at.Before(since) }
	x.times = slices.DeleteFunc(x.times, gone)
	x.bad = slices.DeleteFunc(x.bad, func(e *operatorv1.Event) bool { return gone(e.GetAt().AsTime()) })

	q := presence.EventQuery{
		Kinds: []string{"exit", "lost", "dropped", "killed", "returned"},
		Since: since,
		Limit: endsPage,
	}
	if x.newest != nil {
		q.After = x.newest.GetSeq() - 1 // it must be there again
	}
	fresh, known, err := readEnds(ctx, area, q, x.newest)
	if err == nil && !known && x.newest != nil { // it is too old, or the journal was emptied or made anew
		x.bad, x.times, q.After = nil, nil, 0
		fresh, _, err = readEnds(ctx, area, q, nil)
	}
	if errors.Is(err, errEnds) {
		x.missed, err = now, nil
	}
	if err != nil {
		return len(x.times), err
	}
	var bad []*operatorv1.Event
	times := make([]time.Time, 0, len(fresh))
	for _, e := range fresh {
		times = append(times, e.GetAt().AsTime())
		if e.GetKind() != "exit" || diagnosis.Bad(e) {
			bad = append(bad, e)
		}
	}
	if len(fresh) > 0 {
		x.newest = fresh[0]
	}
	x.times, x.bad = slices.Concat(times, x.times), slices.Concat(bad, x.bad)
	if len(x.bad) > maxEnds || len(x.times) > endsPage*endsRead {
		x.bad = x.bad[:min(len(x.bad), maxEnds)]
		x.times = x.times[:min(len(x.times), endsPage*endsRead)]
		x.missed = now
	}
	if !gone(x.missed) {
		return len(x.times), fmt.Errorf("%w: only the newest %d", errEnds, len(x.times))
	}
	return len(x.times), nil
}

// readEnds reads events, newest first, down to one that was read before; known says whether
// it came to that one. It returns what it has and errEnds when there are too many.
func readEnds(
	ctx context.Context, area Processes, q presence.EventQuery, until *operatorv1.Event,
) (list []*operatorv1.Event, known bool, err error) {
	for range endsRead {
		events, next, err := area.Events(ctx, q)
		if err != nil && len(list) > 0 {
			return list, false, errEnds // the next look must not begin at the same place
		}
		if err != nil {
			return nil, false, err
		}
		for _, e := range events {
			if until != nil && e.GetSeq() <= until.GetSeq() {
				same := e.GetSeq() == until.GetSeq() && e.GetAt().AsTime().Equal(until.GetAt().AsTime())
				return list, same, nil
			}
			list = append(list, e)
		}
		if next == 0 {
			return list, false, nil
		}
		q.Before = next
	}
	return list, false, errEnds
}
