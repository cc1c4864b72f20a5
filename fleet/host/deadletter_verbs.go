package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

var (
	// ErrNoLetter is wrapped by errors about a dead letter that the worker does not have, or
	// has no more.
	ErrNoLetter = errors.New("no such dead letter")
	// ErrRedriven is wrapped by the error of [Host.RedriveEdited] when another call has
	// redriven the letter first.
	ErrRedriven = errors.New("another call has redriven the dead letter")
)

// DeadLetter returns one dead letter of a worker with its whole message. The error for one
// that is not there wraps [ErrNoLetter]. Dead letters outlive their worker; without a worker and
// without letters of its id the error of each method about dead letters wraps [ErrNotFound].
func (h *Host) DeadLetter(ctx context.Context, id string, seq uint64) (*DeadLetter, error) {
	subject, err := h.lettersOf(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
	}
	d, err := h.letters.one(ctx, subject, seq)
	if err != nil {
		return nil, fmt.Errorf("worker %s: dead letter %d: %w", id, seq, err)
	}
	h.letters.complete(ctx, d)
	return d, nil
}

// DeadLetters returns up to limit of a worker's dead letters, the oldest first, with their
// whole messages. It begins at sequence from; 0 begins at the first. Dead letters outlive
// their worker. While another tenant has a worker of the same id, no method of a Host finds
// them. [Host.EachDeadLetter] holds one message at a time.
func (h *Host) DeadLetters(ctx context.Context, id string, from uint64, limit int) ([]*DeadLetter, error) {
	if limit <= 0 {
		return nil, nil
	}
	var found []*DeadLetter
	err := h.EachDeadLetter(ctx, id, from, func(d *DeadLetter) (bool, error) {
		found = append(found, d)
		return len(found) < limit, nil
	})
	return found, err
}

// EachDeadLetter calls each with the dead letters of a worker, the oldest first, until each
// returns false or an error, which EachDeadLetter returns. It begins at sequence from; 0
// begins at the first. A part of a letter's Data keeps the whole message in memory: clone
// what outlives the call.
func (h *Host) EachDeadLetter(ctx context.Context, id string, from uint64, each func(*DeadLetter) (bool, error)) error {
	subject, err := h.lettersOf(ctx, id)
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	return h.letters.each(ctx, subject, max(from, 1), func(d *DeadLetter) (bool, error) {
		h.letters.complete(ctx, d)
		return each(d)
	})
}

// heads calls each with the dead letters of a worker that exist now and have these
// sequences, without their data. Without seqs it calls each with all of them.
func (h *Host) heads(ctx context.Context, id string, seqs []uint64, each func(*DeadLetter)) error {
	subject, err := h.lettersOf(ctx, id)
	if err != nil {
		return err
	}
	info, err := h.letters.stream.Info(ctx)
	if err != nil {
		return err
	}
	first, last := uint64(1), info.State.LastSeq
	if len(seqs) > 0 {
		first, last = slices.Min(seqs), slices.Max(seqs)
	}
	wanted := make(map[uint64]bool, len(seqs))
	for _, seq := range seqs {
		wanted[seq] = true
	}
	return h.letters.heads(ctx, subject, first, math.MaxInt, func(d *DeadLetter) bool {
		if d.Seq <= last && (len(seqs) == 0 || wanted[d.Seq]) {
			each(d)
		}
		return d.Seq < last
	})
}

// LetterDigests returns how many dead letters of a worker come from which code, by its
// digest. It reads the headers of all of them.
func (h *Host) LetterDigests(ctx context.Context, id string) (map[string]int, error) {
	counts := map[string]int{}
	err := h.heads(ctx, id, nil, func(d *DeadLetter) { counts[d.Digest]++ })
	if err != nil {
		return nil, fmt.Errorf("worker %s: count its dead letters: %w", id, err)
	}
	return counts, nil
}

// LetterGroup has the dead letters of a worker whose reasons differ only in numbers.
type LetterGroup struct {
	Name        string // [GroupOf] their reasons
	Reason      string // of the newest
	First, Last time.Time
	Seqs        []uint64 // the oldest first
}

// LetterGroups returns the groups of a worker's dead letters, the largest first. It reads the
// headers of all of them.
func (h *Host) LetterGroups(ctx context.Context, id string) ([]LetterGroup, error) {
	byName := map[string]*LetterGroup{}
	err := h.heads(ctx, id, nil, func(d *DeadLetter) {
		name := GroupOf(d.Reason)
		g := byName[name]
		if g == nil {
			g = &LetterGroup{Name: name, First: d.At}
			byName[name] = g
		}
		g.Reason, g.Last, g.Seqs = d.Reason, d.At, append(g.Seqs, d.Seq)
	})
	if err != nil {
		return nil, fmt.Errorf("worker %s: group its dead letters: %w", id, err)
	}
	groups := make([]LetterGroup, 0, len(byName))
	for _, g := range byName {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b LetterGroup) int {
		return cmp.Or(cmp.Compare(len(b.Seqs), len(a.Seqs)), strings.Compare(a.Name, b.Name))
	})
	return groups, nil
}

// maxGroup is how many bytes the name of a group has at most.
const maxGroup = 240

// varies matches the parts of a reason that differ from message to message: numbers, UUIDs
// and hexadecimal digests.
var varies = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}` +
	`|\b[0-9a-fA-F]*[0-9][0-9a-fA-F]{11,}\b` +
	`|[0-9]+(\.[0-9]+)*`)

// GroupOf returns the name of the group to which a dead letter with such a reason belongs:
// the reason on one line with # in place of each number. A longer name than 240 bytes is
// cut, and ends with 16 letters that stand for the whole of it.
func GroupOf(reason string) string {
	name := text.Valid(varies.ReplaceAllString(text.OneLine(reason), "#"))
	if len(name) <= maxGroup {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	var end [16]byte
	for i := range end {
		end[i] = 'a' + sum[i]%26 // digits would be numbers, which a name has not
	}
	return text.Clip(name, maxGroup-1-len(end)) + " " + string(end[:])
}

// Redrive publishes dead letters of a worker to their topics again and removes them. Only the
// worker or its group handles the messages. Without seqs it redrives all. It returns the
// number of messages, also with an error. A repeated call after an interruption redrives no
// message twice, within the duplicate window of the topic's stream. A letter that another
// call removes at the same time is not counted. The error wraps [ErrInvalid] for a letter whose
// message is not one that the server takes with HeaderFor, which has some hundred bytes; the others
// are redriven nevertheless.
func (h *Host) Redrive(ctx context.Context, id string, seqs ...uint64) (int, error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("redrive: %w", err)
	}
	var chosen []uint64
	if err := h.heads(ctx, id, seqs, func(d *DeadLetter) { chosen = append(chosen, d.Seq) }); err != nil {
		return 0, fmt.Errorf("redrive: %w", err)
	}
	n := 0
	var refused error // the first of them; the letters behind it can be redriven
	for _, seq := range chosen {
		d, err := h.letters.one(ctx, h.letters.subject(rec.Tenant, id), seq)
		if errors.Is(err, ErrNoLetter) {
			continue // another call has removed it
		}
		var removed bool
		if err == nil {
			removed, err = h.redrive(ctx, d, rec)
		}
		if removed {
			n++
		}
		if errors.Is(err, ErrInvalid) {
			refused = cmp.Or(refused, err)
			continue
		}
		if err != nil {
			return n, fmt.Errorf("redrive: %w", err)
		}
	}
	if refused != nil {
		return n, fmt.Errorf("redrive: %w", refused)
	}
	return n, nil
}

// RedriveEdited publishes a dead letter of a worker with other data and removes it. The
// message keeps its topic, its key and its other headers, and only the worker or its group
// handles it. It returns the letter as it was. Of two calls for one letter one succeeds; the
// error of the other wraps [ErrRedriven] or [ErrNoLetter], and its data is not published.
// After a call whose outcome is unknown, [Host.Redrive] of the letter publishes nothing
// again, within the duplicate window of the topic's stream.
func (h *Host) RedriveEdited(ctx context.Context, id string, seq uint64, data []byte) (*DeadLetter, error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	d, err := h.DeadLetter(ctx, id, seq)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	edited := *d
	edited.Data, edited.edited = data, true
	if _, err = h.redrive(ctx, &edited, rec); err != nil {
		return nil, fmt.Errorf("worker %s: %w", id, err)
	}
	return d, nil
}

// redrive publishes a letter of a worker again and removes it.
func (h *Host) redrive(ctx context.Context, d *DeadLetter, rec *Record) (removed bool, err error) {
	if h.reserved(d.Topic) {
		return false, fmt.Errorf("redrive %d: %w: the topic %s: %w", d.Seq, ErrInvalid, d.Topic, errReserved)
	}
	return h.letters.redrive(ctx, d, rec.slot())
}

// Discard removes dead letters of a worker for good. Without seqs it removes all. It returns
// how many it has removed, also with an error; with dryRun it only counts them. A letter that
// another call redrives at the same time may be handled nevertheless. Dead letters outlive
// their worker, and can be discarded after it was deleted.
func (h *Host) Discard(ctx context.Context, id string, dryRun bool, seqs ...uint64) (int, error) {
	var chosen []*DeadLetter
	err := h.heads(ctx, id, seqs, func(d *DeadLetter) { chosen = append(chosen, d) })
	if err != nil {
		return 0, fmt.Errorf("discard: %w", err)
	}
	if dryRun {
		return len(chosen), nil
	}
	n, err := h.letters.removeAll(ctx, chosen)
	if n > 0 {
		h.log.Info("hosted worker: dead letters are discarded", "worker", id, "letters", n)
	}
	if err != nil {
		return n, fmt.Errorf("discard %w", err)
	}
	return n, nil
}

// removeAll removes letters, many at one time. It returns how many this call has removed,
// also with an error: then it begins no other, and waits for those that it has begun, whose
// outcome counts too.
func (l *letters) removeAll(ctx context.Context, chosen []*DeadLetter) (int, error) {
	var n atomic.Int64
	group, unfailed := errgroup.WithContext(ctx)
	group.SetLimit(maxAtOnce)
	for _, d := range chosen {
		group.Go(func() error {
			if unfailed.Err() != nil {
				return nil //nolint:nilerr // Wait returns the first error
			}
			removed, err := l.remove(ctx, d.Seq, d.body)
			if removed {
				n.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	if err == nil {
		err = ctx.Err()
	}
	return int(n.Load()), err
}

// redrive publishes a letter's original again, for slot only, and then removes the letter. It
// reports whether this call has removed it. A second call within the server's duplicate
// window does not publish it again. For an edited letter that is an error.
func (l *letters) redrive(ctx context.Context, d *DeadLetter, slot string) (removed bool, err error) {
	if !d.edited {
		l.complete(ctx, d)
	}
	if d.gone != nil {
		switch _, err := l.stream.GetMsg(ctx, d.Seq); {
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return false, fmt.Errorf("redrive %d: %w", d.Seq, d.gone)
		case d.edited:
			return false, fmt.Errorf("redrive %d: %w", d.Seq, ErrNoLetter)
		}
		return false, nil // another call has removed it and its body since it was read
	}
	id := jetstream.WithMsgID("redrive:" + l.dead + strconv.FormatUint(d.Seq, 10))
	ack, err := l.js.PublishMsg(ctx, d.original(slot), id)
	if unfit(err) {
		err = fmt.Errorf("%w: with the header that says for whom it is, it is no message that the server takes: "+
			"raise the server's max_payload by 1 KiB, or edit it: %w", ErrInvalid, err)
	}
	if err != nil {
		return false, fmt.Errorf("redrive %d to %s: %w", d.Seq, d.Topic, err)
	}
	// The call that has published it may have ended before it removed the letter.
	if removed, err = l.remove(ctx, d.Seq, d.body); err != nil {
		return removed, fmt.Errorf("redrive %w", err)
	}
	if d.edited && ack.Duplicate {
		return false, fmt.Errorf("redrive %d: %w", d.Seq, ErrRedriven)
	}
	return removed, nil
}

// original returns the message that a letter is for, which only slot handles.
func (d *DeadLetter) original(slot string) *nats.Msg {
	m := nats.NewMsg(d.Topic)
	m.Data = d.Data
	for name, values := range d.Header {
		if !isServerHeader(name) {
			m.Header[name] = values
		}
	}
	if d.Output == "" { // an output is for every reader of its topic
		m.Header.Set(HeaderFor, slot)
	}
	return m
}
