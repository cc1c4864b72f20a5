package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// condition is one part of a selector: a key has a value, or has it not.
type condition struct {
	key, value string
	not        bool
}

// parseSelector reads KEY=VALUE and KEY!=VALUE with commas between them.
func parseSelector(text string) (list []condition, err error) {
	for one := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(one, "=")
		key, not := strings.CutSuffix(key, "!")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return nil, fmt.Errorf("--selector has %q: want KEY=VALUE or KEY!=VALUE, with commas between them", one)
		}
		list = append(list, condition{key, strings.TrimSpace(strings.TrimPrefix(value, "=")), not})
	}
	return list, nil
}

// processKeys are the keys of a selector of processes.
var processKeys = map[string]func(*operatorv1.Process) string{
	"id":        (*operatorv1.Process).GetId,
	"service":   (*operatorv1.Process).GetService,
	"host":      (*operatorv1.Process).GetHost,
	"version":   (*operatorv1.Process).GetVersion,
	"phase":     (*operatorv1.Process).GetPhase,
	"ready":     func(p *operatorv1.Process) string { return strconv.FormatBool(p.GetReady()) },
	"suspended": func(p *operatorv1.Process) string { return strconv.FormatBool(p.GetSuspended() != "") },
	"problems":  func(p *operatorv1.Process) string { return strconv.FormatBool(len(p.GetFindings()) > 0) },
}

// processSelector is the flag --selector of commands about processes.
type processSelector struct {
	text  string
	terms []condition
}

func (s *processSelector) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.text, "selector", "l", "", "only processes for which `terms` hold: KEY=VALUE or KEY!=VALUE, with commas; keys are host, id, phase, problems, ready, service, suspended, version")
}

func (s *processSelector) parse() (err error) {
	if s.text == "" {
		return nil
	}
	if s.terms, err = parseSelector(s.text); err != nil {
		return err
	}
	for _, t := range s.terms {
		if _, ok := processKeys[t.key]; !ok {
			var names []string
			for name := range processKeys {
				names = append(names, name)
			}
			slices.Sort(names)
			if meant := suggest.Nearest(t.key, names); meant != "" {
				return fmt.Errorf("--selector: processes have no %q; did you mean %s?", t.key, meant)
			}
			return fmt.Errorf("--selector: processes have no %q: want one of %s", t.key, strings.Join(names, ", "))
		}
	}
	return nil
}

func (s *processSelector) matches(p *operatorv1.Process) bool {
	for _, t := range s.terms {
		if (processKeys[t.key](p) == t.value) == t.not {
			return false
		}
	}
	return true
}

// processes returns the processes that match.
func (s *processSelector) processes(ctx context.Context, a *api) (list []*operatorv1.Process, err error) {
	req := &operatorv1.ListProcessesRequest{PageSize: 1000}
	for _, t := range s.terms { // what the server can filter
		switch {
		case t.not:
		case t.key == "service":
			req.Service = t.value
		case t.key == "phase":
			req.Phase = t.value
		}
	}
	for {
		page, err := a.Processes.ListProcesses(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, p := range page.GetProcesses() {
			if s.matches(p) {
				list = append(list, p)
			}
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return list, nil
		}
	}
}

// bulk are the flags of a command that may act on many objects.
type bulk struct {
	selector processSelector
	dry      bool
	yes      consent
}

func (b *bulk) register(cmd *cobra.Command) {
	b.selector.register(cmd)
	cmd.Flags().BoolVar(&b.dry, "dry-run", false, "only show which processes it would be")
	b.yes.register(cmd)
}

// act acts on the process that is named, or on all that the selector selects, one after
// the other. will says in a sentence what happens to "%s". One that fails does not stop the
// others; the exit status is then 1.
func (b *bulk) act(a *api, cmd *cobra.Command, o *output, args []string, will, done string, one bool, do func(id string) (*operatorv1.CommandResponse, error)) error {
	switch {
	case (len(args) == 0) == (b.selector.text == ""):
		return fmt.Errorf("which process? give its ID, or --selector; the command is: %s", cmd.UseLine())
	case len(args) > 0:
		if b.dry {
			p, err := a.Processes.GetProcess(cmd.Context(), &operatorv1.GetProcessRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return b.show(cmd, o, []*operatorv1.Process{p})
		}
		if one {
			if err := b.yes.ask(cmd, fmt.Sprintf(will, "The process "+args[0])); err != nil {
				return err
			}
		}
		answer, err := do(args[0])
		return commanded(cmd, o, answer, err, args[0]+" "+done)
	}
	list, err := b.selector.processes(cmd.Context(), a)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return &failure{status: exitNotFound, err: fmt.Errorf("no process matches %s", b.selector.text)}
	case b.dry:
		return b.show(cmd, o, list)
	}
	if err := b.yes.ask(cmd, fmt.Sprintf(will, fmt.Sprintf("Each of %d processes", len(list)))); err != nil {
		return err
	}
	failed := 0
	out := &rows{w: cmd.OutOrStdout(), o: o, head: []string{"ID", "RESULT"}, widths: []int{28, 10}}
	for _, p := range list {
		answer, err := do(p.GetId())
		if cmd.Context().Err() != nil {
			return context.Canceled
		}
		result := cell{done, good}
		if err != nil {
			failed++
			result = cell{message(err), bad}
			answer = &operatorv1.CommandResponse{}
		}
		if o.tabular() || err == nil {
			if err := out.add(answer, p.GetId(), result); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return &failure{status: exitFindings, err: fmt.Errorf("%d of %d processes failed", failed, len(list))}
	}
	return nil
}

// show says which processes it would be.
func (b *bulk) show(cmd *cobra.Command, o *output, list []*operatorv1.Process) error {
	return o.write(cmd.OutOrStdout(), &operatorv1.ListProcessesResponse{Processes: list}, func(t *table) {
		t.head("ID", "SERVICE", "PHASE", "READY", "VERSION")
		for _, p := range list {
			t.row(p.GetId(), p.GetService(), state(p.GetPhase()), readyCell(p), p.GetVersion())
		}
		t.row(cell{fmt.Sprintf("%d processes (dry run: nothing has changed)", len(list)), faint})
	})
}
