package operator

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// letterOf turns a dead letter into the contract's message as a list has it, with these
// bytes of its data. A broker takes any bytes in subjects and headers; the contract's
// texts are UTF-8.
func letterOf(d *host.DeadLetter, data []byte) *operatorv1.DeadLetter {
	return &operatorv1.DeadLetter{
		Id:       fmt.Sprint(d.Seq),
		WorkerId: text.Valid(d.Worker),
		Topic:    text.Valid(d.Topic),
		Reason:   text.Valid(d.Reason),
		At:       timestamppb.New(d.At),
		Attempts: int32(d.Attempts),
		Digest:   "sha256:" + text.Valid(d.Digest),
		Data:     data,
		Size:     int64(len(d.Data)),
		Output:   text.Valid(d.Output),
	}
}

func (a hosts) DeadLetters(ctx context.Context, id, after string, limit int) ([]*operatorv1.DeadLetter, error) {
	last, err := sequence(after)
	if err != nil {
		return nil, err
	}
	var list []*operatorv1.DeadLetter
	if limit <= 0 {
		return nil, nil
	}
	err = a.h.EachDeadLetter(ctx, id, last+1, func(d *host.DeadLetter) (bool, error) {
		list = append(list, letterOf(d, beginOf(d.Data)))
		return len(list) < limit, nil
	})
	return list, workerErr(err)
}

func (a hosts) LetterGroups(ctx context.Context, id string) ([]LetterGroup, error) {
	groups, err := a.h.LetterGroups(ctx, id)
	if err != nil {
		return nil, workerErr(err)
	}
	list := make([]LetterGroup, len(groups))
	for i, g := range groups {
		ids := make([]string, len(g.Seqs))
		for j, seq := range g.Seqs {
			ids[j] = strconv.FormatUint(seq, 10)
		}
		list[i] = LetterGroup{&operatorv1.DeadLetterGroup{
			Name:    g.Name,
			Count:   int64(len(ids)),
			Reason:  text.Valid(g.Reason),
			FirstAt: timestamppb.New(g.First),
			LastAt:  timestamppb.New(g.Last),
			FirstId: ids[0],
		}, ids}
	}
	return list, nil
}

func (a hosts) DeadLetter(ctx context.Context, id, letter string) (*operatorv1.DeadLetter, error) {
	seqs, err := sequences("id", letter)
	if err != nil {
		return nil, err
	}
	d, err := a.h.DeadLetter(ctx, id, seqs[0])
	if err != nil {
		return nil, workerErr(err)
	}
	m := letterOf(d, d.Data)
	m.Headers, m.Message, m.DataDigest = headersOf(d.Header), text.Valid(d.Message), digestOf(d.Data)
	return m, nil
}

// sequences reads the ids of dead letters.
func sequences(field string, ids ...string) ([]uint64, error) {
	seqs := make([]uint64, len(ids))
	for i, id := range ids {
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			if len(ids) > 1 {
				field = fmt.Sprintf("%s[%d]", field, i)
			}
			return nil, invalid(field, "%q is not the id of a dead letter", clip(id, 32))
		}
		seqs[i] = n
	}
	return seqs, nil
}

func (a hosts) Redrive(ctx context.Context, id string, ids []string, _ string) (int64, error) {
	seqs, err := sequences("ids", ids...)
	if err != nil {
		return 0, err
	}
	n, err := a.h.Redrive(ctx, id, seqs...)
	return int64(n), workerErr(err)
}

func (a hosts) RedriveEdited(ctx context.Context, id, letter string, data []byte, _ string) ([]byte, error) {
	seqs, err := sequences("id", letter)
	if err != nil {
		return nil, err
	}
	d, err := a.h.RedriveEdited(ctx, id, seqs[0], data)
	if err != nil {
		return nil, workerErr(err)
	}
	return d.Data, nil
}

func (a hosts) Discard(ctx context.Context, id string, ids []string, dryRun bool, _ string) (int64, error) {
	seqs, err := sequences("ids", ids...)
	if err != nil {
		return 0, err
	}
	n, err := a.h.Discard(ctx, id, dryRun, seqs...)
	return int64(n), workerErr(err)
}
