package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// readLetter reads a dead letter with its whole message, part by part.
func readLetter(ctx context.Context, a *api, worker, id string) (*operatorv1.DeadLetter, error) {
	req := &operatorv1.ReadDeadLetterRequest{WorkerId: worker, Id: id, Limit: 2 << 20}
	var whole *operatorv1.DeadLetter
	for {
		part, err := a.Workers.ReadDeadLetter(ctx, req)
		if err != nil {
			return nil, err
		}
		if whole == nil {
			whole = proto.CloneOf(part)
		} else {
			whole.Data = append(whole.Data, part.GetData()...)
		}
		if req.Offset = int64(len(whole.GetData())); len(part.GetData()) == 0 || req.GetOffset() >= part.GetSize() {
			return whole, nil
		}
	}
}

// showLetter shows one dead letter; with raw only its message, as it is.
func showLetter(cmd *cobra.Command, o *output, d *operatorv1.DeadLetter, raw bool) error {
	if raw {
		return send(cmd.OutOrStdout(), d.GetData())
	}
	return o.write(cmd.OutOrStdout(), d, func(t *table) {
		t.line("id", d.GetId())
		t.line("worker", d.GetWorkerId())
		t.row(cell{"reason", faint}, cell{d.GetReason(), bad})
		t.line("topic", d.GetTopic())
		t.line("at", moment(d.GetAt()))
		t.line("attempts", fmt.Sprint(d.GetAttempts()))
		t.line("code", d.GetDigest())
		t.line("message", d.GetMessage())
		t.line("output", d.GetOutput())
		t.line("bytes", fmt.Sprint(d.GetSize()))
		t.line("digest", d.GetDataDigest())
		for _, h := range d.GetHeaders() {
			t.row(cell{"header", faint}, h.GetName()+": "+strings.Join(h.GetValues(), ", "))
		}
		text := string(d.GetData())
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			text = hex.Dump(d.GetData())
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			t.row(cell{"data", faint}, strings.ReplaceAll(line, "\t", "    "))
		}
	})
}

// showGroups shows the dead letters of a worker by reason.
func showGroups(a *api, cmd *cobra.Command, o *output, worker string) error {
	answer, err := a.Workers.ListDeadLetterGroups(cmd.Context(), &operatorv1.ListDeadLetterGroupsRequest{WorkerId: worker})
	if err != nil {
		return err
	}
	return o.write(cmd.OutOrStdout(), answer, func(t *table) {
		t.head("LETTERS", "FIRST", "LAST", "OLDEST", "GROUP")
		for _, g := range answer.GetGroups() {
			t.row(fmt.Sprint(g.GetCount()), moment(g.GetFirstAt()), moment(g.GetLastAt()), g.GetFirstId(), g.GetName())
		}
		if n := answer.GetOthers(); n > 0 {
			t.row(fmt.Sprint(n), "", "", "", cell{"(rarer reasons)", faint})
		}
	})
}

// letterFlags choose dead letters of a worker.
type letterFlags struct {
	all   bool
	group string
}

func (l *letterFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.all, "all", false, "all dead letters")
	cmd.Flags().StringVar(&l.group, "group", "", "all with this `reason`, as dead-letters --by-reason has it")
}

// check returns an error when not exactly one choice is made.
func (l *letterFlags) check(worker string, ids []string) error {
	switch {
	case l.all && len(ids) > 0:
		return errors.New("--all and ids exclude each other")
	case l.group != "" && (l.all || len(ids) > 0):
		return errors.New("--group excludes --all and ids")
	case !l.all && l.group == "" && len(ids) == 0:
		return fmt.Errorf("which dead letters? give ids from lifecyclectl dead-letters %s, --group or --all", worker)
	}
	return nil
}

// ids returns the ids of the chosen letters that exist now.
func (l *letterFlags) ids(ctx context.Context, a *api, worker string, ids []string) ([]string, error) {
	if !l.all && l.group == "" {
		return ids, nil
	}
	err := eachLetters(ctx, a, worker, l.group, 0, func(page []*operatorv1.DeadLetter) {
		for _, d := range page {
			ids = append(ids, d.GetId())
		}
	})
	return ids, err
}

// noneOf is the error of a command that has found none of the dead letters it names.
func noneOf(worker string, ids []string, done int64) error {
	if len(ids) == 0 || done > 0 {
		return nil
	}
	return &failure{status: exitNotFound, err: fmt.Errorf("worker %s has no dead letter %s", worker, strings.Join(ids, " or "))}
}

func discardCommand() *cobra.Command {
	var (
		r      remote
		o      output
		yes    consent
		which  letterFlags
		note   string
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "discard WORKER [ID...]",
		Short: "Remove dead letters of a hosted worker for good",
		Long: `Remove dead letters of a hosted worker for good: those with these ids, those with
one reason, or with --all those that exist when it begins. The note goes into the audit.
With --dry-run it only counts them. It discards 1000 at a time; when one part fails, the
error says how many were discarded before.`,
		Example: `  lifecyclectl discard thumbs 18 --note "a test message"
  lifecyclectl discard thumbs --all --dry-run`,
		RunE: asks(&r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return words("WORKER")(cmd, args)
			}
			worker := args[0]
			if err := which.check(worker, args[1:]); err != nil {
				return err
			}
			if note == "" && !dryRun {
				return errors.New("why? give --note, for the audit")
			}
			ids, err := which.ids(cmd.Context(), a, worker, args[1:])
			if err != nil {
				return err
			}
			if len(ids) > 0 && !dryRun {
				if err := yes.ask(cmd, fmt.Sprintf("%d dead letters of %s will be removed for good.", len(ids), worker)); err != nil {
					return err
				}
			}
			done := &operatorv1.DiscardDeadLettersResponse{}
			for part := range slices.Chunk(ids, atOnce) {
				answer, err := a.Workers.DiscardDeadLetters(cmd.Context(), &operatorv1.DiscardDeadLettersRequest{WorkerId: worker, Ids: part, Note: note, DryRun: dryRun})
				if err != nil && done.GetDiscarded() > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "lifecyclectl: %d of %d were discarded before this:\n", done.GetDiscarded(), len(ids))
				}
				if err != nil {
					return err
				}
				done.Discarded += answer.GetDiscarded()
			}
			if err := noneOf(worker, args[1:], done.GetDiscarded()); err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), done, func(t *table) {
				text := fmt.Sprintf("%d discarded", done.GetDiscarded())
				if dryRun {
					text += " (dry run: nothing has changed)"
				}
				t.row(text)
			})
		}),
		ValidArgsFunction: completeWorkers(&r),
	}
	which.register(cmd)
	cmd.Flags().StringVar(&note, "note", "", "why, for the audit; required without --dry-run")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count them, and remove nothing")
	yes.register(cmd)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// redriveEdited gives one dead letter to its worker with the data of a file.
func redriveEdited(a *api, cmd *cobra.Command, o *output, args []string, file, note string) error {
	if len(args) != 2 {
		return errors.New("--data-file edits one dead letter: give its id, and neither --all nor --group")
	}
	data, err := readAll(file, cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("--data-file: %w", err)
	}
	answer, err := a.Workers.RedriveEdited(cmd.Context(), &operatorv1.RedriveEditedRequest{WorkerId: args[0], Id: args[1], Data: data, Note: note})
	if err != nil {
		return err
	}
	return o.write(cmd.OutOrStdout(), answer, func(t *table) {
		t.line("redriven", args[1])
		t.line("before", answer.GetBefore())
		t.line("after", answer.GetAfter())
	})
}
