package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func processesCommand() *cobra.Command {
	var r remote
	cmd := group(&cobra.Command{
		Use:     "processes",
		Aliases: []string{"process", "ps"},
		Short:   "The processes of the fleet: see them, drain one, take one out of service",
	}, processListCommand(&r), processGetCommand(&r), processDrainCommand(&r), processSuspendCommand(&r), processResumeCommand(&r), processRestartUnitCommand(&r), processConfigCommand(&r))
	r.register(cmd)
	return cmd
}

func processListCommand(r *remote) *cobra.Command {
	var (
		o      output
		req    operatorv1.ListProcessesRequest
		chosen processSelector
		follow bool
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the processes that announce themselves",
		Example: `  lifecyclectl processes list --problems --watch
  lifecyclectl processes list -o custom-columns=ID:.id,WHERE:.host,UNITS:.units[*].name`,
		Args: words(),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, _ []string) error {
			if err := chosen.parse(); err != nil {
				return err
			}
			if follow {
				if err := unlimited(cmd, "limit", "sort"); err != nil {
					return err
				}
				return watchProcesses(a, cmd, &o, "", func(p *operatorv1.Process) bool { return processMatches(&req, p) && chosen.matches(p) })
			}
			list := &operatorv1.ListProcessesResponse{}
			for more := true; more; more = req.GetPageToken() != "" && (limit == 0 || len(list.GetProcesses()) < limit) {
				req.PageSize = pageSize(limit, len(list.GetProcesses()))
				page, err := a.Processes.ListProcesses(cmd.Context(), &req)
				if err != nil {
					return err
				}
				list.Processes, list.Totals = append(list.GetProcesses(), slices.DeleteFunc(page.GetProcesses(), func(p *operatorv1.Process) bool { return !chosen.matches(p) })...), page.GetTotals()
				req.PageToken = page.GetNextPageToken()
			}
			return o.write(cmd.OutOrStdout(), list, func(t *table) {
				now := time.Now()
				t.head("ID", "SERVICE", "PHASE", "READY", "UNITS", "AGE", "VERSION", "REASON", "|", "HOST", "PID", "STARTED", "MEMORY", "IN FLIGHT")
				for _, p := range list.GetProcesses() {
					t.row(p.GetId(), p.GetService(), state(p.GetPhase()), readyCell(p), units(p), age(p.GetStartedAt(), now), p.GetVersion(), problem(p),
						extra(p.GetHost()), extra(fmt.Sprint(p.GetPid())), extra(moment(p.GetStartedAt())), extra(used(p)), extra(fmt.Sprint(inFlight(p))))
				}
			})
		}),
	}
	cmd.Flags().StringVar(&req.Service, "service", "", "only those of this `service`")
	cmd.Flags().StringVar(&req.Phase, "phase", "", "only those in this `phase`")
	cmd.Flags().StringVar(&req.Contains, "contains", "", "only those whose id, service, host or version contains this `text`")
	chosen.register(cmd)
	cmd.Flags().BoolVar(&req.Problems, "problems", false, "only those with which something is wrong")
	cmd.Flags().StringVar(&req.Sort, "sort", "service", "`order`: service, problems or started")
	cmd.Flags().IntVar(&limit, "limit", 0, "at most this `many`; 0 is all")
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "then show every change")
	o.register(cmd)
	return cmd
}

// used returns the memory of a process, "" when it is not known.
func used(p *operatorv1.Process) string {
	if p.GetMemoryLimitBytes() == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d MiB", p.GetMemoryBytes()>>20, p.GetMemoryLimitBytes()>>20)
}

func inFlight(p *operatorv1.Process) (n int64) {
	for _, s := range p.GetServers() {
		n += s.GetInFlight()
	}
	return n
}

func readyCell(p *operatorv1.Process) cell {
	switch {
	case p.GetSuspended() != "":
		return cell{"suspended", wait}
	case p.GetReady():
		return cell{"ready", good}
	}
	return cell{"not ready", bad}
}

// units says how many units run, of how many that have not finished on purpose, and
// which have failed or were restarted.
func units(p *operatorv1.Process) string {
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
func problem(p *operatorv1.Process) cell {
	if list := p.GetFindings(); len(list) > 0 {
		return cell{list[0].GetRule() + ": " + list[0].GetCause(), bad}
	}
	return cell{text: p.GetReason()}
}

func watchProcesses(a *api, cmd *cobra.Command, o *output, id string, wanted func(*operatorv1.Process) bool) error {
	out := &rows{w: cmd.OutOrStdout(), o: o, head: []string{"AT", "ID", "SERVICE", "PHASE", "READY", "UNITS"}, widths: []int{20, 28, 12, 10, 9, 6}}
	tell := func(kind operatorv1.WatchResponse_Kind, p *operatorv1.Process) error {
		m := &operatorv1.WatchProcessesResponse{Kind: kind, Process: p}
		at := time.Now().UTC().Format(time.RFC3339)
		if kind == operatorv1.WatchResponse_KIND_DELETED {
			return out.add(m, at, p.GetId(), "", cell{"(gone)", faint}, "", "")
		}
		return out.add(m, at, p.GetId(), p.GetService(), state(p.GetPhase()), readyCell(p), units(p))
	}
	seen := newMemory(sameProcess)
	ctx, stop := whileRead(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	return follow(ctx, notices(cmd.ErrOrStderr(), a), func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.WatchProcessesResponse], error) {
		return a.Processes.WatchProcesses(ctx, &operatorv1.WatchProcessesRequest{Id: id})
	}, seen.begin, func(m *operatorv1.WatchProcessesResponse) error {
		p := m.GetProcess()
		switch m.GetKind() {
		case operatorv1.WatchResponse_KIND_PUT:
			switch {
			case !wanted(p):
				if seen.drop(p.GetId()) {
					return out.add(&operatorv1.WatchProcessesResponse{Kind: operatorv1.WatchResponse_KIND_DELETED, Process: p},
						time.Now().UTC().Format(time.RFC3339), p.GetId(), p.GetService(), state(p.GetPhase()), readyCell(p), cell{"(no longer selected)", faint})
				}
			case seen.put(p.GetId(), p):
				return tell(m.GetKind(), p)
			}
		case operatorv1.WatchResponse_KIND_DELETED:
			if seen.drop(p.GetId()) {
				return tell(m.GetKind(), p)
			}
		case operatorv1.WatchResponse_KIND_SYNCED:
			for _, gone := range slices.Sorted(slices.Values(seen.sync())) {
				if err := tell(operatorv1.WatchResponse_KIND_DELETED, &operatorv1.Process{Id: gone}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// sameProcess reports whether b differs from a only in its times.
func sameProcess(a, b *operatorv1.Process) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	for _, p := range []*operatorv1.Process{a, b} {
		p.SeenAt = nil
		for _, s := range p.GetServers() {
			s.InFlight, s.Connections = 0, 0
		}
		for _, t := range p.GetPhases() {
			t.Duration = nil // the current phase's duration grows
		}
	}
	return proto.Equal(a, b)
}

func processGetCommand(r *remote) *cobra.Command {
	var (
		o      output
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show one process: its phases, its units as a tree, its probes and servers",
		Args:  words("ID"),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			p, err := a.Processes.GetProcess(cmd.Context(), &operatorv1.GetProcessRequest{Id: args[0]})
			if err != nil {
				return err
			}
			if follow {
				return watchProcesses(a, cmd, &o, args[0], func(*operatorv1.Process) bool { return true })
			}
			return o.write(cmd.OutOrStdout(), p, func(t *table) { processTable(t, p) })
		}),
		ValidArgsFunction: completeProcesses(r),
	}
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "then show every change")
	o.register(cmd)
	return cmd
}

func processTable(t *table, p *operatorv1.Process) {
	t.line("id", p.GetId())
	t.line("service", p.GetService())
	t.line("version", p.GetVersion())
	t.line("host", fmt.Sprintf("%s, pid %d", p.GetHost(), p.GetPid()))
	t.row(cell{"phase", faint}, state(p.GetPhase()))
	t.row(cell{"readiness", faint}, readyCell(p))
	t.line("suspended", p.GetSuspended())
	t.line("reason", p.GetReason())
	t.line("suspect", p.GetSuspect())
	t.line("started", moment(p.GetStartedAt()))
	t.line("seen", moment(p.GetSeenAt()))
	if len(p.GetUnits()) > 0 {
		t.gap()
		t.head("UNIT", "KIND", "STATUS", "HEALTH", "RESTARTS", "REASON")
		unitRows(t, p.GetUnits(), "")
		if p.GetTruncated() {
			t.row("… the tree is larger than an announcement")
		}
	}
	if len(p.GetProbes()) > 0 {
		t.gap()
		t.head("PROBE", "PLANE", "STATE", "ERROR")
		for _, x := range p.GetProbes() {
			t.row(x.GetName(), x.GetPlane(), state(x.GetState()), x.GetError())
		}
	}
	if len(p.GetServers()) > 0 {
		t.gap()
		t.head("SERVER", "ADDRESS", "IN FLIGHT", "CONNECTIONS")
		for _, x := range p.GetServers() {
			t.row(x.GetName(), x.GetAddr(), fmt.Sprint(x.GetInFlight()), fmt.Sprint(x.GetConnections()))
		}
	}
}

// unitRows writes a tree: each unit below its parent, with the lines
// to it.
func unitRows(t *table, list []*operatorv1.Unit, before string) {
	for i, u := range list {
		branch, below := "├─ ", "│  "
		if i == len(list)-1 {
			branch, below = "└─ ", "   "
		}
		t.row(before+branch+u.GetName(), u.GetKind(), state(u.GetStatus()), state(u.GetHealth()), fmt.Sprint(u.GetRestarts()), u.GetReason())
		unitRows(t, u.GetChildren(), before+below)
	}
}

func processDrainCommand(r *remote) *cobra.Command {
	var (
		o   output
		b   bulk
		req operatorv1.DrainProcessRequest
	)
	cmd := &cobra.Command{
		Use:   "drain [ID]",
		Short: "Stop a process as a signal does: it finishes its work and ends",
		Long: `Stop a process as a signal does: its readiness goes down, it finishes what is
in flight, and it ends. Its supervisor may start another. The command asks first. With
--selector it stops every process that matches, one after the other.`,
		Example: `  lifecyclectl processes drain --selector service=web,version!=1.2.4 --dry-run`,
		Args:    words("[ID]"),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			if err := b.selector.parse(); err != nil {
				return err
			}
			return b.act(a, cmd, &o, args, "%s will drain and end.", "drains", true, func(id string) (*operatorv1.CommandResponse, error) {
				req.Id = id
				return a.Processes.DrainProcess(cmd.Context(), &req)
			})
		}),
		ValidArgsFunction: completeProcesses(r),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "`why`; the fleet sees it while the process drains, and its log has it")
	b.register(cmd)
	o.register(cmd)
	return cmd
}

func processSuspendCommand(r *remote) *cobra.Command {
	var (
		o   output
		b   bulk
		req operatorv1.SuspendProcessRequest
	)
	cmd := &cobra.Command{
		Use:   "suspend [ID] --reason WHY",
		Short: "Take a process's readiness down until it is resumed; it goes on working",
		Long: `Take a process's readiness down until it is resumed; it goes on working. With
--selector it does so for every process that matches, and asks first.`,
		Args: words("[ID]"),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			if req.GetReason() == "" {
				return fmt.Errorf("give a --reason: readiness shows it")
			}
			if err := b.selector.parse(); err != nil {
				return err
			}
			return b.act(a, cmd, &o, args, "%s will not be ready.", "is suspended", false, func(id string) (*operatorv1.CommandResponse, error) {
				req.Id = id
				return a.Processes.SuspendProcess(cmd.Context(), &req)
			})
		}),
		ValidArgsFunction: completeProcesses(r),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "`why`; readiness shows it")
	b.register(cmd)
	o.register(cmd)
	return cmd
}

func processResumeCommand(r *remote) *cobra.Command {
	var (
		o output
		b bulk
	)
	cmd := &cobra.Command{
		Use:   "resume [ID]",
		Short: "Restore the readiness of a suspended process",
		Args:  words("[ID]"),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			if err := b.selector.parse(); err != nil {
				return err
			}
			return b.act(a, cmd, &o, args, "%s will follow its checks again.", "is resumed", false, func(id string) (*operatorv1.CommandResponse, error) {
				return a.Processes.ResumeProcess(cmd.Context(), &operatorv1.ResumeProcessRequest{Id: id})
			})
		}),
		ValidArgsFunction: completeProcesses(r),
	}
	b.register(cmd)
	o.register(cmd)
	return cmd
}

func commanded(cmd *cobra.Command, o *output, answer *operatorv1.CommandResponse, err error, what string) error {
	if err != nil {
		return err
	}
	return o.write(cmd.OutOrStdout(), answer, func(t *table) {
		t.row(fmt.Sprintf("%s (it was %s when it answered)", what, answer.GetPhase()))
	})
}
