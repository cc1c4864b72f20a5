package operator

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// processService implements the contract's ProcessService.
type processService struct{ s *Server }

func (p processService) ListProcesses(
	ctx context.Context, req *operatorv1.ListProcessesRequest,
) (*operatorv1.ListProcessesResponse, error) {
	c := requestOf(req)
	order, ok := processOrders[cmp.Or(req.GetSort(), "service")]
	if !ok {
		c.add("sort", "is %q, want service, problems or started", clip(req.GetSort(), 64))
	}
	oneOf(&c.violations, "phase", req.GetPhase(), lifecycle.Phases().Phases())
	page := c.paging(req)
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.ListProcessesResponse, error) {
		all, err := p.s.listed(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(x *operatorv1.Process) bool { return !c.who.seesProcess(x) || !diagnosis.Matches(req, x) })
		slices.SortFunc(all, func(a, b *operatorv1.Process) int { return strings.Compare(order(a), order(b)) })
		answer := &operatorv1.ListProcessesResponse{Totals: totals(all)}
		answer.Processes, answer.NextPageToken = pageOf(all, order, page)
		return answer, nil
	})
}

// processOrders are the orders of a list: each is a key that no two processes share, by
// which a page also continues.
var processOrders = map[string]func(*operatorv1.Process) string{
	"service": func(x *operatorv1.Process) string { return x.GetService() + "\x00" + x.GetId() },
	"problems": func(x *operatorv1.Process) string {
		rank := "2"
		for _, f := range x.GetFindings() {
			rank = min(rank, map[bool]string{true: "0", false: "1"}[f.GetSeverity() == diagnosis.Error])
		}
		return rank + x.GetService() + "\x00" + x.GetId()
	},
	"started": func(x *operatorv1.Process) string {
		at := x.GetStartedAt() // of the years 1 to 9999, which are too many for a number of nanoseconds
		return fmt.Sprintf("%020d %09d\x00%s", math.MaxInt64/2-at.GetSeconds(), 999_999_999-at.GetNanos(), x.GetId())
	},
}

func totals(list []*operatorv1.Process) *operatorv1.ProcessTotals {
	t := &operatorv1.ProcessTotals{
		All:      int64(len(list)),
		Phases:   map[string]int64{},
		Services: map[string]int64{},
		Versions: map[string]int64{},
	}
	for _, x := range list {
		t.Phases[clip(x.GetPhase(), maxName)]++
		t.Services[clip(x.GetService(), maxName)]++
		t.Versions[clip(x.GetVersion(), maxName)]++
		if x.GetReady() {
			t.Ready++
		}
		if len(x.GetFindings()) > 0 {
			t.Problems++
		}
	}
	return t
}

func (p processService) ListEvents(
	ctx context.Context, req *operatorv1.ListEventsRequest,
) (*operatorv1.ListEventsResponse, error) {
	c := requestOf(req)
	var kinds []string
	for _, kind := range req.GetKinds() {
		oneOf(&c.violations, "kinds", kind, dashboard.Kinds)
		kinds = append(kinds, strings.ToLower(kind))
	}
	page := c.paging(req)
	q := presence.EventQuery{
		Service:  req.GetService(),
		Process:  req.GetProcess(),
		Kinds:    kinds,
		Contains: req.GetContains(),
		Since:    c.time("since", req.GetSince()),
		Until:    c.time("until", req.GetUntil()),
		Before:   page.number(&c.violations),
		Limit:    page.size,
	}
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.ListEventsResponse, error) {
		if len(p.s.deps.outages()) > 0 { // what the caller asks beside the events must not wait as long
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, p.s.cfg.Timeout/3)
			defer cancel()
		}
		events, next, err := seenPage(q.Limit, q.Before, func(before uint64, limit int) ([]*operatorv1.Event, uint64, error) {
			q.Before, q.Limit = before, limit
			return p.s.cfg.Processes.Events(ctx, q)
		}, func(e *operatorv1.Event) bool { return c.who.sees(object{service: e.GetService()}) })
		return &operatorv1.ListEventsResponse{Events: events, NextPageToken: page.nextNumber(next)}, err
	})
}

func (p processService) Diagnose(ctx context.Context, req *operatorv1.DiagnoseRequest) (*operatorv1.DiagnoseResponse, error) {
	c := requestOf(req)
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.DiagnoseResponse, error) {
		answer, err := p.s.Diagnosis(ctx)
		if err != nil {
			return nil, err
		}
		isChosen := req.GetService() != "" || req.GetProcess() != ""
		all, err := p.s.listed(ctx) // without it, the ids have the services
		if needsAll := isChosen || c.who.scoped() && p.s.cfg.Processes != nil; err != nil && needsAll {
			return nil, err
		}
		known := rosterOf(all)
		findings := slices.Clone(answer.GetFindings())
		looked, not := answer.GetLookedAt(), answer.GetNotLookedAt()
		if c.who.scoped() { // what was looked at counts and names what the caller does not see
			looked = []string{"what you may see"}
			if len(not) > 0 {
				not = []string{"a part of the fleet: a caller with a role in all of it sees which, and why"}
			}
			workers, err := p.s.workersByID(ctx)
			if err != nil {
				return nil, err
			}
			findings = slices.DeleteFunc(findings, func(f *operatorv1.Finding) bool {
				return !c.who.seesFinding(f, known, workers)
			})
		}
		if isChosen {
			seen := rosterOf(slices.DeleteFunc(all, func(x *operatorv1.Process) bool { return !c.who.seesProcess(x) }))
			chosen, err := choose(seen, findings, req.GetService(), req.GetProcess())
			if err != nil {
				return nil, err
			}
			findings = slices.DeleteFunc(findings, func(f *operatorv1.Finding) bool { return !chosen(f) })
		}
		return &operatorv1.DiagnoseResponse{
			Findings:    diagnosis.Arrange(findings, known.service),
			LookedAt:    looked,
			NotLookedAt: not,
		}, nil
	})
}

func (p processService) GetProcess(ctx context.Context, req *operatorv1.GetProcessRequest) (*operatorv1.Process, error) {
	c := requestOf(req)
	return call(ctx, p.s, c, func(context.Context) (*operatorv1.Process, error) { return c.process, nil })
}

func (p processService) GetLogs(ctx context.Context, req *operatorv1.GetLogsRequest) (*operatorv1.GetLogsResponse, error) {
	c := requestOf(req)
	c.inSeries, c.continuesSeries = true, req.GetAfter() > 0
	limit := cmp.Or(int(req.GetLimit()), 200)
	if limit < 0 || limit > 1000 {
		c.add("limit", "is %d, want 1 to 1000, or 0 for 200", limit)
	}
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.GetLogsResponse, error) {
		return p.s.cfg.Processes.Logs(ctx, c.object, c.who.Name, req.GetAfter(), limit)
	})
}

func (p processService) GetStacks(ctx context.Context, req *operatorv1.GetStacksRequest) (*operatorv1.GetStacksResponse, error) {
	c := requestOf(req)
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.GetStacksResponse, error) {
		text, err := p.s.cfg.Processes.Stacks(ctx, c.object, c.who.Name)
		return &operatorv1.GetStacksResponse{Text: text}, err
	})
}

func (p processService) GetConfig(ctx context.Context, req *operatorv1.GetConfigRequest) (*operatorv1.GetConfigResponse, error) {
	c := requestOf(req)
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.GetConfigResponse, error) {
		return p.s.cfg.Processes.Config(ctx, c.object, c.who.Name)
	})
}

func (p processService) DrainProcess(
	ctx context.Context, req *operatorv1.DrainProcessRequest,
) (*operatorv1.CommandResponse, error) {
	c := requestOf(req)
	c.reason(req.GetReason())
	c.detail = req.GetReason()
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.CommandResponse, error) {
		phase, err := p.s.cfg.Processes.Drain(ctx, c.object, req.GetReason(), c.who.Name)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) SuspendProcess(
	ctx context.Context, req *operatorv1.SuspendProcessRequest,
) (*operatorv1.CommandResponse, error) {
	c := requestOf(req)
	c.reason(req.GetReason())
	c.required("reason", req.GetReason())
	c.detail = req.GetReason()
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.CommandResponse, error) {
		phase, err := p.s.cfg.Processes.Suspend(ctx, c.object, req.GetReason(), c.who.Name)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) ResumeProcess(
	ctx context.Context, req *operatorv1.ResumeProcessRequest,
) (*operatorv1.CommandResponse, error) {
	c := requestOf(req)
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.CommandResponse, error) {
		phase, err := p.s.cfg.Processes.Resume(ctx, c.object, c.who.Name)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) RestartUnit(
	ctx context.Context, req *operatorv1.RestartUnitRequest,
) (*operatorv1.RestartUnitResponse, error) {
	c := requestOf(req)
	c.reason(req.GetReason())
	c.required("unit", req.GetUnit())
	c.detail = strings.TrimSuffix(req.GetUnit()+": "+req.GetReason(), ": ")
	return call(ctx, p.s, c, func(ctx context.Context) (*operatorv1.RestartUnitResponse, error) {
		return p.s.cfg.Processes.RestartUnit(ctx, c.object, req.GetUnit(), req.GetReason(), c.who.Name)
	})
}

func (p processService) WatchProcesses(
	ctx context.Context, req *operatorv1.WatchProcessesRequest, stream *connect.ServerStream[operatorv1.WatchProcessesResponse],
) error {
	return p.watch(ctx, req, stream.Send)
}

// watch serves WatchProcesses; send sends one message.
func (p processService) watch(
	ctx context.Context, req *operatorv1.WatchProcessesRequest, send func(*operatorv1.WatchProcessesResponse) error,
) error {
	c := requestOf(req)
	c.scope, c.object = scopeParts, "" // the id is a filter
	err := p.s.begin(ctx, c)
	if err == nil {
		r := p.s.processes.Read(req.GetId(), c.who.seesProcess)
		err = follow(ctx, p.s, c.who, r, func(
			kind operatorv1.WatchResponse_Kind, key string, x *operatorv1.Process,
		) *operatorv1.WatchProcessesResponse {
			if kind == operatorv1.WatchResponse_KIND_DELETED {
				x = &operatorv1.Process{Id: key}
			}
			return &operatorv1.WatchProcessesResponse{Kind: kind, Process: x}
		}, send)
	}
	return p.s.failure(ctx, c.action, err)
}

// newProcessFeed returns the feed of all processes, which runs until the server is closed. A
// process announces itself every few seconds: watchers get only what is new, so a fleet at rest
// costs them nothing, and lists and pages have the latest.
func (s *Server) newProcessFeed(area Processes) *feed.Feed[*operatorv1.Process] {
	return feed.New(area.Watch, feed.Options[*operatorv1.Process]{
		Always: true,
		Failed: s.watchFailed("the processes"),
		Merge: func(_ string, old *operatorv1.Process, known bool, new *operatorv1.Process) (*operatorv1.Process, bool) {
			if !known {
				old = nil
			}
			diagnosis.Date(new, old)
			return new, !known || !proto.Equal(diagnosis.News(old), diagnosis.News(new))
		},
	})
}

// synced waits until the server has read which processes there are.
func (s *Server) synced(ctx context.Context) error {
	if s.cfg.Processes == nil {
		return notServed("processes")
	}
	if s.processes.Synced(ctx) != nil {
		return Errorf(connect.CodeUnavailable, ReasonUnavailable, "",
			"the processes have not been read yet: try again in a moment")
	}
	return nil
}

// listed returns every process in any order, with what is wrong with it now. The caller must
// not change them.
func (s *Server) listed(ctx context.Context) (list []*operatorv1.Process, err error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	s.processes.Each(func(_ string, p *operatorv1.Process) { list = append(list, p) })
	return list, nil
}

// process returns the process of an id, which may lack the service when no other process has
// the rest of it.
func (s *Server) process(ctx context.Context, id string) (*operatorv1.Process, error) {
	list, err := s.listed(ctx)
	if err != nil {
		return nil, err
	}
	p, err := rosterOf(list).find("id", id)
	switch {
	case err != nil || p != nil:
		return p, err
	case len(s.deps.outages()) > 0: // it may have come since
		return nil, Errorf(connect.CodeUnavailable, ReasonUnavailable, "", "no process %q is known", clip(id, maxName))
	}
	return nil, Errorf(connect.CodeNotFound, ReasonNotFound, "id", "no such process: %q", clip(id, maxName))
}

// roster has processes by their ids, and how many of each service there are.
type roster struct {
	byID   map[string]*operatorv1.Process
	living map[string]int
}

func rosterOf(list []*operatorv1.Process) roster {
	x := roster{map[string]*operatorv1.Process{}, map[string]int{}}
	for _, p := range list {
		x.byID[p.GetId()] = p
		x.living[p.GetService()]++
	}
	return x
}

// service returns the service of a process, and how many processes of it there are: none when this one
// is not listed, as one that has ended. Its id begins with its service.
func (x roster) service(id string) (name string, living int) {
	if p := x.byID[id]; p != nil {
		return p.GetService(), x.living[p.GetService()]
	}
	name, _, _ = strings.Cut(id, ".")
	return name, 0
}

// find returns the process of an id, which may lack the service, and nil when there is none. That
// several services have a process of the id is an error of the field.
func (x roster) find(field, id string) (*operatorv1.Process, error) {
	whole := x.byID[id]
	if whole != nil && strings.Contains(id, ".") {
		return whole, nil
	}
	var found []string
	for key := range x.byID {
		if _, instance, _ := strings.Cut(key, "."); instance == id {
			found = append(found, key)
		}
	}
	switch len(found) {
	case 0:
		return whole, nil // an entry that no process has written has no dot
	case 1:
		return x.byID[found[0]], nil
	}
	slices.Sort(found)
	return nil, invalid(field, "several services have a process of this id: %s", strings.Join(found[:min(len(found), 8)], ", "))
}
