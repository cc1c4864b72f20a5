package processes

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// memory returns the memory of a process, "" when it is not known.
func memory(p *operatorv1.Process) string {
	if p.GetMemoryLimitBytes() == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d MiB", p.GetMemoryBytes()>>20, p.GetMemoryLimitBytes()>>20)
}

// InFlight returns how many requests the servers of a process handle.
func InFlight(p *operatorv1.Process) (n int64) {
	for _, s := range p.GetServers() {
		n += s.GetInFlight()
	}
	return n
}

// ReadyCell says whether a process is ready.
func ReadyCell(p *operatorv1.Process) output.Cell {
	switch {
	case p.GetSuspended() != "":
		return output.Wait("suspended")
	case p.GetReady():
		return output.Good("ready")
	}
	return output.Bad("not ready")
}

// Units says how many units run, of how many that have not finished on purpose, and
// which have failed or were restarted.
func Units(p *operatorv1.Process) string {
	c := p.GetCounts()
	text := fmt.Sprintf("%d/%d", c.GetRunning(), c.GetAll()-c.GetFinished())
	if n := c.GetFinished(); n > 0 {
		text += fmt.Sprintf(" (%d finished)", n)
	}
	var failed []string
	var visit func([]*operatorv1.Unit)
	visit = func(list []*operatorv1.Unit) {
		for _, u := range list {
			if strings.EqualFold(u.GetStatus(), "failed") {
				failed = append(failed, u.GetName())
			}
			visit(u.GetChildren())
		}
	}
	visit(p.GetUnits())
	if len(failed) > 0 {
		text += " failed: " + strings.Join(failed, ", ")
	}
	if n := c.GetRestarts(); n > 0 {
		text += fmt.Sprintf(", %d restarts", n)
	}
	return text
}

// problem says what is wrong with a process, or why it is as it is.
func problem(p *operatorv1.Process) output.Cell {
	if list := p.GetFindings(); len(list) > 0 {
		return output.Bad(list[0].GetRule() + ": " + list[0].GetCause())
	}
	return output.In("", p.GetReason())
}

func processTable(t *output.Table, p *operatorv1.Process) {
	t.Line("id", p.GetId())
	t.Line("service", p.GetService())
	t.Line("version", p.GetVersion())
	t.Line("host", fmt.Sprintf("%s, pid %d", p.GetHost(), p.GetPid()))
	t.Row(output.Faint("phase"), output.State(p.GetPhase()))
	t.Row(output.Faint("readiness"), ReadyCell(p))
	t.Line("suspended", p.GetSuspended())
	t.Line("reason", p.GetReason())
	t.Line("suspect", p.GetSuspect())
	t.Line("started", output.Moment(p.GetStartedAt()))
	t.Line("seen", output.Moment(p.GetSeenAt()))
	if len(p.GetUnits()) > 0 {
		t.Gap()
		t.Head("UNIT", "KIND", "STATUS", "HEALTH", "RESTARTS", "REASON")
		unitRows(t, p.GetUnits(), "")
		if p.GetTruncated() {
			t.Row("… the tree is larger than an announcement")
		}
	}
	if len(p.GetProbes()) > 0 {
		t.Gap()
		t.Head("PROBE", "PLANE", "STATE", "ERROR")
		for _, x := range p.GetProbes() {
			t.Row(x.GetName(), x.GetPlane(), output.State(x.GetState()), x.GetError())
		}
	}
	if len(p.GetServers()) > 0 {
		t.Gap()
		t.Head("SERVER", "ADDRESS", "IN FLIGHT", "CONNECTIONS")
		for _, x := range p.GetServers() {
			t.Row(x.GetName(), x.GetAddr(), fmt.Sprint(x.GetInFlight()), fmt.Sprint(x.GetConnections()))
		}
	}
}

// unitRows writes a tree: each unit below its parent, with the lines
// to it.
func unitRows(t *output.Table, list []*operatorv1.Unit, before string) {
	for i, u := range list {
		branch, below := "├─ ", "│  "
		if i == len(list)-1 {
			branch, below = "└─ ", "   "
		}
		t.Row(before+branch+u.GetName(), u.GetKind(), output.State(u.GetStatus()), output.State(u.GetHealth()),
			fmt.Sprint(u.GetRestarts()), u.GetReason())
		unitRows(t, u.GetChildren(), before+below)
	}
}
