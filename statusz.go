package lifecycle

import (
	"time"

	"github.com/pleme-io/lifecycle-go/internal/statusz"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Status is what an [App] knows about itself at one moment, as plain data;
// /statusz shows it. It holds names, times, states and the texts of errors. It
// has no stacks, no configuration and nothing of any request.
type Status struct {
	At      time.Time `json:"at"`
	Report  Report    `json:"report"`            // the phase, how it came there, how what has ended did
	Waiting string    `json:"waiting,omitempty"` // what a start or a stop waits for
	// Suspended is what [App.Suspended] returns; its Since is zero when the App is
	// not suspended.
	Suspended Suspension     `json:"suspended,omitzero"`
	Units     []worker.State `json:"units,omitempty"` // each with its children
	Servers   []ServerStatus `json:"servers,omitempty"`
	Probes    []ProbeStatus  `json:"probes,omitempty"` // as the last runs left them: none is run for this
}

// ServerStatus describes a server that the App runs.
type ServerStatus struct {
	Name        string    `json:"name"`
	Addr        string    `json:"addr,omitempty"` // "" before it is bound
	InFlight    int64     `json:"inFlight"`       // requests being handled; 0 for gRPC, where they cannot be seen
	Conns       int       `json:"conns"`          // open connections
	Hijacked    int       `json:"hijacked"`       // of websockets and the like
	Accepted    uint64    `json:"accepted"`       // connections since it was bound
	LastArrival time.Time `json:"lastArrival,omitzero"`
}

// Status describes the App as it is now. It may be called at any time. It waits
// one second for a worker whose State does not return, and not again before that
// call has returned.
func (a *App) Status() Status {
	s := Status{At: time.Now(), Report: a.Report(), Probes: a.reg.Snapshot()}
	for _, list := range [][]Outcome{s.Report.Units, s.Report.Drainers, s.Report.Hooks, s.Report.Reloads} {
		for i := range list {
			list[i].Stack = "" // only Report has the stacks
		}
	}
	s.Suspended, _ = a.Suspended()
	if p := s.Report.Phase; p != PhaseCreated && p != PhaseRunning {
		s.Waiting = a.blocking()
	}
	units, servers := a.parts.view()
	for _, u := range units {
		s.Units = append(s.Units, u.shown())
	}
	for _, srv := range servers {
		st := srv.Stats()
		out := ServerStatus{Name: srv.Name(), InFlight: st.InFlight, Conns: st.Conns, Hijacked: st.Hijacked, Accepted: st.Accepted, LastArrival: st.LastArrival}
		if addr := srv.drainingServer.Addr(); addr != nil {
			out.Addr = addr.String()
		}
		s.Servers = append(s.Servers, out)
	}
	return s
}

// view is the Status as /statusz shows it.
func (s Status) view() statusz.View {
	r := s.Report
	v := statusz.View{
		At: s.At, Name: r.Name, Phase: string(r.Phase),
		Reason: r.Reason, Waiting: s.Waiting, Window: r.Window, Error: r.Error,
		SuspendedBecause: s.Suspended.Reason, SuspendedSince: s.Suspended.Since,
		CutRequests: r.CutRequests, Abandoned: r.Left, Refused: r.Refused,
		Units:    s.Units,
		Drainers: viewOutcomes(r.Drainers), Hooks: viewOutcomes(r.Hooks), Reloads: viewOutcomes(r.Reloads),
	}
	for i, p := range r.Phases {
		took := p.Duration
		if i == len(r.Phases)-1 && !phases.IsTerminal(p.Phase) {
			took = s.At.Sub(p.Entered)
		}
		v.Phases = append(v.Phases, statusz.Phase{Name: string(p.Phase), Entered: p.Entered, Took: took})
	}
	for _, srv := range s.Servers {
		v.Servers = append(v.Servers, statusz.Server(srv))
	}
	for _, c := range s.Probes {
		v.Probes = append(v.Probes, statusz.Probe{
			Plane: c.Plane, Name: c.Name, State: string(c.State), Critical: c.Critical, Since: c.Since,
			Latency: c.Latency, Running: c.Running, Error: c.Error,
		})
	}
	for _, counts := range r.ReloadCounts {
		for _, n := range counts {
			v.ReloadsEnded += n
		}
	}
	return v
}

func viewOutcomes(list []Outcome) []statusz.Outcome {
	out := make([]statusz.Outcome, len(list))
	for i, o := range list {
		out[i] = statusz.Outcome{Name: o.Name, Result: string(o.Result), Took: o.Took, Error: o.Error}
	}
	return out
}
