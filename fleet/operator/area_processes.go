package operator

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// FromPresence makes a Server's Processes from the processes that announce themselves.
// The server watches them as long as it is open, and writes into the fleet's journal
// which ones ended without removing their entries.
func FromPresence(f *presence.Fleet) Processes { return fleet{f} }

type fleet struct{ f *presence.Fleet }

// processErrors are the errors of a Fleet.
var processErrors = []knownError{
	{presence.ErrNotFound, connect.CodeNotFound, ReasonNotFound, "id"},
	{presence.ErrUnreachable, connect.CodeUnavailable, ReasonUnreachable, ""},
	{presence.ErrRefused, connect.CodeFailedPrecondition, ReasonRefused, ""},
	{presence.ErrNoJournal, connect.CodeUnimplemented, ReasonNotServed, ""},
}

func processErr(err error) error {
	err = translate(err, processErrors)
	if ours := (*Error)(nil); errors.As(err, &ours) {
		ours.Message = strings.TrimPrefix(ours.Message, "presence: ")
	}
	return err
}

// Watch attends the fleet: only one watch runs at a time.
func (a fleet) Watch(ctx context.Context, to Sink[*operatorv1.Process]) error {
	return a.f.Attend(ctx, stream.Convert(to, processOf))
}

func (a fleet) Events(ctx context.Context, q presence.EventQuery) ([]*operatorv1.Event, uint64, error) {
	list, next, err := a.f.Events(ctx, q)
	if err != nil {
		return nil, 0, processErr(err)
	}
	out := make([]*operatorv1.Event, len(list))
	for i, e := range list {
		out[i] = &operatorv1.Event{
			Seq:        e.Seq,
			At:         diagnosis.Stamp(e.At),
			Service:    e.Service,
			Process:    e.Process,
			Kind:       e.Kind,
			Name:       e.Name,
			From:       e.From,
			To:         e.To,
			Cause:      e.Cause,
			Who:        e.Who,
			Version:    e.Version,
			Host:       e.Host,
			ExitStatus: int32(e.ExitStatus),
			Count:      e.Count,
			Life:       diagnosis.Stamp(e.Life),
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
		answer.Settings = append(answer.Settings, &operatorv1.Setting{
			Key:     s.Key,
			Value:   s.Value,
			Source:  s.Source,
			Lost:    s.Lost,
			InForce: s.InForce,
		})
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

func growthOf(g *presence.Growth) *operatorv1.Growth {
	if g == nil {
		return nil
	}
	return &operatorv1.Growth{Since: diagnosis.Stamp(g.Since), From: g.From}
}

func processorOf(b *presence.Busy) *operatorv1.Processor {
	if b == nil {
		return nil
	}
	return &operatorv1.Processor{Percent: int32(b.Percent), Most: int32(b.Most), Since: diagnosis.Stamp(b.Since)}
}

// processOf turns an announcement into the contract's message.
func processOf(p presence.Process) *operatorv1.Process {
	out := &operatorv1.Process{
		Id:               p.ID,
		Service:          p.Service,
		Host:             p.Host,
		Pid:              int32(p.PID),
		Version:          p.Version,
		Ready:            p.Ready,
		Suspended:        p.Suspended,
		Truncated:        p.Truncated,
		Suspect:          p.Suspect,
		MemoryBytes:      p.Memory.Used,
		MemoryLimitBytes: p.Memory.Limit,
		Goroutines:       int64(p.Usage.Goroutines),
		Threads:          int64(p.Usage.Threads),
		Descriptors:      int64(p.Usage.Descriptors),
		DescriptorLimit:  int64(p.Usage.DescriptorLimit),
		ThrottledPercent: int32(p.Usage.Throttled),
		GoroutineGrowth:  growthOf(p.Usage.GoroutineGrowth),
		MemoryGrowth:     growthOf(p.Usage.MemoryGrowth),
		Processor:        processorOf(p.Usage.Busy),
		StartedAt:        diagnosis.Stamp(p.StartedAt),
		SeenAt:           diagnosis.Stamp(p.SeenAt),
		SaidAt:           diagnosis.Stamp(p.AnnouncedAt),
	}
	for _, r := range p.Restarts {
		out.Restarts = append(out.Restarts, &operatorv1.Restart{
			Unit:  r.Unit,
			At:    diagnosis.Stamp(r.At),
			Cause: r.Cause,
			Who:   r.Who,
		})
	}
	diagnosis.FromStatus(out, p.Status)
	out.Findings = diagnosis.Sort(diagnosis.Process(out, time.Now()))
	return out
}
