package workflows

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func transition() *cobra.Command {
	var (
		yes      cli.Consent
		req      operatorv1.TransitionRequest
		selector string
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "transition TYPE [ID] PHASE",
		Short: "Move an entity to another phase along its table",
		Long: `Move an entity to another phase along its table. It asks before it enters a
terminal phase: there is no way back.

With --selector in place of ID it moves every entity that matches, one after the other,
and asks first. An entity that changes in between is not moved. One that fails does not
stop the others; the exit status is then 1.`,
		Example: `  lifecyclectl transition drone-survey m-17 landing --note "wind from the east"
  lifecyclectl transition drone-survey m-17 aborted --if-match '"42"' --yes
  lifecyclectl transition drone-survey aborted --selector phase=planning,org=acme --dry-run`,
		ValidArgsFunction: cli.CompleteTransitions,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		if selector != "" {
			if err := cli.Words("TYPE", "PHASE")(c.Command, c.Args); err != nil {
				return err
			}
			req.Type, req.Phase = c.Args[0], c.Args[1]
			return transitionAll(c, &yes, &req, selector)
		}
		if err := cli.Words("TYPE", "ID", "PHASE")(c.Command, c.Args); err != nil {
			return err
		}
		req.Type, req.Id, req.Phase = c.Args[0], c.Args[1], c.Args[2]
		if !req.GetDryRun() && !yes.Given {
			if err := askAboutTheEnd(c, &yes, &req); err != nil {
				return err
			}
		}
		answer, err := c.Workflows.Transition(c.Context(), &req)
		if err != nil {
			return err
		}
		return c.Write(answer, func(t *output.Table) {
			e := answer.GetEntity()
			t.Row(fmt.Sprintf("%s/%s: %s -> %s%s", e.GetType(), e.GetId(), answer.GetFrom(), e.GetPhase(), cli.DryRunNote(req.GetDryRun())))
		})
	})
	cmd.Flags().StringVar(&req.Note, "note", "", "`why`; stored with the transition")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "move all entities for which `terms` hold: phase=PHASE and FIELD=VALUE, with commas")
	writeFlags(cmd, &req.IfMatch, &req.DryRun)
	yes.Register(cmd)
	return cmd
}

// askAboutTheEnd asks the user when the transition leads to a terminal phase.
func askAboutTheEnd(c *cli.Call, yes *cli.Consent, req *operatorv1.TransitionRequest) error {
	d, err := c.Workflows.GetDefinition(c.Context(), &operatorv1.GetDefinitionRequest{Type: req.GetType()})
	if err != nil {
		return err
	}
	for _, p := range d.GetPhases() {
		if p.GetName() == req.GetPhase() && len(p.GetNext()) == 0 {
			return yes.Ask(c.Command, fmt.Sprintf("%s ends the life of %s/%s: it is a terminal phase.", req.GetPhase(), req.GetType(), req.GetId()))
		}
	}
	return nil
}

// transitionAll moves every entity that a selector selects.
func transitionAll(c *cli.Call, yes *cli.Consent, req *operatorv1.TransitionRequest, selector string) error {
	if req.GetIfMatch() != "" {
		return errors.New("--if-match and --selector exclude each other: each entity is moved as it was listed")
	}
	wanted := &operatorv1.ListEntitiesRequest{Type: req.GetType()}
	if err := selectEntities(selector, wanted); err != nil {
		return err
	}
	entities, err := listEntities(c, wanted, 0)
	if err != nil {
		return err
	}
	if len(entities) == 0 {
		return cli.Fail(cli.ExitNotFound, "no %s matches %s", req.GetType(), selector)
	}
	if !req.GetDryRun() {
		if err := yes.Ask(c.Command, fmt.Sprintf("%d entities of %s will be %s.", len(entities), req.GetType(), req.GetPhase())); err != nil {
			return err
		}
	}
	return cli.ForEach(c, entities, "entities were not moved", func(e *operatorv1.Entity) (proto.Message, output.Cell, error) {
		req.Id, req.IfMatch = e.GetId(), e.GetEtag()
		answer, err := c.Workflows.Transition(c.Context(), req)
		return answer, output.In("", fmt.Sprintf("%s -> %s%s", answer.GetFrom(), req.GetPhase(), cli.DryRunNote(req.GetDryRun()))), err
	})
}
