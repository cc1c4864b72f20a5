package operator

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// FromPresence makes a Server's Processes from the processes that announce themselves.
// The server watches them as long as it is open, and writes into the fleet's journal
// which ones disappeared without a word.
func FromPresence(f *presence.Fleet) Processes { return fleet{f} }

type fleet struct{ f *presence.Fleet }

func processErr(err error) error {
	answer := func(code connect.Code, reason, field string) error {
		return &Error{Code: code, Reason: reason, Field: field, Message: strings.TrimPrefix(err.Error(), "presence: "), Err: err}
	}
	switch {
	case errors.Is(err, presence.ErrNotFound):
		return answer(connect.CodeNotFound, ReasonNotFound, "id")
	case errors.Is(err, presence.ErrUnreachable):
		return answer(connect.CodeUnavailable, ReasonUnreachable, "")
	case errors.Is(err, presence.ErrAmbiguous):
		return answer(connect.CodeInvalidArgument, ReasonInvalid, "id")
	case errors.Is(err, presence.ErrRefused), errors.Is(err, presence.ErrUnsigned):
		return answer(connect.CodeFailedPrecondition, ReasonRefused, "")
	case errors.Is(err, presence.ErrNoJournal):
		return answer(connect.CodeUnimplemented, ReasonNotServed, "")
	}
	return err
}

func (a fleet) List(ctx context.Context) ([]*operatorv1.Process, error) {
	list, err := a.f.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]*operatorv1.Process, len(list))
	for i, p := range list {
		out[i] = processOf(p)
	}
	return out, nil
}

func (a fleet) Get(ctx context.Context, id string) (*operatorv1.Process, error) {
	p, err := a.f.Get(ctx, id)
	if err != nil {
		return nil, processErr(err)
	}
	return processOf(p), nil
}

// Watch attends the fleet: only one watch runs at a time. What a process repeats while
// nothing is new is not converted again, and not kept again.
func (a fleet) Watch(ctx context.Context, to Sink[*operatorv1.Process]) error {
	known := map[string]repeated{}
	return a.f.Attend(ctx, func(it presence.Change) {
		switch it.Kind {
		case stream.Put:
			out := again(known[it.Key], it.Value)
			if out == nil {
				out = processOf(it.Value)
			}
			known[it.Key] = repeated{out, it.Value.Status.At}
			to.Put(it.Key, out)
		case stream.Deleted:
			delete(known, it.Key)
			to.Delete(it.Key)
		default:
			to(stream.Item[*operatorv1.Process]{Kind: it.Kind})
		}
	})
}

// repeated is the message of an announcement, and when the process looked at itself for it.
type repeated struct {
	message *operatorv1.Process
	at      time.Time
}

// again returns the message of p when p repeats the announcement of old, and otherwise nil.
// A process makes one announcement each time that it looks at itself.
func again(old repeated, p presence.Process) *operatorv1.Process {
	if old.message == nil || p.Status.At.IsZero() || !old.at.Equal(p.Status.At) || !diagnosis.Stamp(p.StartedAt).AsTime().Equal(old.message.GetStartedAt().AsTime()) || old.message.GetSuspect() != p.Suspect {
		return nil
	}
	out := shallow(old.message)
	out.SeenAt, out.SaidAt = diagnosis.Stamp(p.SeenAt), said(p)
	out.Findings = diagnosis.Sort(diagnosis.Process(out, time.Now()))
	return out
}

// shallow returns a message that shares with p all that p refers to.
func shallow(p *operatorv1.Process) *operatorv1.Process {
	return &operatorv1.Process{
		Id: p.GetId(), Service: p.GetService(), Host: p.GetHost(), Pid: p.GetPid(), Version: p.GetVersion(), Phase: p.GetPhase(), Ready: p.GetReady(),
		Suspended: p.GetSuspended(), Reason: p.GetReason(), StartedAt: p.GetStartedAt(), SeenAt: p.GetSeenAt(), Units: p.GetUnits(), Probes: p.GetProbes(),
		Servers: p.GetServers(), Phases: p.GetPhases(), Truncated: p.GetTruncated(), Counts: p.GetCounts(), Findings: p.GetFindings(),
		MemoryBytes: p.GetMemoryBytes(), MemoryLimitBytes: p.GetMemoryLimitBytes(), Restarts: p.GetRestarts(), Steps: p.GetSteps(), Budget: p.GetBudget(),
		Waiting: p.GetWaiting(), SaidAt: p.GetSaidAt(), Suspect: p.GetSuspect(),
	}
}

// indexed says that Watch reports every process, so that the server may list the
// processes from its own index.
func (a fleet) indexed() {}

func (a fleet) Events(ctx context.Context, q EventQuery) ([]*operatorv1.Event, uint64, error) {
	list, next, err := a.f.Events(ctx, presence.EventQuery(q))
	if err != nil {
		return nil, 0, processErr(err)
	}
	out := make([]*operatorv1.Event, len(list))
	for i, e := range list {
		out[i] = &operatorv1.Event{
			Seq: e.Seq, At: diagnosis.Stamp(e.At), Service: e.Service, Process: e.Process, Kind: e.Kind, Name: e.Name, From: e.From, To: e.To,
			Cause: e.Cause, Who: e.Who, Version: e.Version, Host: e.Host, ExitStatus: int32(e.ExitStatus), Count: e.Count,
		}
	}
	return out, next, nil
}

func (a fleet) Logs(ctx context.Context, id, who string, after uint64, limit int) (*operatorv1.GetLogsResponse, error) {
	logs, err := a.f.Logs(ctx, id, who, presence.LogQuery{After: after, Limit: limit})
	if err != nil {
		return nil, processErr(err)
	}
	answer := &operatorv1.GetLogsResponse{Missed: logs.Missed}
	for _, l := range logs.Lines {
		answer.Lines = append(answer.Lines, &operatorv1.LogLine{Seq: l.Seq, At: diagnosis.Stamp(l.At), Text: l.Text})
	}
	return answer, nil
}

func (a fleet) Stacks(ctx context.Context, id, who string) (string, error) {
	text, err := a.f.Stacks(ctx, id, who)
	return text, processErr(err)
}

func (a fleet) Config(ctx context.Context, id, who string) (*operatorv1.GetConfigResponse, error) {
	c, err := a.f.Settings(ctx, id, who)
	if err != nil {
		return nil, processErr(err)
	}
	answer := &operatorv1.GetConfigResponse{Truncated: c.Truncated}
	for _, s := range c.List {
		answer.Settings = append(answer.Settings, &operatorv1.Setting{Key: s.Key, Value: s.Value, Source: s.Source, Lost: s.Lost, InForce: s.InForce})
	}
	answer.Reloads = diagnosis.Steps("reload", c.Reloads)
	return answer, nil
}

func (a fleet) RestartUnit(ctx context.Context, id, unit, reason, who string) (*operatorv1.RestartUnitResponse, error) {
	phase, status, err := a.f.RestartUnit(ctx, id, unit, reason, who)
	if err != nil {
		return nil, processErr(err)
	}
	return &operatorv1.RestartUnitResponse{Phase: phase, Status: status}, nil
}

func (a fleet) Drain(ctx context.Context, id, reason, who string) (string, error) {
	phase, err := a.f.Drain(ctx, id, reason, who)
	return phase, processErr(err)
}

func (a fleet) Suspend(ctx context.Context, id, reason, who string) (string, error) {
	phase, err := a.f.Suspend(ctx, id, reason, who)
	return phase, processErr(err)
}

func (a fleet) Resume(ctx context.Context, id, who string) (string, error) {
	phase, err := a.f.Resume(ctx, id, who)
	return phase, processErr(err)
}

// processOf turns an announcement into the contract's message.
func processOf(p presence.Process) *operatorv1.Process {
	out := &operatorv1.Process{
		Id: p.ID, Service: p.Service, Host: p.Host, Pid: int32(p.PID), Version: p.Version, Ready: p.Ready, Suspended: p.Suspended, Truncated: p.Truncated, Suspect: p.Suspect,
		MemoryBytes: p.Memory.Used, MemoryLimitBytes: p.Memory.Limit, StartedAt: diagnosis.Stamp(p.StartedAt), SeenAt: diagnosis.Stamp(p.SeenAt), SaidAt: said(p),
	}
	for _, r := range p.Restarts {
		out.Restarts = append(out.Restarts, &operatorv1.Restart{Unit: r.Unit, At: diagnosis.Stamp(r.At), Cause: r.Cause, Who: r.Who})
	}
	diagnosis.FromStatus(out, p.Status)
	out.Findings = diagnosis.Sort(diagnosis.Process(out, time.Now()))
	return out
}

// said returns when a process made its announcement, or the last beat.
func said(p presence.Process) *timestamppb.Timestamp {
	if p.AnnouncedAt.IsZero() { // of a version that does not say it
		return diagnosis.Stamp(p.Status.At)
	}
	return diagnosis.Stamp(p.AnnouncedAt)
}
