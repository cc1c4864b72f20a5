package processes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// action is a command that acts on the process that is named, or on all that --selector
// selects.
type action struct {
	will   string // a sentence that says what happens to "%s"
	done   string // what a process that obeyed does
	askOne bool   // also before the command acts on one process
	do     func(c *cli.Call, id string) (*operatorv1.CommandResponse, error)

	selected selector
	dryRun   bool
	yes      cli.Consent
}

// command makes cmd the command of the action.
func (a *action) command(cmd *cobra.Command) *cobra.Command {
	cmd = cli.Command(cmd, cli.OfProcess, a.run)
	a.selected.register(cmd)
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "only show which processes it would be")
	a.yes.Register(cmd)
	return cmd
}

func (a *action) run(c *cli.Call) error {
	if err := a.selected.parse(); err != nil {
		return err
	}
	isOne := len(c.Args) > 0
	if isOne == (a.selected.text != "") {
		return fmt.Errorf("which process? give its ID, or --selector; the command is: %s", c.UseLine())
	}
	if isOne {
		return a.runOne(c, c.Args[0])
	}
	answer, err := a.selected.processes(c.Context(), c, &operatorv1.ListProcessesRequest{}, 0)
	list := answer.GetProcesses()
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return cli.Fail(cli.ExitNotFound, "no process matches %s", a.selected.text)
	case a.dryRun:
		return showSelected(c, list)
	}
	if err := a.yes.Ask(c.Command, fmt.Sprintf(a.will, fmt.Sprintf("Each of %d processes", len(list)))); err != nil {
		return err
	}
	return cli.ForEach(c, list, "processes failed", func(p *operatorv1.Process) (proto.Message, output.Cell, error) {
		answer, err := a.do(c, p.GetId())
		return answer, output.Good(a.done), err
	})
}

func (a *action) runOne(c *cli.Call, id string) error {
	if a.dryRun {
		p, err := c.Processes.GetProcess(c.Context(), &operatorv1.GetProcessRequest{Id: id})
		if err != nil {
			return err
		}
		return showSelected(c, []*operatorv1.Process{p})
	}
	if a.askOne {
		if err := a.yes.Ask(c.Command, fmt.Sprintf(a.will, "The process "+id)); err != nil {
			return err
		}
	}
	answer, err := a.do(c, id)
	return c.Answer(answer, err, func(t *output.Table) {
		t.Row(fmt.Sprintf("%s %s (it was %s when it answered)", id, a.done, answer.GetPhase()))
	})
}

// showSelected says which processes it would be.
func showSelected(c *cli.Call, list []*operatorv1.Process) error {
	return c.Write(&operatorv1.ListProcessesResponse{Processes: list}, func(t *output.Table) {
		t.Head("ID", "SERVICE", "PHASE", "READY", "VERSION")
		for _, p := range list {
			t.Row(p.GetId(), p.GetService(), output.State(p.GetPhase()), ReadyCell(p), p.GetVersion())
		}
		t.Row(output.Faint(fmt.Sprintf("%d processes%s", len(list), cli.DryRunNote(true))))
	})
}

func drain() *cobra.Command {
	var reason string
	a := &action{will: "%s will drain and end.", done: "drains", askOne: true}
	a.do = func(c *cli.Call, id string) (*operatorv1.CommandResponse, error) {
		return c.Processes.DrainProcess(c.Context(), &operatorv1.DrainProcessRequest{Id: id, Reason: reason})
	}
	cmd := a.command(&cobra.Command{
		Use:   "drain [ID]",
		Short: "Stop a process as a signal does: it finishes its work and ends",
		Long: `Stop a process as a signal does: its readiness goes down, it finishes what is
in flight, and it ends. Its supervisor may start another. The command asks first. With
--selector it stops every process that matches, one after the other.`,
		Example: `  lifecyclectl processes drain --selector service=web,version!=1.2.4 --dry-run`,
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`why`; the fleet sees it while the process drains, and its log has it")
	return cmd
}

func suspend() *cobra.Command {
	var reason string
	a := &action{will: "%s will not be ready.", done: "is suspended"}
	a.do = func(c *cli.Call, id string) (*operatorv1.CommandResponse, error) {
		return c.Processes.SuspendProcess(c.Context(), &operatorv1.SuspendProcessRequest{Id: id, Reason: reason})
	}
	cmd := a.command(&cobra.Command{
		Use:   "suspend [ID] --reason WHY",
		Short: "Take a process's readiness down until it is resumed; it goes on working",
		Long: `Take a process's readiness down until it is resumed; it goes on working. With
--selector it does so for every process that matches, and asks first.`,
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`why`; readiness shows it")
	_ = cmd.MarkFlagRequired("reason") // the flag exists
	return cmd
}

func resume() *cobra.Command {
	a := &action{will: "%s will follow its checks again.", done: "is resumed"}
	a.do = func(c *cli.Call, id string) (*operatorv1.CommandResponse, error) {
		return c.Processes.ResumeProcess(c.Context(), &operatorv1.ResumeProcessRequest{Id: id})
	}
	return a.command(&cobra.Command{
		Use:   "resume [ID]",
		Short: "Restore the readiness of a suspended process",
	})
}

func restartUnit() *cobra.Command {
	var (
		yes cli.Consent
		req operatorv1.RestartUnitRequest
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "restart-unit ID UNIT",
		Short: "Restart one supervised unit of a process; the process goes on",
		Long: `Restart one supervised unit of a process: its present run ends, and the next one
begins at once. The process and its other units go on, and the restart does not count
against the unit's restart budget. UNIT is its path in the tree of units, such as pool/w1.

A unit that nothing supervises is refused, and one that is stopping. The command asks
first. The journal and the audit have who asked for it.`,
		Example: `  lifecyclectl processes restart-unit web-7d4b9-x2x4z pool/w1 --reason "it lost its lease"`,
	}, cli.OfProcess, func(c *cli.Call) error {
		if err := yes.Ask(c.Command, fmt.Sprintf("The unit %s of %s will end its present run and begin again.", c.Args[1], c.Args[0])); err != nil {
			return err
		}
		req.Id, req.Unit = c.Args[0], c.Args[1]
		answer, err := c.Processes.RestartUnit(c.Context(), &req)
		return c.Answer(answer, err, func(t *output.Table) {
			if answer.GetStatus() == "Running" {
				t.Row(fmt.Sprintf("%s of %s has started again", c.Args[1], c.Args[0]))
				return
			}
			status := cmp.Or(answer.GetStatus(), "on its way")
			t.Row(fmt.Sprintf("%s of %s is %s: it starts again when its present run has ended", c.Args[1], c.Args[0], status))
		})
	})
	cmd.Flags().StringVar(&req.Reason, "reason", "", "`why`; the journal has it")
	yes.Register(cmd)
	return cmd
}

// selectorKeys are the keys of a selector of processes.
var selectorKeys = map[string]func(*operatorv1.Process) string{
	"id":        (*operatorv1.Process).GetId,
	"service":   (*operatorv1.Process).GetService,
	"version":   (*operatorv1.Process).GetVersion,
	"host":      (*operatorv1.Process).GetHost,
	"phase":     (*operatorv1.Process).GetPhase,
	"ready":     func(p *operatorv1.Process) string { return strconv.FormatBool(p.GetReady()) },
	"suspended": func(p *operatorv1.Process) string { return strconv.FormatBool(p.GetSuspended() != "") },
	"problems":  func(p *operatorv1.Process) string { return strconv.FormatBool(len(p.GetFindings()) > 0) },
}

func selectorNames() string { return strings.Join(slices.Sorted(maps.Keys(selectorKeys)), ", ") }

// selector is the flag --selector of commands about processes.
type selector struct {
	text  string
	terms []cli.Term
}

func (s *selector) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.text, "selector", "l", "",
		"only processes for which `terms` hold: KEY=VALUE or KEY!=VALUE, with commas; keys are "+selectorNames())
}

func (s *selector) parse() (err error) {
	if s.terms, err = cli.ParseSelector(s.text); err != nil {
		return err
	}
	for _, t := range s.terms {
		values := selectorValues(t.Key)
		switch {
		case selectorKeys[t.Key] == nil:
			return fmt.Errorf("--selector: processes have no %q: want one of %s", t.Key, selectorNames())
		case t.Value == "":
			return fmt.Errorf("--selector: %s has no value", t.Key)
		case values != nil && !slices.Contains(values, t.Value):
			return fmt.Errorf("--selector: %s is never %q: want one of %s", t.Key, t.Value, strings.Join(values, ", "))
		}
	}
	return nil
}

// selectorValues are the values that a key may have, nil for any: with != a misspelt one would
// select every process.
func selectorValues(key string) (values []string) {
	switch key {
	case "ready", "suspended", "problems":
		return []string{"true", "false"}
	case "phase":
		for _, p := range lifecycle.Phases().Phases() {
			values = append(values, string(p))
		}
	}
	return values
}

func (s *selector) matches(p *operatorv1.Process) bool {
	for _, t := range s.terms {
		if (selectorKeys[t.Key](p) == t.Value) == t.Not {
			return false
		}
	}
	return true
}

// processes returns the processes of a request that match, at most limit of them unless it
// is 0.
func (s *selector) processes(
	ctx context.Context, c *cli.Call, req *operatorv1.ListProcessesRequest, limit int,
) (*operatorv1.ListProcessesResponse, error) {
	if len(s.terms) == 0 {
		return cli.All(ctx, limit, req, c.Processes.ListProcesses)
	}
	answer, err := cli.All(ctx, min(limit, 0), req, c.Processes.ListProcesses)
	if err != nil {
		return nil, err
	}
	answer.Processes = slices.DeleteFunc(answer.GetProcesses(), func(p *operatorv1.Process) bool { return !s.matches(p) })
	if limit > 0 && len(answer.GetProcesses()) > limit {
		answer.Processes = answer.GetProcesses()[:limit]
	}
	return answer, nil
}
