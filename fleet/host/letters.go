package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

var (
	// ErrNoLetter is wrapped by errors about a dead letter that the worker does not have,
	// or has no more.
	ErrNoLetter = errors.New("no such dead letter")
	// ErrRedriven is wrapped by the error of [Host.RedriveEdited] when another call has
	// redriven the letter first.
	ErrRedriven = errors.New("another call has redriven the dead letter")
)

// DeadLetter returns one dead letter of a worker with its whole message. The error for
// one that is not there wraps [ErrNoLetter]. Dead letters outlive their worker.
func (h *Host) DeadLetter(ctx context.Context, id string, seq uint64) (*DeadLetter, error) {
	theirs, err := h.lettersOf(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
	}
	d, err := h.letters.one(ctx, id, seq)
	if err == nil && !theirs(d) {
		err = ErrNoLetter
	}
	if err != nil {
		return nil, fmt.Errorf("worker %s: dead letter %d: %w", id, seq, err)
	}
	h.letters.whole(ctx, d)
	return d, nil
}

// lettersOf returns a function that reports whether a letter under a worker's id is for
// those who have the worker now: an earlier worker of the id may have been of another
// tenant. When there is no worker, every letter is.
func (h *Host) lettersOf(ctx context.Context, id string) (func(*DeadLetter) bool, error) {
	rec, err := h.get(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return func(*DeadLetter) bool { return true }, nil
	}
	if err != nil {
		return nil, err
	}
	return func(d *DeadLetter) bool { return d.forTenant(rec.Tenant) }, nil
}

// one returns a letter of a worker, without an original that is stored beside it.
func (l *letters) one(ctx context.Context, worker string, seq uint64) (*DeadLetter, error) {
	if seq == 0 {
		return nil, ErrNoLetter
	}
	raw, err := l.stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && raw.Subject != l.dead+worker:
		return nil, ErrNoLetter
	case err != nil:
		return nil, fmt.Errorf("read it: %w", err)
	}
	return letter(raw.Sequence, raw.Time, raw.Header, raw.Data), nil
}

// heads calls each with the letters of a worker from a sequence on, the oldest first, until
// each returns false or an error. It reads at most limit of them, in one pass and without
// their data.
func (h *Host) heads(ctx context.Context, worker string, from uint64, limit int, each func(*DeadLetter) (bool, error)) error {
	theirs, err := h.lettersOf(ctx, worker)
	if err != nil {
		return err
	}
	by := jetstream.ConsumerConfig{FilterSubject: h.letters.dead + worker, HeadersOnly: true, OptStartSeq: from}
	return replay.Each(ctx, h.letters.stream, by, limit, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		d := letter(meta.Sequence.Stream, meta.Timestamp, m.Headers(), nil)
		if !theirs(d) {
			return true, nil
		}
		return each(d)
	})
}

// LetterDigests returns how many dead letters of a worker come from which code, by its
// digest. It reads the headers of all of them.
func (h *Host) LetterDigests(ctx context.Context, id string) (map[string]int, error) {
	if err := errors.Join(checkID("worker id", id), h.ensure(ctx)); err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	counts := map[string]int{}
	err := h.heads(ctx, id, 1, 10*h.cfg.MaxDeadLetters, func(d *DeadLetter) (bool, error) {
		counts[d.Digest]++
		return true, nil
	})
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

// LetterGroups returns the groups of a worker's dead letters, the largest first. It reads
// the headers of all of them.
func (h *Host) LetterGroups(ctx context.Context, id string) ([]LetterGroup, error) {
	if err := errors.Join(checkID("worker id", id), h.ensure(ctx)); err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	byName := map[string]*LetterGroup{}
	err := h.heads(ctx, id, 1, 10*h.cfg.MaxDeadLetters, func(d *DeadLetter) (bool, error) {
		name := GroupOf(d.Reason)
		g := byName[name]
		if g == nil {
			g = &LetterGroup{Name: name, First: d.At}
			byName[name] = g
		}
		g.Reason, g.Last, g.Seqs = d.Reason, d.At, append(g.Seqs, d.Seq)
		return true, nil
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
var varies = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[0-9a-fA-F]*[0-9][0-9a-fA-F]{11,}\b|[0-9]+(\.[0-9]+)*`)

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

// Redrive publishes dead letters of a worker to their topics again and removes them.
// Only the worker or its group handles the messages. Without seqs it redrives all.
// It returns the number of messages, also with an error. A repeated call after an interruption redrives
// no message twice, within the duplicate window of the topic's stream. A letter that
// another call removes at the same time is not counted.
func (h *Host) Redrive(ctx context.Context, id string, seqs ...uint64) (int, error) {
	rec, err := h.get(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("redrive: %w", err)
	}
	n := 0
	err = h.chosen(ctx, id, seqs, func(d *DeadLetter) error {
		if h.reserved(d.Topic) {
			return fmt.Errorf("%d: %w: the topic %s: %w", d.Seq, ErrInvalid, d.Topic, errReserved)
		}
		removed, err := h.letters.redrive(ctx, d, rec.slot(), rec.Key)
		if removed {
			n++
		}
		return err
	})
	if err != nil {
		return n, fmt.Errorf("redrive: %w", err)
	}
	return n, nil
}

// RedriveEdited publishes a dead letter of a worker with other data and removes it. The
// message keeps its topic, its key and its other headers, and only the worker or its group
// handles it. It returns the letter as it was. Of two calls for one letter one succeeds;
// the error of the other wraps [ErrRedriven] or [ErrNoLetter], and its data is not
// published. After a call whose outcome is unknown, [Host.Redrive] of the letter publishes
// nothing again, within the duplicate window of the topic's stream.
func (h *Host) RedriveEdited(ctx context.Context, id string, seq uint64, data []byte) (*DeadLetter, error) {
	rec, err := h.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	d, err := h.DeadLetter(ctx, id, seq)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	if h.reserved(d.Topic) {
		return nil, fmt.Errorf("worker %s: redrive %d: %w: the topic %s: %w", id, seq, ErrInvalid, d.Topic, errReserved)
	}
	edited := *d
	edited.Data, edited.edited = data, true
	if _, err = h.letters.redrive(ctx, &edited, rec.slot(), rec.Key); err != nil {
		return nil, fmt.Errorf("worker %s: %w", id, err)
	}
	return d, nil
}

// Discard removes dead letters of a worker for good. Without seqs it removes all. It
// returns how many it has removed, also with an error; with dryRun it only counts them. A
// letter that another call redrives at the same time may be handled nevertheless. Dead
// letters outlive their worker, and can be discarded after it was deleted.
func (h *Host) Discard(ctx context.Context, id string, dryRun bool, seqs ...uint64) (int, error) {
	if err := errors.Join(checkID("worker id", id), h.ensure(ctx)); err != nil {
		return 0, fmt.Errorf("discard: %w", err)
	}
	var chosen []*DeadLetter
	err := h.chosenHeads(ctx, id, seqs, func(d *DeadLetter) { chosen = append(chosen, &DeadLetter{Seq: d.Seq, body: d.body}) })
	if err != nil {
		return 0, fmt.Errorf("discard: %w", err)
	}
	if dryRun {
		return len(chosen), nil
	}
	n, err := h.letters.discard(ctx, chosen)
	if err != nil {
		return n, fmt.Errorf("discard: %w", err)
	}
	if n > 0 {
		h.log.Info("hosted worker: dead letters are discarded", "worker", id, "letters", n)
	}
	return n, nil
}

// chosenHeads calls do with the letters that chosen would find, without their data. It reads
// the headers in one pass, however many letters there are.
func (h *Host) chosenHeads(ctx context.Context, id string, seqs []uint64, do func(*DeadLetter)) error {
	wanted := make(map[uint64]bool, len(seqs))
	for _, seq := range seqs {
		wanted[seq] = true
	}
	first, last := uint64(1), uint64(0)
	if len(seqs) > 0 {
		first, last = slices.Min(seqs), slices.Max(seqs)
	} else {
		state, err := h.letters.stream.Info(ctx)
		if err != nil {
			return err
		}
		last = state.State.LastSeq
	}
	return h.heads(ctx, id, first, math.MaxInt, func(d *DeadLetter) (bool, error) {
		if d.Seq <= last && (len(seqs) == 0 || wanted[d.Seq]) {
			do(d)
		}
		return d.Seq < last, nil
	})
}

// chosen calls do with the letters of a worker that exist now: those with these
// sequences, or all of them when there are none.
func (h *Host) chosen(ctx context.Context, id string, seqs []uint64, do func(*DeadLetter) error) error {
	theirs, err := h.lettersOf(ctx, id)
	if err != nil {
		return err
	}
	if len(seqs) > 0 {
		seqs = slices.Compact(slices.Sorted(slices.Values(seqs)))
		for _, seq := range seqs {
			d, err := h.letters.one(ctx, id, seq)
			if errors.Is(err, ErrNoLetter) || err == nil && !theirs(d) {
				continue
			}
			if err == nil {
				err = do(d)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	state, err := h.letters.stream.Info(ctx)
	if err != nil {
		return err
	}
	return h.letters.each(ctx, h.letters.dead+id, 1, func(d *DeadLetter) (bool, error) {
		if d.Seq > state.State.LastSeq {
			return false, nil // it is newer than this call: a redriven message failed again
		}
		if !theirs(d) {
			return true, nil
		}
		return true, do(d)
	})
}

// redrive publishes a letter's original again, for slot only, and then removes
// the letter. It reports whether this call has removed it. A second call within the
// server's duplicate window does not publish it again. For an edited letter that is an
// error. key is the header with the key of the slot's worker, if it has one of its own.
func (l *letters) redrive(ctx context.Context, d *DeadLetter, slot, key string) (removed bool, err error) {
	if !d.edited {
		l.whole(ctx, d)
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
	m := nats.NewMsg(d.Topic)
	m.Data = d.Data
	for name, values := range d.Header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			m.Header[name] = values
		}
	}
	if d.Output == "" { // an output is for every reader of its topic
		m.Header.Set(HeaderFor, slot)
	}
	id := jetstream.WithMsgID("redrive:" + l.dead + strconv.FormatUint(d.Seq, 10))
	ack, err := l.js.PublishMsg(ctx, m, id)
	body, fresh := d.body, ""
	if unfit(err) && (body != "" || d.edited) && d.Output == "" {
		// The message does not fit together with HeaderFor, or cannot be published
		// again by this client. Publish a reference to
		// the stored body instead. The runner removes the body once it has answered
		// the message.
		ref := body
		if body = ""; d.edited {
			body, fresh = d.body, strings.ToLower(rand.Text())
			ref = fresh
			if err := l.keep(ctx, ref, d); err != nil {
				return false, fmt.Errorf("redrive %d: store its data: %w", d.Seq, err)
			}
		}
		m.Data, m.Header = nil, nats.Header{HeaderFor: {slot}, HeaderBody: {ref}}
		for _, name := range []string{HeaderKey, key} { // it keeps its place among the messages of its key
			if values := d.Header[name]; name != "" && len(values) > 0 {
				m.Header[name] = values[:1]
			}
		}
		ack, err = l.js.PublishMsg(ctx, m, id)
	}
	if unfit(err) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err) // an output, whose readers know no references
	}
	if err != nil {
		return false, fmt.Errorf("redrive %d to %s: %w", d.Seq, d.Topic, err)
	}
	if d.edited && ack.Duplicate {
		if fresh != "" {
			err = l.drop(ctx, l.body+fresh)
		}
		_, left := l.remove(ctx, d.Seq) // the call that has published it may have ended before that
		return false, errors.Join(fmt.Errorf("redrive %d: %w", d.Seq, ErrRedriven), err, left)
	}
	if removed, err = l.remove(ctx, d.Seq); err != nil {
		return false, fmt.Errorf("redrive %d: remove the letter: %w", d.Seq, err)
	}
	if body != "" {
		if err := l.drop(ctx, l.body+body); err != nil {
			return removed, fmt.Errorf("redrive %d: remove its body: %w", d.Seq, err)
		}
	}
	return removed, nil
}

// remove removes a letter and reports whether it was there.
func (l *letters) remove(ctx context.Context, seq uint64) (bool, error) {
	err := l.stream.DeleteMsg(ctx, seq)
	if err == nil {
		return true, nil
	}
	// The client's error does not say why.
	if _, gone := l.stream.GetMsg(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	return false, err
}
