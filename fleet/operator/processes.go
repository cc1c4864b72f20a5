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

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// processService implements the contract's ProcessService.
type processService struct{ s *Server }

func onProcess[A proto.Message](ctx context.Context, p processService, method, id, detail string, v violations, work func(ctx context.Context, area Processes, id, who string) (A, error)) (A, error) {
	return call(ctx, p.s, "ProcessService."+method, intent{target: "process/" + id, detail: detail, scope: scopeOne, of: id}, v, func(ctx context.Context, who Principal) (answer A, err error) {
		if p.s.cfg.Processes == nil {
			return answer, notServed("processes")
		}
		return work(ctx, p.s.cfg.Processes, objectOf(ctx), who.Name)
	})
}

func (p processService) ListProcesses(ctx context.Context, req *operatorv1.ListProcessesRequest) (*operatorv1.ListProcessesResponse, error) {
	var v violations
	v.text("service", req.GetService(), false, maxName)
	v.text("phase", req.GetPhase(), false, maxName)
	v.text("contains", req.GetContains(), false, maxName)
	order, ok := processOrders[cmp.Or(req.GetSort(), "service")]
	if !ok {
		v.add("sort", "is %q, want service, problems or started", clip(req.GetSort(), 64))
	}
	size := v.size("page_size", req.GetPageSize())
	id := proto.CloneOf(req)
	id.PageSize, id.PageToken = 0, ""
	list := listID(id)
	after := v.page(req.GetPageToken(), list)
	return call(ctx, p.s, "ProcessService.ListProcesses", intent{scope: scopeParts}, v, func(ctx context.Context, who Principal) (*operatorv1.ListProcessesResponse, error) {
		if p.s.cfg.Processes == nil {
			return nil, notServed("processes")
		}
		all, err := p.s.listed(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(x *operatorv1.Process) bool { return !who.seesProcess(x) || !matches(req, x) })
		type row struct {
			key string
			x   *operatorv1.Process
		}
		rows := make([]row, len(all))
		for i, x := range all {
			rows[i] = row{order(x), x}
		}
		slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.key, b.key) })
		page, next := pageOf(rows, func(r row) string { return r.key }, after, size, list)
		answer := &operatorv1.ListProcessesResponse{Totals: totals(all), NextPageToken: next}
		for _, r := range page {
			answer.Processes = append(answer.Processes, r.x)
		}
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

func matches(req *operatorv1.ListProcessesRequest, x *operatorv1.Process) bool {
	if s := req.GetService(); s != "" && x.GetService() != s {
		return false
	}
	if ph := req.GetPhase(); ph != "" && x.GetPhase() != ph || req.GetProblems() && len(x.GetFindings()) == 0 {
		return false
	}
	text := strings.ToLower(strings.Join([]string{x.GetId(), x.GetService(), x.GetHost(), x.GetVersion()}, "\n"))
	return strings.Contains(text, strings.ToLower(req.GetContains()))
}

func totals(list []*operatorv1.Process) *operatorv1.ProcessTotals {
	t := &operatorv1.ProcessTotals{All: int64(len(list)), Phases: map[string]int64{}, Services: map[string]int64{}, Versions: map[string]int64{}}
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

func (p processService) ListEvents(ctx context.Context, req *operatorv1.ListEventsRequest) (*operatorv1.ListEventsResponse, error) {
	var v violations
	v.text("service", req.GetService(), false, maxName)
	v.text("process", req.GetProcess(), false, maxName)
	v.text("contains", req.GetContains(), false, maxName)
	if len(req.GetKinds()) > maxFields {
		v.add("kinds", "has %d kinds, at most %d are allowed", len(req.GetKinds()), maxFields)
	}
	for i, kind := range req.GetKinds()[:min(len(req.GetKinds()), maxFields)] {
		v.text(fmt.Sprintf("kinds[%d]", i), kind, true, maxName)
	}
	q := EventQuery{
		Service: req.GetService(), Process: req.GetProcess(), Kinds: req.GetKinds(), Contains: req.GetContains(),
		Since: v.time("since", req.GetSince()), Until: v.time("until", req.GetUntil()), Limit: v.size("page_size", req.GetPageSize()),
	}
	id := proto.CloneOf(req)
	id.PageSize, id.PageToken = 0, ""
	list := listID(id)
	var err error
	if q.Before, err = sequence(v.page(req.GetPageToken(), list)); err != nil {
		v.add("page_token", "is not a next_page_token of this server")
	}
	return call(ctx, p.s, "ProcessService.ListEvents", intent{scope: scopeParts}, v, func(ctx context.Context, who Principal) (*operatorv1.ListEventsResponse, error) {
		journal, ok := p.s.cfg.Processes.(Journal)
		if !ok {
			return nil, notServed("a journal")
		}
		if len(p.s.deps.outages()) > 0 { // what the caller asks beside the events must not wait as long
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, p.s.cfg.Timeout/3)
			defer cancel()
		}
		events, next, err := seenPage(q.Limit, q.Before, func(before uint64, limit int) ([]*operatorv1.Event, uint64, error) {
			q.Before, q.Limit = before, limit
			return journal.Events(ctx, q)
		}, func(e *operatorv1.Event) bool { return who.sees(object{service: e.GetService()}) })
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListEventsResponse{Events: events}
		if next != 0 {
			answer.NextPageToken = pageToken{after(next), list}.String()
		}
		return answer, nil
	})
}

func (p processService) Diagnose(ctx context.Context, req *operatorv1.DiagnoseRequest) (*operatorv1.DiagnoseResponse, error) {
	var v violations
	v.text("service", req.GetService(), false, maxName)
	v.text("process", req.GetProcess(), false, maxName)
	return call(ctx, p.s, "ProcessService.Diagnose", intent{scope: scopeParts}, v, func(ctx context.Context, who Principal) (*operatorv1.DiagnoseResponse, error) {
		answer, err := p.s.diagnosisOf(ctx, who)
		if err != nil || req.GetService() == "" && req.GetProcess() == "" {
			return answer, err
		}
		services := map[string]string{}
		if p.s.cfg.Processes != nil {
			all, err := p.s.listed(ctx)
			if err != nil {
				return nil, err
			}
			for _, x := range all {
				services["process/"+x.GetId()] = x.GetService()
			}
		}
		answer = proto.CloneOf(answer)
		answer.Findings = slices.DeleteFunc(answer.Findings, func(f *operatorv1.Finding) bool {
			if id := req.GetProcess(); id != "" {
				return f.GetSubject() != "process/"+id
			}
			return f.GetSubject() != "service/"+req.GetService() && services[f.GetSubject()] != req.GetService()
		})
		return answer, nil
	})
}

func (p processService) GetProcess(ctx context.Context, req *operatorv1.GetProcessRequest) (*operatorv1.Process, error) {
	return onProcess(ctx, p, "GetProcess", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, _ Processes, id, _ string) (*operatorv1.Process, error) {
		return p.s.process(ctx, id)
	})
}

func (p processService) GetLogs(ctx context.Context, req *operatorv1.GetLogsRequest) (*operatorv1.GetLogsResponse, error) {
	v := workerID(req.GetId())
	limit := cmp.Or(int(req.GetLimit()), 200)
	if limit < 0 || limit > 1000 {
		v.add("limit", "is %d, want 1 to 1000, or 0 for 200", limit)
	}
	return inspect(ctx, p, "GetLogs", intent{target: "process/" + req.GetId(), reads: true, readsOn: req.GetAfter() > 0, scope: scopeOne, of: req.GetId()}, v, func(ctx context.Context, area Inspector, id, who string) (*operatorv1.GetLogsResponse, error) {
		return area.Logs(ctx, id, who, req.GetAfter(), limit)
	})
}

func (p processService) GetStacks(ctx context.Context, req *operatorv1.GetStacksRequest) (*operatorv1.GetStacksResponse, error) {
	return inspect(ctx, p, "GetStacks", intent{target: "process/" + req.GetId(), scope: scopeOne, of: req.GetId()}, workerID(req.GetId()), func(ctx context.Context, area Inspector, id, who string) (*operatorv1.GetStacksResponse, error) {
		text, err := area.Stacks(ctx, id, who)
		return &operatorv1.GetStacksResponse{Text: text}, err
	})
}

func (p processService) GetConfig(ctx context.Context, req *operatorv1.GetConfigRequest) (*operatorv1.GetConfigResponse, error) {
	return inspect(ctx, p, "GetConfig", intent{target: "process/" + req.GetId(), scope: scopeOne, of: req.GetId()}, workerID(req.GetId()), func(ctx context.Context, area Inspector, id, who string) (*operatorv1.GetConfigResponse, error) {
		return area.Config(ctx, id, who)
	})
}

func inspect[A proto.Message](ctx context.Context, p processService, method string, what intent, v violations, work func(ctx context.Context, area Inspector, id, who string) (A, error)) (A, error) {
	return call(ctx, p.s, "ProcessService."+method, what, v, func(ctx context.Context, who Principal) (answer A, err error) {
		area, ok := p.s.cfg.Processes.(Inspector)
		if !ok {
			return answer, notServed("processes that can be looked into")
		}
		return work(ctx, area, objectOf(ctx), who.Name)
	})
}

func (p processService) DrainProcess(ctx context.Context, req *operatorv1.DrainProcessRequest) (*operatorv1.CommandResponse, error) {
	v := workerID(req.GetId())
	v.text("reason", req.GetReason(), false, maxName)
	return onProcess(ctx, p, "DrainProcess", req.GetId(), req.GetReason(), v, func(ctx context.Context, area Processes, id, who string) (*operatorv1.CommandResponse, error) {
		phase, err := area.Drain(ctx, id, req.GetReason(), who)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) SuspendProcess(ctx context.Context, req *operatorv1.SuspendProcessRequest) (*operatorv1.CommandResponse, error) {
	v := workerID(req.GetId())
	v.text("reason", req.GetReason(), true, maxName)
	return onProcess(ctx, p, "SuspendProcess", req.GetId(), req.GetReason(), v, func(ctx context.Context, area Processes, id, who string) (*operatorv1.CommandResponse, error) {
		phase, err := area.Suspend(ctx, id, req.GetReason(), who)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) ResumeProcess(ctx context.Context, req *operatorv1.ResumeProcessRequest) (*operatorv1.CommandResponse, error) {
	return onProcess(ctx, p, "ResumeProcess", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Processes, id, who string) (*operatorv1.CommandResponse, error) {
		phase, err := area.Resume(ctx, id, who)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) RestartUnit(ctx context.Context, req *operatorv1.RestartUnitRequest) (*operatorv1.RestartUnitResponse, error) {
	v := workerID(req.GetId())
	v.text("unit", req.GetUnit(), true, maxPath)
	v.text("reason", req.GetReason(), false, maxName)
	detail := strings.TrimSuffix(req.GetUnit()+": "+req.GetReason(), ": ")
	return onProcess(ctx, p, "RestartUnit", req.GetId(), detail, v, func(ctx context.Context, area Processes, id, who string) (*operatorv1.RestartUnitResponse, error) {
		restarter, ok := area.(Restarter)
		if !ok {
			return nil, notServed("processes whose units can be restarted")
		}
		return restarter.RestartUnit(ctx, id, req.GetUnit(), req.GetReason(), who)
	})
}

func (p processService) WatchProcesses(ctx context.Context, req *operatorv1.WatchProcessesRequest, stream *connect.ServerStream[operatorv1.WatchProcessesResponse]) error {
	return p.watch(ctx, req, stream.Send)
}

// watch serves WatchProcesses; send sends one message.
func (p processService) watch(ctx context.Context, req *operatorv1.WatchProcessesRequest, send func(*operatorv1.WatchProcessesResponse) error) error {
	const action = "ProcessService.WatchProcesses"
	var v violations
	v.text("id", req.GetId(), false, maxName)
	err := func() error {
		who, err := p.s.authorize(ctx, action)
		if err != nil {
			return err
		}
		if err := v.err(); err != nil {
			return err
		}
		if p.s.cfg.Processes == nil {
			return notServed("processes")
		}
		return follow(ctx, p.s, who, p.s.processes.Read(req.GetId()), who.seesProcess, func(kind operatorv1.WatchResponse_Kind, key string, x *operatorv1.Process) error {
			if kind == operatorv1.WatchResponse_KIND_DELETED {
				x = &operatorv1.Process{Id: key}
			}
			return send(&operatorv1.WatchProcessesResponse{Kind: kind, Process: x})
		})
	}()
	return wire(ctx, p.s.log, action, p.s.deps.explain(err))
}

// accessService implements the contract's AccessService.
type accessService struct{ s *Server }

func (a accessService) WhoAmI(ctx context.Context, _ *operatorv1.WhoAmIRequest) (*operatorv1.WhoAmIResponse, error) {
	return call(ctx, a.s, "AccessService.WhoAmI", intent{scope: scopeParts}, nil, func(_ context.Context, who Principal) (*operatorv1.WhoAmIResponse, error) {
		me := &operatorv1.WhoAmIResponse{Name: who.Name, Role: string(who.Role), Method: who.Method}
		for _, g := range who.Grants {
			me.Grants = append(me.Grants, &operatorv1.Grant{Role: string(g.Role), Services: g.Services, Workflows: g.Workflows, Workers: g.Workers, Tenants: g.Tenants})
		}
		return me, nil
	})
}

func (a accessService) ListAudit(ctx context.Context, req *operatorv1.ListAuditRequest) (*operatorv1.ListAuditResponse, error) {
	var v violations
	size := v.size("page_size", req.GetPageSize())
	v.text("who", req.GetWho(), false, maxName)
	v.text("action", req.GetAction(), false, maxName)
	v.text("target", req.GetTarget(), false, maxName)
	q := AuditQuery{
		Who: req.GetWho(), Action: req.GetAction(), Target: req.GetTarget(), Refused: req.GetRefused(),
		Since: v.time("since", req.GetSince()), Until: v.time("until", req.GetUntil()), Limit: size,
	}
	id := proto.CloneOf(req)
	id.PageSize, id.PageToken = 0, ""
	list := listID(id)
	q.After = v.page(req.GetPageToken(), list)
	return call(ctx, a.s, "AccessService.ListAudit", intent{scope: scopeParts}, v, func(ctx context.Context, who Principal) (*operatorv1.ListAuditResponse, error) {
		sees := func(*operatorv1.AuditEntry) bool { return true }
		if who.scoped() {
			var err error
			if sees, err = a.s.seesAudit(ctx, who); err != nil {
				return nil, err
			}
		}
		entries, next, err := seenPage(q.Limit, q.After, func(after string, limit int) ([]*operatorv1.AuditEntry, string, error) {
			q.After, q.Limit = after, limit
			return a.s.cfg.AuditLog.List(ctx, q)
		}, sees)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListAuditResponse{Entries: entries}
		if next != "" {
			answer.NextPageToken = pageToken{next, list}.String()
		}
		return answer, nil
	})
}
