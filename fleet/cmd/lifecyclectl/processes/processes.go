// Package processes has the commands about the processes of a fleet: list and watch them,
// drain, suspend and resume them, and look into one: its units, configuration, logs, stacks
// and events. doctor says what is wrong with them, and bundle collects all of it.
//
// Each command asks an operator server through package cli; begin at [Commands].
package processes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	group := cli.Group(&cobra.Command{
		Use:     "processes",
		Aliases: []string{"process", "ps"},
		Short:   "The processes of the fleet: see them, drain one, take one out of service",
	}, list(), get(), drain(), suspend(), resume(), restartUnit(), config())
	return []*cobra.Command{group, describe(), events(), logs(), stacks(), doctor(), bundle()}
}

func list() *cobra.Command {
	var (
		req      operatorv1.ListProcessesRequest
		selected selector
		follow   bool
		limit    int
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "list",
		Short: "List the processes that announce themselves",
		Example: `  lifecyclectl processes list --problems --watch
  lifecyclectl processes list -o json | jq -r '.processes[] | [.id, .host] | @tsv'`,
	}, cli.OfProcess, func(c *cli.Call) error {
		if err := selected.parse(); err != nil {
			return err
		}
		if follow {
			return watch(c, func(ctx context.Context) (*operatorv1.ListProcessesResponse, error) {
				return selected.processes(ctx, c, &req, 0)
			})
		}
		answer, err := selected.processes(c.Context(), c, &req, limit)
		return c.Answer(answer, err, func(t *output.Table) {
			now := time.Now()
			t.Head("ID", "SERVICE", "PHASE", "READY", "UNITS", "AGE", "VERSION", "REASON", "|", "HOST", "PID", "STARTED", "MEMORY", "IN FLIGHT")
			for _, p := range answer.GetProcesses() {
				t.Row(p.GetId(), p.GetService(), output.State(p.GetPhase()), ReadyCell(p), Units(p),
					output.Age(p.GetStartedAt(), now), p.GetVersion(), problem(p),
					output.Extra(p.GetHost()), output.Extra(fmt.Sprint(p.GetPid())), output.Extra(output.Moment(p.GetStartedAt())),
					output.Extra(memory(p)), output.Extra(fmt.Sprint(InFlight(p))))
			}
		})
	})
	f := cmd.Flags()
	f.StringVar(&req.Service, "service", "", "only those of this `service`")
	f.StringVar(&req.Phase, "phase", "", "only those in this `phase`")
	f.StringVar(&req.Contains, "contains", "", "only those whose id, service, host or version contains this `text`")
	selected.register(cmd)
	f.BoolVar(&req.Problems, "problems", false, "only those with which something is wrong")
	f.StringVar(&req.Sort, "sort", "service", "`order`: service, problems or started")
	f.IntVar(&limit, "limit", 0, "at most `N`; 0 is all")
	f.BoolVarP(&follow, "watch", "w", false, "then show what has changed, every 2 s")
	cmd.MarkFlagsMutuallyExclusive("watch", "limit")
	cmd.MarkFlagsMutuallyExclusive("watch", "sort")
	return cmd
}

func get() *cobra.Command {
	var follow bool
	cmd := cli.Command(&cobra.Command{
		Use:   "get ID",
		Short: "Show one process: its phases, its units as a tree, its probes and servers",
	}, cli.OfProcess, func(c *cli.Call) error {
		p, err := c.Processes.GetProcess(c.Context(), &operatorv1.GetProcessRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		if follow {
			one := selector{terms: []cli.Term{{Key: "id", Value: p.GetId()}}}
			return watch(c, func(ctx context.Context) (*operatorv1.ListProcessesResponse, error) {
				return one.processes(ctx, c, &operatorv1.ListProcessesRequest{Contains: p.GetId()}, 0)
			})
		}
		return c.Write(p, func(t *output.Table) { processTable(t, p) })
	})
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "then show what has changed, every 2 s")
	return cmd
}

// watch shows the processes of a look and each of their changes.
func watch(c *cli.Call, look func(context.Context) (*operatorv1.ListProcessesResponse, error)) error {
	out := c.Rows([]string{"AT", "ID", "SERVICE", "PHASE", "READY", "UNITS"}, 20, 28, 12, 10, 9, 6)
	show := func(kind operatorv1.WatchResponse_Kind, p *operatorv1.Process, cells ...any) error {
		cells = append([]any{time.Now().UTC().Format(time.RFC3339), p.GetId(), p.GetService()}, cells...)
		return out.Add(&operatorv1.WatchProcessesResponse{Kind: kind, Process: p}, cells...)
	}
	changes := cli.Changes[*operatorv1.Process]{
		Key: (*operatorv1.Process).GetId,
		Same: func(a, b *operatorv1.Process) bool {
			return proto.Equal(diagnosis.News(a), diagnosis.News(b))
		},
		Put: func(p *operatorv1.Process) error {
			return show(operatorv1.WatchResponse_KIND_PUT, p, output.State(p.GetPhase()), ReadyCell(p), Units(p))
		},
		Gone: func(id string, last *operatorv1.Process) error {
			p, err := c.Processes.GetProcess(c.Context(), &operatorv1.GetProcessRequest{Id: id})
			if connect.CodeOf(err) == connect.CodeNotFound {
				return show(operatorv1.WatchResponse_KIND_DELETED, &operatorv1.Process{Id: id}, output.Faint("(gone)"), "", "")
			}
			if err != nil {
				p = last
			}
			note := output.Faint("(no longer selected)")
			return show(operatorv1.WatchResponse_KIND_DELETED, p, output.State(p.GetPhase()), ReadyCell(p), note)
		},
	}
	return cli.Watch(c, look, func(answer *operatorv1.ListProcessesResponse) error {
		return changes.Take(answer.GetProcesses())
	})
}

// memory returns the memory of a process, "" when it is not known.
func memory(p *operatorv1.Process) string {
	switch {
	case p.GetMemoryBytes() == 0:
		return ""
	case p.GetMemoryLimitBytes() == 0:
		return fmt.Sprintf("%d MiB", p.GetMemoryBytes()>>20)
	}
	return fmt.Sprintf("%d of %d MiB", p.GetMemoryBytes()>>20, p.GetMemoryLimitBytes()>>20)
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
	text := diagnosis.Running(p.GetCounts())
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
	if n := p.GetCounts().GetRestarts(); n > 0 {
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
	t.Line("uses", uses(p))
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

// uses says what a process uses; "" when it does not say.
func uses(p *operatorv1.Process) string {
	if p.GetGoroutines() == 0 {
		return ""
	}
	files := fmt.Sprint(p.GetDescriptors())
	if limit := p.GetDescriptorLimit(); limit > 0 {
		files = fmt.Sprintf("%d of %d", p.GetDescriptors(), limit)
	}
	return fmt.Sprintf("%s of memory, %d goroutines, %d threads, %s open files", memory(p), p.GetGoroutines(), p.GetThreads(), files)
}
