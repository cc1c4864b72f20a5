// Package deadletters has the commands about the messages that hosted workers failed to
// handle: look at them, give them to their worker once more, or remove them.
//
// Each command asks an operator server through package cli; begin at [Commands]. act.go has
// those that change something.
package deadletters

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
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

// atOnce is how many dead letters one call may redrive or discard.
const atOnce = 1000

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
--raw write the message as it is.`,
		Example: `  lifecyclectl dead-letters thumbs --by-reason
  lifecyclectl dead-letters thumbs --limit 20`,
		Args:              cli.Words("WORKER", "[ID]"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		isOne := len(c.Args) > 1
		switch {
		case raw && !isOne:
			return errors.New("--raw needs the id of one dead letter")
		case isOne && (byReason || watch || group != ""):
			return errors.New("an id excludes --by-reason, --group and --watch")
		case byReason && (watch || group != ""):
			return errors.New("--by-reason excludes --group and --watch")
		case byReason:
			return ShowGroups(c, c.Args[0])
		case isOne:
			return showOne(c, raw)
		}
		return cli.List[*operatorv1.DeadLetter]{
			Head:   []string{"ID", "AT", "TOPIC", "ATTEMPTS", "BYTES", "REASON"},
			Widths: []int{8, 20, 20, 8, 5},
			Cells: func(d *operatorv1.DeadLetter) []any {
				return []any{d.GetId(), output.Moment(d.GetAt()), d.GetTopic(), fmt.Sprint(d.GetAttempts()), fmt.Sprint(d.GetSize()), d.GetReason()}
			},
			Look: func(ctx context.Context) ([]*operatorv1.DeadLetter, error) {
				return readAll(ctx, c, c.Args[0], group, limit)
			},
			Answer: func(list []*operatorv1.DeadLetter) proto.Message {
				return &operatorv1.ListDeadLettersResponse{DeadLetters: list}
			},
			Key: (*operatorv1.DeadLetter).GetId,
		}.Show(c, watch)
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this `many`; 0 is all")
	cmd.Flags().BoolVar(&byReason, "by-reason", false, "count them by reason")
	cmd.Flags().StringVar(&group, "group", "", "only those with this `reason`, as --by-reason has it")
	cmd.Flags().BoolVar(&raw, "raw", false, "write the message of one as it is")
	cli.WatchFlag(cmd, &watch)
	return cmd
}

// readAll lists the dead letters of a worker, or of one group, at most limit of them unless
// it is 0.
func readAll(ctx context.Context, c *cli.Call, worker, group string, limit int) ([]*operatorv1.DeadLetter, error) {
	return cli.Pages(limit, func(size int32, token string) ([]*operatorv1.DeadLetter, string, error) {
		req := &operatorv1.ListDeadLettersRequest{WorkerId: worker, Group: group, PageSize: size, PageToken: token}
		page, err := c.Workers.ListDeadLetters(ctx, req)
		return page.GetDeadLetters(), page.GetNextPageToken(), err
	})
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
	if err != nil {
		return err
	}
	return c.Write(answer, func(t *output.Table) {
		t.Head("LETTERS", "FIRST", "LAST", "OLDEST", "GROUP")
		for _, g := range answer.GetGroups() {
			t.Row(fmt.Sprint(g.GetCount()), output.Moment(g.GetFirstAt()), output.Moment(g.GetLastAt()), g.GetFirstId(), g.GetName())
		}
		if n := answer.GetOthers(); n > 0 {
			t.Row(fmt.Sprint(n), "", "", "", output.Faint("(rarer reasons)"))
		}
	})
}
