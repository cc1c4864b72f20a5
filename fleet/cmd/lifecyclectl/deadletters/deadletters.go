// Package deadletters has the commands about the messages that hosted workers failed to
// handle: look at them, give them to their worker once more, or remove them.
//
// Each command asks an operator server through package cli; begin at [Commands].
package deadletters

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

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Commands returns the commands of this package.
func Commands() []*cobra.Command { return []*cobra.Command{list(), redrive(), discard()} }

// atOnce returns how many dead letters one call redrives or discards. A hook runs within the
// call, whose time is 15 s on a server that sets no other.
func atOnce(worker string) int {
	if strings.Contains(worker, "/") {
		return 10
	}
	return 1000
}

func list() *cobra.Command {
	var (
		limit    int
		watch    bool
		group    string
		byReason bool
		raw      bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "dead-letters WORKER [ID]",
		Short: "List the messages that a hosted worker failed to handle, oldest first, or show one whole",
		Long: `List the messages that a hosted worker failed to handle, oldest first. With
--by-reason count them by reason; reasons that differ only in numbers are one group. With
ID show one with its headers and its whole message, which needs the role operator; with
--raw write the message as it is. TYPE/HOOK in place of WORKER lists the reactions that a
hook of a workflow has given up.`,
		Example: `  lifecyclectl dead-letters thumbs --by-reason
  lifecyclectl dead-letters thumbs --limit 20`,
	}, cli.OfWorker, func(c *cli.Call) error {
		isOne := len(c.Args) > 1
		switch {
		case raw && !isOne:
			return errors.New("--raw needs the id of one dead letter")
		case isOne && (byReason || watch || group != ""):
			return errors.New("an id excludes --by-reason, --group and --watch")
		case byReason:
			return ShowGroups(c, c.Args[0])
		case isOne:
			return showOne(c, raw)
		case watch:
			limit = 0
		}
		return cli.List[*operatorv1.DeadLetter]{
			Head:   []string{"ID", "AT", "TOPIC", "ATTEMPTS", "BYTES", "REASON"},
			Widths: []int{8, 20, 20, 8, 5},
			Cells: func(d *operatorv1.DeadLetter) []any {
				return []any{d.GetId(), output.Moment(d.GetAt()), d.GetTopic(), fmt.Sprint(d.GetAttempts()), fmt.Sprint(d.GetSize()), d.GetReason()}
			},
			Look: func(ctx context.Context) (proto.Message, error) {
				return readAll(ctx, c, c.Args[0], group, limit)
			},
			Key: (*operatorv1.DeadLetter).GetId,
		}.Show(c, watch)
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "at most `N`; 0 is all")
	cmd.Flags().BoolVar(&byReason, "by-reason", false, "count them by reason")
	cmd.Flags().StringVar(&group, "group", "", "only those with this `reason`, as --by-reason has it")
	cmd.Flags().BoolVar(&raw, "raw", false, "write the message of one as it is")
	cli.WatchFlag(cmd, &watch)
	cmd.MarkFlagsMutuallyExclusive("watch", "limit")
	cmd.MarkFlagsMutuallyExclusive("by-reason", "watch")
	cmd.MarkFlagsMutuallyExclusive("by-reason", "group")
	return cmd
}

// readAll lists the dead letters of a worker, or of one group, at most limit of them unless
// it is 0.
func readAll(ctx context.Context, c *cli.Call, worker, group string, limit int) (*operatorv1.ListDeadLettersResponse, error) {
	req := &operatorv1.ListDeadLettersRequest{WorkerId: worker, Group: group}
	return cli.All(ctx, limit, req, c.Workers.ListDeadLetters)
}

// showOne shows one dead letter; with raw only its message, as it is.
func showOne(c *cli.Call, raw bool) error {
	d, err := readOne(c, c.Args[0], c.Args[1])
	if err != nil {
		return err
	}
	if raw {
		return c.Send(d.GetData())
	}
	return c.Write(d, func(t *output.Table) {
		t.Line("id", d.GetId())
		t.Line("worker", d.GetWorkerId())
		t.Row(output.Faint("reason"), output.Bad(d.GetReason()))
		t.Line("topic", d.GetTopic())
		t.Line("at", output.Moment(d.GetAt()))
		t.Line("attempts", fmt.Sprint(d.GetAttempts()))
		t.Line("code", d.GetDigest())
		t.Line("message", d.GetMessage())
		t.Line("output", d.GetOutput())
		t.Line("bytes", fmt.Sprint(d.GetSize()))
		t.Line("digest", d.GetDataDigest())
		for _, h := range d.GetHeaders() {
			t.Row(output.Faint("header"), h.GetName()+": "+strings.Join(h.GetValues(), ", "))
		}
		text := string(d.GetData())
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			text = hex.Dump(d.GetData())
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			t.Row(output.Faint("data"), strings.ReplaceAll(line, "\t", "    "))
		}
	})
}

// readOne reads a dead letter with its whole message, part by part.
func readOne(c *cli.Call, worker, id string) (*operatorv1.DeadLetter, error) {
	req := &operatorv1.ReadDeadLetterRequest{WorkerId: worker, Id: id, Limit: 2 << 20}
	var whole *operatorv1.DeadLetter
	for {
		part, err := c.Workers.ReadDeadLetter(c.Context(), req)
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

// ShowGroups shows the dead letters of a worker by reason.
func ShowGroups(c *cli.Call, worker string) error {
	answer, err := c.Workers.ListDeadLetterGroups(c.Context(), &operatorv1.ListDeadLetterGroupsRequest{WorkerId: worker})
	return c.Answer(answer, err, func(t *output.Table) {
		t.Head("LETTERS", "FIRST", "LAST", "OLDEST", "GROUP")
		for _, g := range answer.GetGroups() {
			t.Row(fmt.Sprint(g.GetCount()), output.Moment(g.GetFirstAt()), output.Moment(g.GetLastAt()), g.GetFirstId(), g.GetName())
		}
		if n := answer.GetOthers(); n > 0 {
			t.Row(fmt.Sprint(n), "", "", "", output.Faint("(rarer reasons)"))
		}
	})
}

// selection chooses dead letters of a worker.
type selection struct {
	all   bool
	group string
	yes   cli.Consent
}

func (s *selection) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.all, "all", false, "all dead letters")
	cmd.Flags().StringVar(&s.group, "group", "", "all with this `reason`, as dead-letters --by-reason has it")
	cmd.MarkFlagsMutuallyExclusive("all", "group")
	s.yes.Register(cmd)
}

// isMany reports whether the flags choose, and not ids.
func (s *selection) isMany() bool { return s.all || s.group != "" }

// check returns an error when not exactly one choice is made.
func (s *selection) check(c *cli.Call) error {
	hasIDs := len(c.Args) > 1
	switch {
	case s.all && hasIDs:
		return errors.New("--all and ids exclude each other")
	case s.group != "" && hasIDs:
		return errors.New("--group and ids exclude each other")
	case !s.isMany() && !hasIDs:
		return fmt.Errorf("which dead letters? give ids from lifecyclectl dead-letters %s, --group or --all", c.Args[0])
	}
	return nil
}

// ids returns the ids of the chosen letters that exist now.
func (s *selection) ids(c *cli.Call) (ids []string, err error) {
	if !s.isMany() {
		return c.Args[1:], nil
	}
	list, err := readAll(c.Context(), c, c.Args[0], s.group, 0)
	for _, d := range list.GetDeadLetters() {
		ids = append(ids, d.GetId())
	}
	return ids, err
}

// each does something with the chosen letters, part by part: see atOnce. It asks question first,
// unless that is "". do returns how many it was done with. A command that finds none of the
// dead letters that it names fails.
func (s *selection) each(
	c *cli.Call, question, doing, done string, do func(part []string) (int64, error),
) (total int64, err error) {
	ids, err := s.ids(c)
	if err != nil {
		return 0, err
	}
	if len(ids) > 0 && question != "" {
		if err := s.yes.Ask(c.Command, fmt.Sprintf("%d dead letters %s", len(ids), question)); err != nil {
			return 0, err
		}
	}
	p := cli.Begin(c.ErrOrStderr(), doing)
	for part := range slices.Chunk(ids, atOnce(c.Args[0])) {
		p.Say("%s %d of %d", doing, total, len(ids))
		var n int64
		if n, err = do(part); err != nil {
			break
		}
		total += n
	}
	p.End()
	named := c.Args[1:]
	switch {
	case err != nil && total > 0:
		c.Warn("%d of %d were %s before this:", total, len(ids), done)
	case err == nil && total == 0 && len(named) > 0:
		err = cli.Fail(cli.ExitNotFound, "worker %s has no dead letter %s", c.Args[0], strings.Join(named, " or "))
	}
	return total, err
}

func redrive() *cobra.Command {
	var (
		chosen selection
		file   string
		note   string
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "redrive WORKER [ID...]",
		Short: "Give dead letters to their hosted worker once more",
		Long: `Give dead letters to their hosted worker once more: those with these ids, those
with one reason, or with --all those that exist when it begins. A message that fails again
becomes a dead letter again, and is not redriven twice. It redrives 1000 at a time, and 10 of
a hook; when one part fails, the error says how many were redriven before.

With --data-file one message goes with other data. It keeps its topic, its key and its
other headers. When another operator redrives it first, the command fails with the
exit status of a conflict, and sends nothing.

With TYPE/HOOK in place of WORKER the server calls the hook of a workflow once more.`,
		Example: `  lifecyclectl dead-letters thumbs
  lifecyclectl redrive thumbs 18 19
  lifecyclectl redrive thumbs 18 --data-file fixed.json --note "a typo"
  lifecyclectl redrive thumbs --all --yes`,
	}, cli.OfWorker, func(c *cli.Call) error {
		if c.Flags().Changed("data-file") {
			return redriveEdited(c, &chosen, file, note)
		}
		if note != "" {
			return errors.New("--note goes with --data-file")
		}
		if err := chosen.check(c); err != nil {
			return err
		}
		worker, question := c.Args[0], ""
		if chosen.isMany() {
			question = fmt.Sprintf("go to %s once more.", worker)
		}
		total, err := chosen.each(c, question, "redriving", "redriven", func(part []string) (int64, error) {
			answer, err := c.Workers.Redrive(c.Context(), &operatorv1.RedriveRequest{WorkerId: worker, Ids: part})
			return answer.GetRedriven(), err
		})
		return c.Answer(&operatorv1.RedriveResponse{Redriven: total}, err, func(t *output.Table) {
			t.Row(fmt.Sprintf("%d redriven", total))
		})
	})
	chosen.register(cmd)
	cmd.Flags().StringVar(&file, "data-file", "", "give one message with the data of this `file`; - is standard input")
	cmd.Flags().StringVar(&note, "note", "", "why it was edited, for the audit")
	return cmd
}

// redriveEdited gives one dead letter to its worker with the data of a file.
func redriveEdited(c *cli.Call, chosen *selection, file, note string) error {
	if len(c.Args) != 2 || chosen.isMany() {
		return errors.New("--data-file edits one dead letter: give its id, and neither --all nor --group")
	}
	data, err := cli.ReadFile(c.Context(), file, c.InOrStdin())
	if err != nil {
		return fmt.Errorf("--data-file: %w", err)
	}
	answer, err := c.Workers.RedriveEdited(c.Context(), &operatorv1.RedriveEditedRequest{WorkerId: c.Args[0], Id: c.Args[1], Data: data, Note: note})
	return c.Answer(answer, err, func(t *output.Table) {
		t.Line("redriven", c.Args[1])
		t.Line("before", answer.GetBefore())
		t.Line("after", answer.GetAfter())
	})
}

func discard() *cobra.Command {
	var (
		chosen selection
		note   string
		dryRun bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "discard WORKER [ID...]",
		Short: "Remove dead letters of a hosted worker for good",
		Long: `Remove dead letters of a hosted worker for good: those with these ids, those with
one reason, or with --all those that exist when it begins. The note goes into the audit.
With --dry-run it only counts them. It discards 1000 at a time, and 10 of a hook; when one
part fails, the error says how many were discarded before. TYPE/HOOK in place of WORKER
removes reactions that a hook of a workflow has given up.`,
		Example: `  lifecyclectl discard thumbs 18 --note "a test message"
  lifecyclectl discard thumbs --all --dry-run`,
	}, cli.OfWorker, func(c *cli.Call) error {
		if err := chosen.check(c); err != nil {
			return err
		}
		worker, question := c.Args[0], ""
		if !dryRun {
			question = fmt.Sprintf("of %s will be removed for good.", worker)
		}
		total, err := chosen.each(c, question, "discarding", "discarded", func(part []string) (int64, error) {
			req := &operatorv1.DiscardDeadLettersRequest{WorkerId: worker, Ids: part, Note: note, DryRun: dryRun}
			answer, err := c.Workers.DiscardDeadLetters(c.Context(), req)
			return answer.GetDiscarded(), err
		})
		return c.Answer(&operatorv1.DiscardDeadLettersResponse{Discarded: total}, err, func(t *output.Table) {
			t.Row(fmt.Sprintf("%d discarded%s", total, cli.DryRunNote(dryRun)))
		})
	})
	chosen.register(cmd)
	cmd.Flags().StringVar(&note, "note", "", "why, for the audit; required without --dry-run")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count them, and remove nothing")
	cmd.MarkFlagsOneRequired("note", "dry-run")
	return cmd
}
