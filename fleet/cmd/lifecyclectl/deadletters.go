package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// atOnce is how many dead letters one call may list or redrive.
const atOnce = 1000

func deadLettersCommand() *cobra.Command {
	var (
		r      remote
		o      output
		limit  int
		follow bool
		group  string
		by     bool
		raw    bool
	)
	cells := func(d *operatorv1.DeadLetter) []any {
		return []any{d.GetId(), moment(d.GetAt()), d.GetTopic(), fmt.Sprint(d.GetAttempts()), fmt.Sprint(d.GetSize()), d.GetReason()}
	}
	cmd := &cobra.Command{
		Use:   "dead-letters WORKER [ID]",
		Short: "List the messages that a hosted worker failed to handle, oldest first, or show one whole",
		Long: `List the messages that a hosted worker failed to handle, oldest first. With
--by-reason count them by reason; reasons that differ only in numbers are one group. With
ID show one with its headers and its whole message, which needs the role operator; with
--raw write the message as it is.`,
		Example: `  lifecyclectl dead-letters thumbs --by-reason
  lifecyclectl dead-letters thumbs --limit 20`,
		Args: words("WORKER", "[ID]"),
		RunE: asks(&r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit is %d, want 0 for all or more", limit)
			}
			switch {
			case raw && len(args) < 2:
				return errors.New("--raw needs the id of one dead letter")
			case len(args) > 1 && (by || follow || group != ""):
				return errors.New("an id excludes --by-reason, --group and --watch")
			case by && (follow || group != ""):
				return errors.New("--by-reason excludes --group and --watch")
			case by:
				return showGroups(a, cmd, &o, args[0])
			case len(args) > 1:
				d, err := readLetter(cmd.Context(), a, args[0], args[1])
				if err != nil {
					return err
				}
				return showLetter(cmd, &o, d, raw)
			}
			p := polled[*operatorv1.DeadLetter]{
				head: []string{"ID", "AT", "TOPIC", "ATTEMPTS", "BYTES", "REASON"}, widths: []int{8, 20, 20, 8, 5},
				look: func(ctx context.Context) (list []*operatorv1.DeadLetter, err error) {
					err = eachLetters(ctx, a, args[0], group, limit, func(page []*operatorv1.DeadLetter) { list = append(list, page...) })
					return list, err
				},
				key:   (*operatorv1.DeadLetter).GetId,
				cells: cells,
			}
			if follow {
				return p.watch(a, cmd, &o)
			}
			list, err := p.look(cmd.Context())
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), &operatorv1.ListDeadLettersResponse{DeadLetters: list}, func(t *table) {
				t.head(p.head...)
				for _, d := range list {
					t.row(cells(d)...)
				}
			})
		}),
		ValidArgsFunction: completeWorkers(&r),
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this `many`; 0 is all")
	cmd.Flags().BoolVar(&by, "by-reason", false, "count them by reason")
	cmd.Flags().StringVar(&group, "group", "", "only those with this `reason`, as --by-reason has it")
	cmd.Flags().BoolVar(&raw, "raw", false, "write the message of one as it is")
	watchFlag(cmd, &follow)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// eachLetters lists the dead letters of a worker, or of one group, page by page, at most
// limit of them unless it is 0.
func eachLetters(ctx context.Context, a *api, worker, group string, limit int, each func([]*operatorv1.DeadLetter)) error {
	req := &operatorv1.ListDeadLettersRequest{WorkerId: worker, Group: group}
	for n := 0; ; {
		req.PageSize = atOnce
		if limit > 0 {
			req.PageSize = int32(min(atOnce, limit-n))
		}
		page, err := a.Workers.ListDeadLetters(ctx, req)
		if err != nil {
			return err
		}
		n += len(page.GetDeadLetters())
		each(page.GetDeadLetters())
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" || limit > 0 && n >= limit {
			return nil
		}
	}
}

func redriveCommand() *cobra.Command {
	var (
		r     remote
		o     output
		yes   consent
		which letterFlags
		file  string
		note  string
	)
	cmd := &cobra.Command{
		Use:   "redrive WORKER [ID...]",
		Short: "Give dead letters to their hosted worker once more",
		Long: `Give dead letters to their hosted worker once more: those with these ids, those
with one reason, or with --all those that exist when it begins. A message that fails again
becomes a dead letter again, and is not redriven twice. It redrives 1000 at a time; when
one part fails, the error says how many were redriven before.

With --data-file one message goes with other data. It keeps its topic, its key and its
other headers. When another operator redrives it first, the exit status is that of a
conflict, and the data goes nowhere.`,
		Example: `  lifecyclectl dead-letters thumbs
  lifecyclectl redrive thumbs 18 19
  lifecyclectl redrive thumbs 18 --data-file fixed.json --note "a typo"
  lifecyclectl redrive thumbs --all --yes`,
		RunE: asks(&r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return words("WORKER")(cmd, args)
			}
			if cmd.Flags().Changed("data-file") {
				if which.all || which.group != "" {
					args = nil
				}
				return redriveEdited(a, cmd, &o, args, file, note)
			}
			if note != "" {
				return errors.New("--note goes with --data-file")
			}
			worker := args[0]
			if err := which.check(worker, args[1:]); err != nil {
				return err
			}
			p := begin(cmd.ErrOrStderr(), "looking for dead letters")
			ids, err := which.ids(cmd.Context(), a, worker, args[1:])
			p.end()
			if err != nil {
				return err
			}
			if len(ids) > 0 && (which.all || which.group != "") {
				if err := yes.ask(cmd, fmt.Sprintf("%d dead letters go to %s once more.", len(ids), worker)); err != nil {
					return err
				}
			}
			p = begin(cmd.ErrOrStderr(), "redriving")
			done := &operatorv1.RedriveResponse{}
			for part := range slices.Chunk(ids, atOnce) {
				p.say("redriving %d of %d", done.GetRedriven(), len(ids))
				var answer *operatorv1.RedriveResponse
				answer, err = a.Workers.Redrive(cmd.Context(), &operatorv1.RedriveRequest{WorkerId: worker, Ids: part})
				if err != nil {
					break
				}
				done.Redriven += answer.GetRedriven()
			}
			p.end()
			if err != nil && done.GetRedriven() > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "lifecyclectl: %d of %d were redriven before this:\n", done.GetRedriven(), len(ids))
			}
			if err == nil {
				err = noneOf(worker, args[1:], done.GetRedriven())
			}
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), done, func(t *table) { t.row(fmt.Sprintf("%d redriven", done.GetRedriven())) })
		}),
		ValidArgsFunction: completeWorkers(&r),
	}
	which.register(cmd)
	cmd.Flags().StringVar(&file, "data-file", "", "give one message with the data of this `file`; - is standard input")
	cmd.Flags().StringVar(&note, "note", "", "why it was edited, for the audit")
	yes.register(cmd)
	o.register(cmd)
	r.register(cmd)
	return cmd
}
