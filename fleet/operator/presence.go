package operator

import (
	"context"
	"errors"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/worker"
)

// FromPresence makes a Server's Processes from the processes that announce themselves.
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

func (a fleet) Watch(ctx context.Context, to Sink[*operatorv1.Process]) error {
	return a.f.Watch(ctx, stream.Convert(to, processOf))
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
	r := p.Status.Report
	out := &operatorv1.Process{
		Id: p.ID, Service: p.Service, Host: p.Host, Pid: int32(p.PID), Version: p.Version,
		Phase: string(r.Phase), Ready: p.Ready, Suspended: p.Suspended, Truncated: p.Truncated,
		Units:  unitsOf(p.Status.Units),
		Reason: strings.Join(slices.DeleteFunc([]string{p.Suspect, r.Reason, p.Status.Waiting}, func(s string) bool { return s == "" }), "; "),
	}
	if !p.StartedAt.IsZero() {
		out.StartedAt = timestamppb.New(p.StartedAt)
	}
	if !p.SeenAt.IsZero() {
		out.SeenAt = timestamppb.New(p.SeenAt)
	}
	for _, c := range p.Status.Probes {
		out.Probes = append(out.Probes, &operatorv1.Probe{Plane: c.Plane, Name: c.Name, State: string(c.State), Error: c.Error, Critical: c.Critical, Since: timestamppb.New(c.Since)})
	}
	for _, s := range p.Status.Servers {
		out.Servers = append(out.Servers, &operatorv1.Server{Name: s.Name, Addr: s.Addr, InFlight: s.InFlight, Connections: int64(s.Conns)})
	}
	for _, ph := range r.Phases {
		out.Phases = append(out.Phases, &operatorv1.PhaseTime{Phase: string(ph.Phase), Entered: timestamppb.New(ph.Entered), Duration: durationpb.New(ph.Duration)})
	}
	return out
}

func unitsOf(list []worker.State) []*operatorv1.Unit {
	var out []*operatorv1.Unit
	for _, u := range list {
		reason := strings.Join(slices.DeleteFunc([]string{u.Reason, u.Error}, func(s string) bool { return s == "" }), "; ")
		x := &operatorv1.Unit{Name: u.Name, Kind: u.Kind, Status: string(u.Status), Health: string(u.Health), Reason: reason, Restarts: int32(u.Restarts), Children: unitsOf(u.Children)}
		if !u.UpdatedAt.IsZero() {
			x.Since = timestamppb.New(u.UpdatedAt)
		}
		out = append(out, x)
	}
	return out
}
