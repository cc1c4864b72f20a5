package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func transitionCommand() *cobra.Command {
	var (
		r        remote
		o        output
		yes      consent
		req      operatorv1.TransitionRequest
		selector string
	)
	cmd := &cobra.Command{
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
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			if selector != "" {
				if err := words("TYPE", "PHASE")(cmd, args); err != nil {
					return err
				}
				return transitionAll(a, cmd, &o, &yes, &req, args[0], args[1], selector)
			}
			if err := words("TYPE", "ID", "PHASE")(cmd, args); err != nil {
				return err
			}
			req.Type, req.Id, req.Phase = args[0], args[1], args[2]
			if !req.GetDryRun() && !yes.given {
				d, err := a.Workflows.GetDefinition(cmd.Context(), &operatorv1.GetDefinitionRequest{Type: req.GetType()})
				if err != nil {
					return err
				}
				for _, p := range d.GetPhases() {
					if p.GetName() == req.GetPhase() && len(p.GetNext()) == 0 {
						if err := yes.ask(cmd, fmt.Sprintf("%s ends the life of %s/%s: it is a terminal phase.", req.GetPhase(), req.GetType(), req.GetId())); err != nil {
							return err
						}
					}
				}
			}
			answer, err := a.Workflows.Transition(cmd.Context(), &req)
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), answer, func(t *table) {
				e := answer.GetEntity()
				t.row(fmt.Sprintf("%s/%s: %s -> %s%s", e.GetType(), e.GetId(), answer.GetFrom(), e.GetPhase(), dry(req.GetDryRun())))
			})
		}),
		ValidArgsFunction: completeTransition(&r),
	}
	cmd.Flags().StringVar(&req.Note, "note", "", "`why`; stored with the transition")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "move all entities for which `terms` hold: phase=PHASE and FIELD=VALUE, with commas")
	writeFlags(cmd, &req.IfMatch, &req.DryRun)
	yes.register(cmd)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// transitionAll moves every entity that a selector selects.
func transitionAll(a *api, cmd *cobra.Command, o *output, yes *consent, req *operatorv1.TransitionRequest, typ, phase, selector string) error {
	if req.GetIfMatch() != "" {
		return fmt.Errorf("--if-match and --selector exclude each other: each entity is moved as it was listed")
	}
	list := &operatorv1.ListEntitiesRequest{Type: typ, PageSize: 1000}
	if err := selectEntities(selector, list); err != nil {
		return err
	}
	var entities []*operatorv1.Entity
	for {
		page, err := a.Workflows.ListEntities(cmd.Context(), list)
		if err != nil {
			return err
		}
		entities = append(entities, page.GetEntities()...)
		if list.PageToken = page.GetNextPageToken(); list.GetPageToken() == "" {
			break
		}
	}
	if len(entities) == 0 {
		return &failure{status: exitNotFound, err: fmt.Errorf("no %s matches %s", typ, selector)}
	}
	if !req.GetDryRun() {
		if err := yes.ask(cmd, fmt.Sprintf("%d entities of %s will be %s.", len(entities), typ, phase)); err != nil {
			return err
		}
	}
	out := &rows{w: cmd.OutOrStdout(), o: o, head: []string{"ID", "RESULT"}, widths: []int{24, 10}}
	failed := 0
	for _, e := range entities {
		answer, err := a.Workflows.Transition(cmd.Context(), &operatorv1.TransitionRequest{Type: typ, Id: e.GetId(), Phase: phase, Note: req.GetNote(), IfMatch: e.GetEtag(), DryRun: req.GetDryRun()})
		if cmd.Context().Err() != nil {
			return context.Canceled
		}
		result := cell{text: fmt.Sprintf("%s -> %s%s", answer.GetFrom(), phase, dry(req.GetDryRun()))}
		if err != nil {
			failed++
			result = cell{message(err), bad}
		}
		if o.tabular() || err == nil {
			if err := out.add(answer, e.GetId(), result); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return &failure{status: exitFindings, err: fmt.Errorf("%d of %d entities were not moved", failed, len(entities))}
	}
	return nil
}
