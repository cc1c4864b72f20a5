package operator_test

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// The fleet of these tests has two parts, "payments" and "shop". Each has a workflow, a
// process and a hosted worker.
type (
	partFlows     struct{ *memory }
	partProcesses struct{ announced }
	partWorkers   struct{ operator.Workers }
)

func (p partFlows) Definition(ctx context.Context, typ string) (*operatorv1.Definition, error) {
	if typ != "payments-refund" && typ != "shop-order" {
		return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonUnknownType, "type", "no workflow is called %q", typ)
	}
	d, err := p.memory.Definition(ctx, "drone-survey")
	if err != nil {
		return nil, err
	}
	d.Type = typ
	return d, nil
}

func (p partFlows) Definitions(ctx context.Context) (list []*operatorv1.Definition, err error) {
	for _, typ := range []string{"payments-refund", "shop-order"} {
		d, err := p.Definition(ctx, typ)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

func newPartProcesses() (p partProcesses) {
	for _, part := range []string{"payments", "shop"} {
		p.list = append(p.list, &operatorv1.Process{Id: part + "-api." + part + "-1", Service: part + "-api", Host: "node-of-" + part, Phase: "running", Version: "1", Ready: true})
	}
	return p
}

// has returns NOT_FOUND for another process, as a command to it does.
func (p partProcesses) has(id string) error {
	for _, x := range p.list {
		if x.GetId() == id {
			return nil
		}
	}
	return operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no process %q", id)
}

func (p partProcesses) Drain(ctx context.Context, id, _, _ string) (string, error) {
	return "draining", p.has(id)
}

func (p partProcesses) Suspend(ctx context.Context, id, _, who string) (string, error) {
	return p.Drain(ctx, id, "", who)
}

func (p partProcesses) Resume(ctx context.Context, id, who string) (string, error) {
	return p.Drain(ctx, id, "", who)
}

func (p partProcesses) Logs(ctx context.Context, id, _ string, _ uint64, _ int) (*operatorv1.GetLogsResponse, error) {
	return &operatorv1.GetLogsResponse{}, p.has(id)
}

func (p partProcesses) Stacks(ctx context.Context, id, _ string) (string, error) {
	return "goroutine 1", p.has(id)
}

func (p partProcesses) Config(ctx context.Context, id, _ string) (*operatorv1.GetConfigResponse, error) {
	return &operatorv1.GetConfigResponse{}, p.has(id)
}

func (p partProcesses) RestartUnit(ctx context.Context, id, _, _, _ string) (*operatorv1.RestartUnitResponse, error) {
	return &operatorv1.RestartUnitResponse{Phase: "running"}, p.has(id)
}

// Events returns one page after the other: 30 events of the shop, one of payments.
func (partProcesses) Events(_ context.Context, q presence.EventQuery) (list []*operatorv1.Event, next uint64, err error) {
	seq := uint64(31)
	if q.Before != 0 {
		seq = q.Before - 1
	}
	for ; seq > 0 && len(list) < q.Limit; seq-- {
		part := "shop"
		if seq == 1 {
			part = "payments"
		}
		list = append(list, &operatorv1.Event{Seq: seq, At: timestamppb.Now(), Service: part + "-api", Process: part + "-api." + part + "-1", Kind: "phase", To: "running"})
	}
	if seq > 0 {
		next = seq + 1
	}
	return list, next, nil
}

func (partWorkers) List(context.Context) ([]*operatorv1.Worker, error) {
	var list []*operatorv1.Worker
	for _, part := range []string{"payments", "shop"} {
		list = append(list, &operatorv1.Worker{Id: part + "-mail", State: "running", Desired: "running", MimeType: "text/x", Topics: []string{part}, DeadLetters: 3, Spec: &operatorv1.WorkerSpec{Tenant: part}})
	}
	return list, nil
}

func (w partWorkers) Get(ctx context.Context, id string) (*operatorv1.Worker, error) {
	list, _ := w.List(ctx)
	for _, x := range list {
		if x.GetId() == id {
			return x, nil
		}
	}
	return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no worker %q", id)
}

func (w partWorkers) Create(_ context.Context, req *operatorv1.CreateWorkerRequest, _ string) (*operatorv1.Worker, error) {
	return &operatorv1.Worker{Id: req.GetId()}, nil
}
func (w partWorkers) Start(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w partWorkers) Stop(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w partWorkers) LoadCode(ctx context.Context, id string, _ *operatorv1.Code, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w partWorkers) Rollback(ctx context.Context, id, _, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w partWorkers) Delete(ctx context.Context, id, _ string) error {
	_, err := w.Get(ctx, id)
	return err
}
func (w partWorkers) History(ctx context.Context, id string) ([]*operatorv1.CodeVersion, error) {
	_, err := w.Get(ctx, id)
	return nil, err
}
func (w partWorkers) Recover(context.Context, string) (*operatorv1.RecoverWorkersResponse, error) {
	return &operatorv1.RecoverWorkersResponse{}, nil
}
func (w partWorkers) DeadLetters(ctx context.Context, id, _ string, _ uint64, _ int) ([]*operatorv1.DeadLetter, error) {
	_, err := w.Get(ctx, id)
	return nil, err
}
func (w partWorkers) Redrive(ctx context.Context, id string, _ []uint64) (int, error) {
	_, err := w.Get(ctx, id)
	return 1, err
}
func (w partWorkers) LetterGroups(ctx context.Context, id string) ([]host.LetterGroup, error) {
	_, err := w.Get(ctx, id)
	return nil, err
}
func (w partWorkers) DeadLetter(ctx context.Context, id string, _ uint64) (*operatorv1.DeadLetter, error) {
	_, err := w.Get(ctx, id)
	return &operatorv1.DeadLetter{Id: "1"}, err
}
func (w partWorkers) RedriveEdited(ctx context.Context, id string, _ uint64, _ []byte) ([]byte, error) {
	_, err := w.Get(ctx, id)
	return nil, err
}
func (w partWorkers) Discard(ctx context.Context, id string, _ []uint64, _ bool) (int, error) {
	_, err := w.Get(ctx, id)
	return 1, err
}
func (w partWorkers) Code(ctx context.Context, id, _, _ string) (*host.Comparison, error) {
	_, err := w.Get(ctx, id)
	return &host.Comparison{}, err
}
func (w partWorkers) Activity(ctx context.Context, id string) (*operatorv1.WorkerActivity, error) {
	_, err := w.Get(ctx, id)
	return &operatorv1.WorkerActivity{}, err
}
func (w partWorkers) Apply(context.Context, *operatorv1.WorkerSpec, bool, string) (*operatorv1.ApplyWorkerResponse, error) {
	return &operatorv1.ApplyWorkerResponse{}, nil
}
func (w partWorkers) Logs(ctx context.Context, id string, _ int64, _ int) ([]*operatorv1.WorkerLogLine, error) {
	_, err := w.Get(ctx, id)
	return nil, err
}
func (w partWorkers) FollowLogs(ctx context.Context, _ string, _ int64, _ func(*operatorv1.WorkerLogLine) error) error {
	<-ctx.Done()
	return ctx.Err()
}
func (w partWorkers) State(ctx context.Context, id string, _ uint64, _ int) ([]*operatorv1.StateEntry, uint64, error) {
	_, err := w.Get(ctx, id)
	return nil, 0, err
}
func (w partWorkers) Promote(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w partWorkers) Timers(ctx context.Context, id string, _ uint64, _ int) ([]*operatorv1.WorkerTimer, uint64, error) {
	_, err := w.Get(ctx, id)
	return nil, 0, err
}
func (w partWorkers) CancelTimer(ctx context.Context, id, _, _, _ string) error {
	_, err := w.Get(ctx, id)
	return err
}
func (w partWorkers) Test(ctx context.Context, req *operatorv1.TestWorkerRequest) (*operatorv1.TestWorkerResponse, error) {
	_, err := w.Get(ctx, req.GetId())
	return &operatorv1.TestWorkerResponse{}, err
}
