package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
)

// slotLog is the log of one slot: the messages of the subject $host.log.SLOT, in a stream
// that keeps them all. A host that takes the slot writes a claim, and then commits. These
// entries are a chain, so the server refuses the commit of a host that was replaced, a commit
// out of order, and a commit that it has already. The commits have all effects of messages,
// and nothing else.
//
// An entry that does not fit one message is an atomic batch of several.
type slotLog struct{ chain }

func (h *Host) slotLog(slot string, fence uint64) *slotLog {
	return &slotLog{chain{
		nc:      h.nc,
		stream:  h.logs,
		subject: h.subject("log") + slot,
		fence:   fence,
		nonce:   uid() + "-",
		blocked: func(err error) { h.writeBlocked(slot, err) },
	}}
}

// writeBlocked says that a slot cannot write what its messages have caused, and with nil that it can
// again.
func (h *Host) writeBlocked(slot string, err error) {
	if err == nil {
		h.log.Info("hosted worker: it goes on, because its effects can be written again", "slot", slot)
		return
	}
	h.log.Error("hosted worker: it waits, because its effects cannot be written", "slot", slot, "error", natserr.Plain(err))
}

// headerParts is on each message of an entry: how many messages the entry has.
const headerParts = "Lifecycle-Parts"

// headerRoom is what the headers of a message of a host may take, in bytes.
const headerRoom = 4 << 10

// entry is a claim or a commit. Values and Outputs are what it adds; the other fields hold
// all that is known, so that the newest commit replaces them.
type entry struct {
	Fence uint64 `json:"fence"`
	Host  string `json:"host,omitempty"` // of a claim
	Known *known `json:"known,omitempty"`

	Values  []stateWrite `json:"values,omitempty"`
	Outputs []*output    `json:"outputs,omitempty"` // numbered from Known.Next on

	upTo        uint64    // number up to which outputs must be sent before it may be removed
	first, last uint64    // sequences of its messages, once it is stored
	at          time.Time // when it was stored, by the server's clock
}

// known is what a slot knows about its messages.
type known struct {
	Source string         `json:"source"` // the stream with the messages, and when it was made
	Done   lanes.Progress `json:"done"`   // messages that were answered
	// Tries are of messages that were not answered, by sequence.
	Tries map[uint64]tries `json:"tries,omitempty"`
	Next  uint64           `json:"next"` // number of the first output of this entry
	Sent  lanes.Progress   `json:"sent"` // outputs that were published, or stored as letters
}

// tries is what is known of a message that was not answered: its deliveries so far, and what was
// decided.
type tries struct {
	Begun  int `json:"begun"`  // deliveries for which a handler was called, or may have been
	Failed int `json:"failed"` // deliveries that are known to have failed
	// CanaryFailed says that a canary failed the message, which does not count.
	CanaryFailed bool `json:"canaryFailed,omitempty"`
	// Letter is the decision to make it a dead letter.
	Letter *deadLetterDecision `json:"letter,omitempty"`
}

// deadLetterDecision is the decision that a message becomes a dead letter. It is written
// before the letter, so that no later attempt has effects.
type deadLetterDecision struct {
	Worker     string `json:"worker"`
	UID        string `json:"uid,omitempty"`
	Tenant     string `json:"tenant,omitempty"`
	Generation int    `json:"generation,omitempty"`
	Digest     string `json:"digest"`
	Attempts   int    `json:"attempts"`
	Reason     string `json:"reason"`
}

// version returns the version of the worker that gave up the message.
func (d *deadLetterDecision) version() codeVersion {
	return codeVersion{workerUID{d.Worker, d.UID}, d.Generation}
}

// output is a message to publish.
type output struct {
	Key    string              `json:"key"` // outputs of one key are published in order
	Worker string              `json:"worker"`
	Tenant string              `json:"tenant,omitempty"`
	Digest string              `json:"digest"`
	Cause  string              `json:"cause"` // id of the message that was handled
	Topic  string              `json:"topic"`
	Header map[string][]string `json:"header,omitempty"`
	Data   []byte              `json:"data,omitempty"`

	number uint64
	id     string
	size   int64     // bytes that it counts for in the budget
	since  time.Time // when it was committed, by the server's clock

	maybeSent bool      // an earlier holder, or an attempt without an answer, may have published it
	refused   time.Time // when the server first refused it
	attempts  int       // how often the server refused it
}

// open claims the log with the fencing token that it has, or with the next one after that of the log when
// this is newer: the stream of the tokens was made anew or restored from an older backup, or another host
// was faster. It returns the entries before the claim.
func (l *slotLog) open(ctx context.Context, host string) ([]*entry, error) {
	for looks := 1; ; looks++ {
		m, err := l.newest(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		var before, fence uint64
		if m != nil {
			before = m.Sequence
			_, _ = fmt.Sscanf(m.Header.Get(headerLink), "%d-", &fence) // a message of no host has none
		}
		l.fence, l.last = max(l.fence, fence+1), before
		err = l.append(ctx, &entry{Fence: l.fence, Host: host})
		if err == nil {
			return l.read(ctx, before)
		}
		if !errors.Is(err, ErrStale) || looks == 10 {
			return nil, err
		}
	}
}

// read returns the entries up to sequence last.
func (l *slotLog) read(ctx context.Context, last uint64) ([]*entry, error) {
	var all []*entry
	var parts []byte
	have := 0
	e := new(entry)
	for from := uint64(1); from <= last; {
		m, err := l.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(l.subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		if m.Sequence > last {
			break
		}
		from = m.Sequence + 1
		if m.Header.Get(headerLink) == "" {
			continue // no host has written it
		}
		if have == 0 {
			e.first = m.Sequence
		}
		parts = append(parts, m.Data...)
		have++
		if want, _ := strconv.Atoi(m.Header.Get(headerParts)); have < want {
			continue
		}
		if err := json.Unmarshal(parts, e); err != nil {
			return nil, fmt.Errorf("the log's entry %d: %w", m.Sequence, err)
		}
		e.last, e.at = m.Sequence, m.Time
		all = append(all, e)
		e, parts, have = new(entry), nil, 0
	}
	return all, nil
}

// append writes an entry behind the newest one.
func (l *slotLog) append(ctx context.Context, e *entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	size := max(int(l.nc.MaxPayload())-headerRoom, 1<<10)
	parts := max(1, (len(data)+size-1)/size)
	msgs := make([]*nats.Msg, parts)
	for i := range msgs {
		msgs[i] = nats.NewMsg(l.subject)
		msgs[i].Data = data[min(i*size, len(data)):min((i+1)*size, len(data))]
		msgs[i].Header.Set(headerParts, strconv.Itoa(parts))
	}
	if err := l.chain.append(ctx, msgs...); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	e.first, e.last = l.last-uint64(parts)+1, l.last
	return nil
}

// unsent returns the outputs of all entries that are not known to be published, and what the
// newest entry knows.
func (l *slotLog) unsent(entries []*entry) ([]*output, known) {
	var k known
	var all []*output
	for _, e := range entries {
		if e.Known != nil {
			k = *e.Known
		}
		for i, o := range e.Outputs {
			o.number, o.since, o.maybeSent = k.Next+uint64(i), e.at, true
			o.id = l.outputID(e.Fence, o.number)
			all = append(all, o)
		}
		k.Next += uint64(len(e.Outputs))
		if e.upTo = 0; len(e.Outputs) > 0 {
			e.upTo = k.Next
		}
	}
	return slices.DeleteFunc(all, func(o *output) bool { return k.Sent.Has(o.number + 1) }), k
}

// outputID names an output by the attempt that was committed: the fencing token and the
// number in the log. No other attempt has the same.
func (l *slotLog) outputID(fence, number uint64) string {
	return l.subject + ":" + strconv.FormatUint(fence, 10) + ":" + strconv.FormatUint(number, 10)
}

// trim removes the entries before sequence keep, which are old. A few entries are deleted one
// by one, because a purge looks at every message of the stream between them, and all slots
// share the stream. An entry of several messages is purged, so that no part of it stays.
func (l *slotLog) trim(ctx context.Context, keep uint64, old []*entry) error {
	const few = 4
	hasParts := func(e *entry) bool { return e.first != e.last }
	deleted := len(old) <= few && !slices.ContainsFunc(old, hasParts)
	for _, e := range old {
		deleted = deleted && l.stream.DeleteMsg(ctx, e.first) == nil
	}
	if deleted {
		return nil
	}
	return l.stream.Purge(ctx, jetstream.WithPurgeSubject(l.subject), jetstream.WithPurgeSequence(keep))
}
