package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func processRestartUnitCommand(r *remote) *cobra.Command {
	var (
		o   output
		yes consent
		req operatorv1.RestartUnitRequest
	)
	cmd := &cobra.Command{
		Use:   "restart-unit ID UNIT",
		Short: "Restart one supervised unit of a process; the process goes on",
		Long: `Restart one supervised unit of a process: its present run ends, and the next one
begins at once. The process and its other units go on, and the restart does not count
against the unit's restart budget. UNIT is its path in the tree of units, such as pool/w1.

A unit that nothing supervises is refused, and one that is stopping. The command asks
first. The journal and the audit have who asked for it.`,
		Example: `  lifecyclectl processes restart-unit web-7d4b9-x2x4z pool/w1 --reason "it lost its lease"`,
		Args:    words("ID", "UNIT"),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			if err := yes.ask(cmd, fmt.Sprintf("The unit %s of %s will end its present run and begin again.", args[1], args[0])); err != nil {
				return err
			}
			req.Id, req.Unit = args[0], args[1]
			answer, err := a.Processes.RestartUnit(cmd.Context(), &req)
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), answer, func(t *table) {
				if answer.GetStatus() == "Running" {
					t.row(fmt.Sprintf("%s of %s has started again", args[1], args[0]))
					return
				}
				t.row(fmt.Sprintf("%s of %s is %s: it starts again when its present run has ended", args[1], args[0], cmp.Or(answer.GetStatus(), "on its way")))
			})
		}),
		ValidArgsFunction: completeProcesses(r),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "`why`; the journal has it")
	yes.register(cmd)
	o.register(cmd)
	return cmd
}

func processConfigCommand(r *remote) *cobra.Command {
	var (
		o        output
		given    bool
		contains string
	)
	cmd := &cobra.Command{
		Use:   "config ID",
		Short: "Show the configuration of a process, with the source of each value",
		Long: `Show the configuration of a process as the process itself reports it: each key, its
value, and where that was given: a line of a file, a variable of the environment, a flag,
or the default. It also shows reloads that were refused, and why. It needs the role
inspector. Secrets never leave the process.`,
		Example: `  lifecyclectl processes config web-7d4b9-x2x4z --given
  lifecyclectl processes config web-7d4b9-x2x4z --contains drain`,
		Args: words("ID"),
		RunE: asks(r, &o, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			answer, err := a.Processes.GetConfig(cmd.Context(), &operatorv1.GetConfigRequest{Id: args[0]})
			if err != nil {
				return err
			}
			all := answer.GetSettings()
			answer.Settings = nil
			for _, s := range all {
				if (!given || s.GetSource() != "default") && (strings.Contains(s.GetKey(), contains) || strings.Contains(s.GetSource(), contains)) {
					answer.Settings = append(answer.Settings, s)
				}
			}
			return o.write(cmd.OutOrStdout(), answer, func(t *table) { configTable(t, answer) })
		}),
		ValidArgsFunction: completeProcesses(r),
	}
	cmd.Flags().BoolVar(&given, "given", false, "only keys that a file, the environment or a flag gives")
	cmd.Flags().StringVar(&contains, "contains", "", "only keys whose name or source contains this `text`")
	o.register(cmd)
	return cmd
}

// configTable lists settings, and the reloads that were refused.
func configTable(t *table, c *operatorv1.GetConfigResponse) {
	t.head("KEY", "VALUE", "SOURCE", "IN PLACE OF")
	for _, s := range c.GetSettings() {
		value := s.GetValue()
		if now := s.GetInForce(); now != "" {
			value += " (" + now + " until the next start)"
		}
		source := cell{text: s.GetSource()}
		if source.text == "default" {
			source.colour = faint
		}
		t.row(s.GetKey(), value, source, strings.Join(s.GetLost(), "; "))
	}
	if c.GetTruncated() {
		t.row("… the configuration is larger than an answer")
	}
	if len(c.GetReloads()) > 0 {
		t.gap()
		t.head("RELOAD", "RESULT", "WHY")
		for _, s := range c.GetReloads() {
			t.row(s.GetName(), state(s.GetResult()), s.GetError())
		}
	}
}

// settings adds the configuration of a process to a bundle. A process that does not report
// it is passed over.
func (b *bundle) settings(ctx context.Context, a *api, id string) {
	answer, err := a.Processes.GetConfig(ctx, &operatorv1.GetConfigRequest{Id: id})
	if !refused(err) {
		b.message("config/"+fileName(id)+".json", answer, err)
	}
}
