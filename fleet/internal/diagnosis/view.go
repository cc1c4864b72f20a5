package diagnosis

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/unittree"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/worker"
)

// FromStatus fills in what an App's Status says of the process: its phase, units,
// probes, servers, steps and the reason for which it is as it is.
func FromStatus(p *operatorv1.Process, s lifecycle.Status) {
	if units, cut := unittree.Cut(s.Units, maxDepth); cut {
		s.Units, p.Truncated = units, true
	}
	r := s.Report
	p.Phase, p.Waiting = string(r.Phase), s.Waiting
	p.Units = unitsOf(s.Units, false, r.Phase == lifecycle.PhaseRunning)
	p.Counts = Count(p.Units)
	if r.Budget > 0 {
		p.Budget = durationpb.New(r.Budget)
	}
	for _, c := range s.Probes {
		p.Probes = append(p.Probes, &operatorv1.Probe{
			Plane:    c.Plane,
			Name:     c.Name,
			State:    string(c.State),
			Error:    c.Error,
			Critical: c.Critical,
			Slow:     c.Slow,
			Since:    Stamp(c.Since),
		})
	}
	for _, srv := range s.Servers {
		p.Servers = append(p.Servers, &operatorv1.Server{
			Name:        srv.Name,
			Addr:        srv.Addr,
			InFlight:    srv.InFlight,
			Connections: int64(srv.Conns),
			Panics:      int64(srv.Panics),
			LastPanic:   srv.LastPanic,
			Panicking:   Stamp(srv.Panicking),
		})
	}
	for _, ph := range r.Phases {
		p.Phases = append(p.Phases, &operatorv1.PhaseTime{
			Phase:    string(ph.Phase),
			Entered:  Stamp(ph.Entered),
			Duration: durationpb.New(ph.Duration),
		})
	}
	p.Steps = slices.Concat(Steps("drainer", r.Drainers), Steps("hook", r.Hooks), Steps("reload", r.Reloads))
	p.Reason = reason(p, r, s)
}

// Steps returns parts of a stop, or reloads, as steps of a kind.
func Steps(kind string, outcomes []lifecycle.Outcome) (list []*operatorv1.Step) {
	for _, o := range outcomes {
		list = append(list, &operatorv1.Step{
			Kind:   kind,
			Name:   o.Name,
			Result: string(o.Result),
			Took:   durationpb.New(o.Took),
			Error:  o.Error,
		})
	}
	return list
}

// Alone prepares a process for the rules when only one Status of it is known. A Status has no
// times of restarts. So a unit that was started again often and has just changed counts as a
// crash loop.
func Alone(p *operatorv1.Process, s lifecycle.Status) {
	FromStatus(p, s)
	each(p.GetUnits(), "", func(u *operatorv1.Unit, path string) {
		if u.GetRestarts() < loopRestarts || u.GetSince() == nil || s.At.Sub(u.GetSince().AsTime()) > time.Minute {
			return
		}
		for range min(int(u.GetRestarts()), 20) {
			p.Restarts = append(p.Restarts, &operatorv1.Restart{
				Unit:  path,
				At:    u.GetSince(),
				Cause: strings.TrimPrefix(u.GetReason(), "the last run ended with: "),
			})
		}
	})
}

// reason says why a process stops, what it waits for, or why it is not ready.
func reason(p *operatorv1.Process, r lifecycle.Report, s lifecycle.Status) string {
	parts := []string{r.Reason, s.Waiting}
	if r.Phase == lifecycle.PhaseRunning || r.Phase == lifecycle.PhaseStarting {
		for _, c := range p.GetProbes() {
			if failing(c) {
				parts = append(parts, "probe "+c.GetName()+" is "+c.GetState()+after(c.GetError()))
			}
		}
	}
	if r.Error != "" && !strings.Contains(r.Error, r.Reason) {
		parts = append(parts, r.Error)
	}
	return join(parts...)
}

// join joins the texts that are not empty.
func join(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), "; ")
}

// failing reports whether a probe takes the process out of service, other than by the
// App's own check, which only repeats the phase.
func failing(c *operatorv1.Probe) bool {
	return c.GetCritical() && c.GetState() != "up" && c.GetName() != "lifecycle"
}

// after returns a text for the end of a sentence, behind a colon; "" for none.
func after(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// unitsOf returns units of a supervisor, or of no supervisor. runs says that the process
// restarts units.
func unitsOf(list []worker.State, supervised, runs bool) []*operatorv1.Unit {
	var out []*operatorv1.Unit
	for _, u := range list {
		reason := join(u.Reason, u.Error)
		if e := u.Exit; reason == "" && e != nil && u.Restarts > 0 && (e.Error != "" || e.OOM) {
			reason = "the last run ended with: " + e.Error
		}
		supervises := u.Kind == "supervisor" || u.Kind == "dynamic"
		unit := &operatorv1.Unit{
			Name:        u.Name,
			Kind:        u.Kind,
			Status:      string(u.Status),
			Health:      string(u.Health),
			Reason:      reason,
			Restarts:    int32(u.Restarts),
			Since:       Stamp(u.UpdatedAt),
			Restartable: runs && (supervised && u.Status != worker.StatusStopping || restartsItself(u)),
			Children:    unitsOf(u.Children, supervises, runs),
			Progress:    Stamp(u.Progress),
		}
		if u.ProgressGap > 0 {
			unit.ProgressGap = durationpb.New(u.ProgressGap)
		}
		out = append(out, unit)
	}
	return out
}

// restartsItself reports whether a unit is a supervised function that would obey a request to
// restart.
func restartsItself(u worker.State) bool {
	idle := u.Status == worker.StatusStopping || u.Status == worker.StatusSuspended
	return u.Kind == "restarter" && !u.Status.Terminal() && !idle
}

// Count counts units and their children by how they are.
func Count(list []*operatorv1.Unit) *operatorv1.UnitCounts {
	c := new(operatorv1.UnitCounts)
	each(list, "", func(u *operatorv1.Unit, _ string) {
		c.All++
		c.Restarts += u.GetRestarts()
		switch worker.Status(u.GetStatus()) {
		case worker.StatusRunning:
			c.Running++
		case worker.StatusFinished, worker.StatusStopped:
			c.Finished++
		case worker.StatusFailed, worker.StatusKilled:
			c.Failed++
		default:
			c.Pending++
		}
	})
	return c
}

// Running says how many units run, of how many that have not finished on purpose.
func Running(c *operatorv1.UnitCounts) string {
	text := fmt.Sprintf("%d/%d", c.GetRunning(), c.GetAll()-c.GetFinished())
	if n := c.GetFinished(); n > 0 {
		text += fmt.Sprintf(" (%d finished)", n)
	}
	return text
}

// Tone says how something in a state is: "good", "bad", "wait" when it changes or may need attention,
// "over" when it has ended, and "plain" for a state that only its program knows.
func Tone(state string) string {
	switch strings.ToLower(state) {
	case "running", "up", "ok", "healthy", "serving", "completed", "finished", "succeeded", "done", "active", "ready":
		return "good"
	case "failed", "killed", "down", "unhealthy", "aborted", "error", "lost", "crashed", "stuck", "degraded":
		return "bad"
	case "created", "pending", "starting", "deploying", "resuming", "draining", "finishing", "stopping", "suspended", "unknown":
		return "wait"
	case "stopped", "deleted", "":
		return "over"
	}
	return "plain"
}

// Matches reports whether a list with the filters of req has a process.
func Matches(req *operatorv1.ListProcessesRequest, p *operatorv1.Process) bool {
	ofService := req.GetService() == "" || p.GetService() == req.GetService()
	inPhase := req.GetPhase() == "" || strings.EqualFold(p.GetPhase(), req.GetPhase())
	hasProblem := !req.GetProblems() || len(p.GetFindings()) > 0
	text := strings.Join([]string{p.GetId(), p.GetService(), p.GetHost(), p.GetVersion()}, "\n")
	hasText := strings.Contains(strings.ToLower(text), strings.ToLower(req.GetContains()))
	return ofService && inPhase && hasProblem && hasText
}

// News returns what an announcement tells an operator: not its times, nor what the process uses and how
// far its units are. The load of its servers counts in powers of two.
func News(p *operatorv1.Process) *operatorv1.Process {
	news := proto.CloneOf(p)
	news.SeenAt, news.SaidAt, news.Phases = nil, nil, nil // the present phase grows longer
	news.MemoryBytes, news.MemoryGrowth, news.Processor, news.ThrottledPercent = 0, nil, nil, 0
	news.Goroutines, news.GoroutineGrowth, news.Threads, news.Descriptors, news.DescriptorLimit = 0, nil, 0, 0, 0
	for i, f := range news.GetFindings() {
		news.Findings[i] = &operatorv1.Finding{Rule: f.GetRule()} // its texts have times
	}
	for i, s := range news.GetServers() {
		news.Servers[i] = &operatorv1.Server{
			InFlight:    int64(bits.Len64(uint64(s.GetInFlight()))),
			Connections: int64(bits.Len64(uint64(s.GetConnections()))),
		}
	}
	each(news.GetUnits(), "", func(u *operatorv1.Unit, _ string) { u.Progress, u.ProgressGap = nil, nil })
	return news
}

// each calls fn for every unit, with its path: "pool/w1".
func each(list []*operatorv1.Unit, above string, fn func(u *operatorv1.Unit, path string)) {
	for _, u := range list {
		path := above + u.GetName()
		fn(u, path)
		each(u.GetChildren(), path+"/", fn)
	}
}

// maxDepth is how deep units may lie in each other. The paths of deeper ones would take
// time and memory with the square of their number.
const maxDepth = 32

// Stamp returns a time that another program has said, nil for none. A Timestamp has the years 1
// to 9999 and JSON has no other: a time before or after them becomes the first or the last one,
// so that it spoils no answer.
func Stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	const first, last = -62135596800, 253402300799
	return timestamppb.New(time.Unix(min(max(t.Unix(), first), last), int64(t.Nanosecond())))
}
