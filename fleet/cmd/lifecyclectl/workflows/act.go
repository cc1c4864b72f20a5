package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

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
		Args:              cobra.ArbitraryArgs, // PHASE is the last one
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
		return c.Answer(answer, err, func(t *output.Table) {
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
	entities, err := listEntities(c.Context(), c, wanted, 0)
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

func pause() *cobra.Command {
	var req operatorv1.PauseRequest
	cmd := cli.Command(&cobra.Command{
		Use:   "pause TYPE ID",
		Short: "Let an entity rest: its hooks, timers and deadline wait",
		Long: `Let an entity rest until lifecyclectl workflows resume. Its hooks, its timers and its
deadline wait, and programs cannot change its phase. Operators can. An entity that is
paused already stays as it is.`,
		Example: `  lifecyclectl workflows pause drone-survey m-17 --reason "the pilot is ill"
  lifecyclectl list drone-survey --paused`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		req.Type, req.Id = c.Args[0], c.Args[1]
		answer, err := c.Workflows.Pause(c.Context(), &req)
		return c.Answer(answer, err, func(t *output.Table) { pauseRow(t, answer.GetEntity()) })
	})
	cmd.Flags().StringVar(&req.Reason, "reason", "", "`why`; the history has it")
	ifMatchFlag(cmd, &req.IfMatch)
	return cmd
}

func resume() *cobra.Command {
	var req operatorv1.ResumeRequest
	cmd := cli.Command(&cobra.Command{
		Use:   "resume TYPE ID",
		Short: "End a pause: what came due meanwhile happens at once",
		Long: `End a pause. Timers and the deadline that came due meanwhile fire at once, in the order
of their times, and the hooks get what happened. An entity that is not paused stays as it
is.`,
		Example: `  lifecyclectl workflows resume drone-survey m-17 --note "she is back"`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		req.Type, req.Id = c.Args[0], c.Args[1]
		answer, err := c.Workflows.Resume(c.Context(), &req)
		return c.Answer(answer, err, func(t *output.Table) { pauseRow(t, answer.GetEntity()) })
	})
	cmd.Flags().StringVar(&req.Note, "note", "", "`why`; the history has it")
	ifMatchFlag(cmd, &req.IfMatch)
	return cmd
}

func pauseRow(t *output.Table, e *operatorv1.Entity) {
	state := "goes on"
	if e.GetPaused() {
		state = "is paused"
	}
	t.Row(fmt.Sprintf("%s/%s %s in %s", e.GetType(), e.GetId(), state, e.GetPhase()))
}

func patch() *cobra.Command {
	var (
		req  operatorv1.PatchRequest
		file string
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "patch TYPE ID [FIELD=VALUE...]",
		Short: "Change fields that operators may write, all or none",
		Long: `Change fields that operators may write, all or none. VALUE is JSON, or text
when it is not valid JSON: priority=3, armed=true, comment=soon, tag='"007"'.
lifecyclectl definitions TYPE lists the fields.`,
		Example: `  lifecyclectl patch drone-survey m-17 priority=3 comment="before the rain"
  jq '{priority}' other.json | lifecyclectl patch drone-survey m-17 --file -`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		req.Type, req.Id = c.Args[0], c.Args[1]
		var err error
		if req.Fields, err = patchFields(c.Context(), c.Args[2:], file, c.InOrStdin()); err != nil {
			return err
		}
		answer, err := c.Workflows.Patch(c.Context(), &req)
		return c.Answer(answer, err, func(t *output.Table) {
			e := answer.GetEntity()
			t.Row(fmt.Sprintf("%s/%s is at etag %s%s", e.GetType(), e.GetId(), e.GetEtag(), cli.DryRunNote(req.GetDryRun())))
			for _, name := range slices.Sorted(maps.Keys(req.GetFields().GetFields())) {
				t.Row("  " + name + " = " + valueText(e.GetFields().GetFields()[name]))
			}
		})
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "a JSON object with the fields, from this `file`; - is standard input")
	writeFlags(cmd, &req.IfMatch, &req.DryRun)
	return cmd
}

func writeFlags(cmd *cobra.Command, ifMatch *string, dryRun *bool) {
	ifMatchFlag(cmd, ifMatch)
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "check everything and change nothing")
}

func ifMatchFlag(cmd *cobra.Command, ifMatch *string) {
	cmd.Flags().StringVar(ifMatch, "if-match", "", "refuse when the entity no longer has this `etag`")
}

// patchFields reads the fields of a patch from arguments and from a file.
func patchFields(ctx context.Context, args []string, file string, stdin io.Reader) (*structpb.Struct, error) {
	fields := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	if file != "" {
		text, err := cli.ReadFile(ctx, file, stdin)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		if err := protojson.Unmarshal(text, fields); err != nil {
			return nil, fmt.Errorf("--file: %s is not a JSON object: %w", file, err)
		}
	}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not a change: want FIELD=VALUE", arg)
		}
		if _, twice := fields.GetFields()[name]; twice {
			return nil, fmt.Errorf("the field %s is given twice", name)
		}
		v, err := fieldValue(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fields.Fields[name] = v
	}
	if len(fields.GetFields()) == 0 {
		return nil, errors.New("no field is given: want FIELD=VALUE, or --file")
	}
	return fields, nil
}

// fieldValue parses text as JSON, or takes it as text. Integers that a double cannot hold
// stay text, as in the contract.
func fieldValue(text string) (*structpb.Value, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var any any
	if err := dec.Decode(&any); err != nil || dec.More() {
		return structpb.NewStringValue(text), nil //nolint:nilerr // not JSON: plain text
	}
	const most = 1<<53 - 1 // that a double holds
	if n, ok := any.(json.Number); ok && !strings.ContainsAny(n.String(), ".eE") {
		i, err := n.Int64()
		isExact := err == nil && -most <= i && i <= most
		if !isExact {
			return structpb.NewStringValue(text), nil
		}
	}
	v := &structpb.Value{}
	if err := protojson.Unmarshal([]byte(text), v); err != nil {
		return nil, fmt.Errorf("%q cannot be sent: %w", text, err)
	}
	return v, nil
}
