package operator

import (
	"cmp"
	"context"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// processService implements the contract's ProcessService.
type processService struct{ s *Server }

func onProcess[A proto.Message](ctx context.Context, p processService, method, id, detail string, v violations, work func(ctx context.Context, area Processes, who string) (A, error)) (A, error) {
	return call(ctx, p.s, "ProcessService."+method, intent{target: "process/" + id, detail: detail}, v, func(ctx context.Context, who Principal) (answer A, err error) {
		if p.s.cfg.Processes == nil {
			return answer, notServed("processes")
		}
		return work(ctx, p.s.cfg.Processes, who.Name)
	})
}

func (p processService) ListProcesses(ctx context.Context, req *operatorv1.ListProcessesRequest) (*operatorv1.ListProcessesResponse, error) {
	var v violations
	v.text("service", req.GetService(), false, maxName)
	return onProcess(ctx, p, "ListProcesses", "", "", v, func(ctx context.Context, area Processes, _ string) (*operatorv1.ListProcessesResponse, error) {
		all, err := area.List(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(x *operatorv1.Process) bool {
			return req.GetService() != "" && x.GetService() != req.GetService()
		})
		slices.SortFunc(all, func(a, b *operatorv1.Process) int {
			return cmp.Or(cmp.Compare(a.GetService(), b.GetService()), cmp.Compare(a.GetId(), b.GetId()))
		})
		return &operatorv1.ListProcessesResponse{Processes: all}, nil
	})
}

func (p processService) GetProcess(ctx context.Context, req *operatorv1.GetProcessRequest) (*operatorv1.Process, error) {
	return onProcess(ctx, p, "GetProcess", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Processes, _ string) (*operatorv1.Process, error) {
		return area.Get(ctx, req.GetId())
	})
}

func (p processService) DrainProcess(ctx context.Context, req *operatorv1.DrainProcessRequest) (*operatorv1.CommandResponse, error) {
	v := workerID(req.GetId())
	v.text("reason", req.GetReason(), false, maxName)
	return onProcess(ctx, p, "DrainProcess", req.GetId(), req.GetReason(), v, func(ctx context.Context, area Processes, who string) (*operatorv1.CommandResponse, error) {
		phase, err := area.Drain(ctx, req.GetId(), req.GetReason(), who)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) SuspendProcess(ctx context.Context, req *operatorv1.SuspendProcessRequest) (*operatorv1.CommandResponse, error) {
	v := workerID(req.GetId())
	v.text("reason", req.GetReason(), true, maxName)
	return onProcess(ctx, p, "SuspendProcess", req.GetId(), req.GetReason(), v, func(ctx context.Context, area Processes, who string) (*operatorv1.CommandResponse, error) {
		phase, err := area.Suspend(ctx, req.GetId(), req.GetReason(), who)
		return &operatorv1.CommandResponse{Phase: phase}, err
	})
}

func (p processService) ResumeProcess(ctx context.Context, req *operatorv1.ResumeProcessRequest) (*operatorv1.CommandResponse, error) {
	return onProcess(ctx, p, "ResumeProcess", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Processes, who string) (*operatorv1.CommandResponse, error) {
		phase, err := area.Resume(ctx, req.GetId(), who)
		return &operatorv1.CommandResponse{Phase: phase}, err
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
		return follow(ctx, p.s, who, p.s.processes.Read(req.GetId()), func(kind operatorv1.WatchResponse_Kind, key string, x *operatorv1.Process) error {
			if kind == operatorv1.WatchResponse_KIND_DELETED {
				x = &operatorv1.Process{Id: key}
			}
			return send(&operatorv1.WatchProcessesResponse{Kind: kind, Process: x})
		})
	}()
	return wire(ctx, p.s.log, action, err)
}

// accessService implements the contract's AccessService.
type accessService struct{ s *Server }

func (a accessService) WhoAmI(ctx context.Context, _ *operatorv1.WhoAmIRequest) (*operatorv1.WhoAmIResponse, error) {
	return call(ctx, a.s, "AccessService.WhoAmI", intent{}, nil, func(_ context.Context, who Principal) (*operatorv1.WhoAmIResponse, error) {
		return &operatorv1.WhoAmIResponse{Name: who.Name, Role: string(who.Role), Method: who.Method}, nil
	})
}

func (a accessService) ListAudit(ctx context.Context, req *operatorv1.ListAuditRequest) (*operatorv1.ListAuditResponse, error) {
	var v violations
	size := v.size("page_size", req.GetPageSize())
	return call(ctx, a.s, "AccessService.ListAudit", intent{}, v, func(context.Context, Principal) (*operatorv1.ListAuditResponse, error) {
		return &operatorv1.ListAuditResponse{Entries: a.s.audit.latest(size)}, nil
	})
}
