package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// The headers that a dead letter has beside the headers of its original message. The server
// would act upon a header of the original that begins with "Nats-", so the letter stores it
// under HeaderOriginal and the name.
const (
	HeaderReason   = "Lifecycle-Reason"
	HeaderWorker   = "Lifecycle-Worker"
	HeaderTopic    = "Lifecycle-Topic"
	HeaderMessage  = "Lifecycle-Message" // the id of the original: stream and sequence
	HeaderAttempts = "Lifecycle-Attempts"
	HeaderDigest   = "Lifecycle-Digest" // of the code that could not handle it
	HeaderOriginal = "Lifecycle-Original-"
	// HeaderOutput is on the letter of an output that could not be delivered, with the id under
	// which it would have been published.
	HeaderOutput = "Lifecycle-Output"
	// HeaderKey is for publishers: messages with the same key are handled in order. The key of a
	// message without it is its subject.
	HeaderKey = "Lifecycle-Key"

	// HeaderTimer is on the message of a timer, with the name of the timer; HeaderTimerDue has
	// when it was due (RFC 3339), and HeaderTimerWorker the worker. They mean nothing on a
	// message that is published.
	HeaderTimer       = "Lifecycle-Timer"
	HeaderTimerDue    = "Lifecycle-Timer-Due"
	HeaderTimerWorker = "Lifecycle-Timer-Worker"

	// HeaderFor is on a redriven message and names the slot of a worker or group. Only that
	// worker or group handles the message.
	HeaderFor = "Lifecycle-For"
	// HeaderBody is on a letter when the original and the headers above do not fit into one
	// message together. It is the name under which the stream of letters stores the original's
	// own headers and data.
	HeaderBody = "Lifecycle-Body"
)

// maxReason is the longest reason of a dead letter, in bytes.
const maxReason = 2000

// DeadLetter is the whole message that a worker could not handle, with the reason.
type DeadLetter struct {
	Seq      uint64 // the number to give to [Host.Redrive]
	Worker   string
	Reason   string
	Topic    string
	Message  string // the original's id
	Attempts int
	Digest   string
	Output   string // of an output that could not be delivered: its id; Message caused it
	At       time.Time
	Header   map[string][]string // the original's
	Data     []byte

	body   string // the HeaderBody, when Header and Data are not in the letter
	gone   error  // why Header and Data could not be read
	edited bool   // Data is not the original's
}

// letters stores dead letters, and messages of a group that are held until a member for their
// topic runs:
//
//	$host.dead.t-TENANT.WORKER   a dead letter
//	$host.held.SLOT              a message that is held
//	$host.body.NAME.…            the headers and the data of one that does not fit into one message
//
// The tenant is part of the subject, so that a later worker of the same id and of another
// tenant has letters of its own.
type letters struct {
	chunks
	dead string // "$host.dead."
	held string // "$host.held."
	body string // "$host.body."
}

func (l *letters) subject(tenant, worker string) string {
	return l.dead + "t-" + tenant + "." + worker
}

// lettersOf returns the subject of the letters of a worker, and of all workers that had the id
// when there is none now. Without a worker and without letters the error wraps ErrNotFound.
func (h *Host) lettersOf(ctx context.Context, id string) (string, error) {
	rec, err := h.Get(ctx, id)
	if err == nil {
		return h.letters.subject(rec.Tenant, id), nil
	}
	if !errors.Is(err, ErrNotFound) {
		return "", err
	}
	subject := h.letters.dead + "*." + id
	counts, failed := h.letters.count(ctx, subject)
	switch {
	case failed != nil:
		return "", failed
	case len(counts) == 0:
		return "", err
	}
	return subject, nil
}

// storeLetter stores a dead letter of a worker. It bounds the letters of the worker now and
// then.
func (h *Host) storeLetter(ctx context.Context, tenant, key string, d *DeadLetter) error {
	subject := h.letters.subject(tenant, d.Worker)
	if err := h.letters.put(ctx, subject, key, d); err != nil {
		return err
	}
	h.mu.Lock()
	n := h.lettered[subject]
	h.lettered[subject] = n + 1
	rec := h.known[d.Worker]
	h.mu.Unlock()
	if n%max(1, min(64, h.cfg.MaxDeadLetters/10)) != 0 {
		return nil
	}
	evicted, err := h.letters.bound(ctx, subject, h.cfg.MaxDeadLetters)
	switch {
	case err != nil:
		h.log.Warn("hosted worker", "worker", d.Worker, "error", err)
	case evicted > 0:
		h.log.Warn("hosted worker: it has too many dead letters; the oldest are removed",
			"worker", d.Worker, "removed", evicted, "kept", h.cfg.MaxDeadLetters)
		if rec != nil {
			h.counts(rec).Evicted.Add(uint64(evicted))
		}
	}
	return nil
}

// put stores a message under subject and returns once the server has it. Repeated calls with
// one key store it once, within the server's duplicate window.
func (l *letters) put(ctx context.Context, subject, key string, d *DeadLetter) error {
	m := nats.NewMsg(subject)
	m.Data = d.Data
	for name, values := range d.Header {
		if isServerHeader(name) {
			name = HeaderOriginal + name
		}
		m.Header[name] = values
	}
	own := d.own()
	for _, name := range []string{HeaderOutput, HeaderBody} {
		delete(m.Header, name) // a publisher may have set it
	}
	maps.Copy(m.Header, own)
	id := jetstream.WithMsgID(subject + ":" + key)
	_, err := l.js.PublishMsg(ctx, m, id)
	if unfit(err) {
		// The message fits alone, but not together with the letter's headers, or it has a header
		// that only other clients can publish.
		sum := sha256.Sum256([]byte(subject + ":" + key)) // a repeated call gets the same name
		body := hex.EncodeToString(sum[:16])
		if err = l.putBody(ctx, body, d); err == nil {
			m.Data, m.Header = nil, own
			m.Header.Set(HeaderBody, body)
			_, err = l.js.PublishMsg(ctx, m, id)
		}
	}
	if err != nil {
		return fmt.Errorf("store the dead letter: %w", err)
	}
	return nil
}

// own returns the headers that a letter has beside the headers of its original message.
func (d *DeadLetter) own() nats.Header {
	own := nats.Header{
		HeaderReason:   {text.OneLine(text.Clip(d.Reason, maxReason))},
		HeaderWorker:   {d.Worker},
		HeaderTopic:    {d.Topic},
		HeaderMessage:  {d.Message},
		HeaderAttempts: {strconv.Itoa(d.Attempts)},
		HeaderDigest:   {d.Digest},
	}
	if d.Output != "" {
		own.Set(HeaderOutput, d.Output)
	}
	return own
}

// unfit reports whether the client or the server refused a message for its size or for the
// name of a header. The server also refuses headers of more than 64 KiB; it takes any name,
// and the client does not.
func unfit(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg) ||
		natserr.Is(err, natserr.HeadersTooLarge, jetstream.JSErrCodeStreamMessageExceedsMaximum)
}

// letter reads a stored message: data is nil when only its headers were read.
func letter(seq uint64, at time.Time, header nats.Header, data []byte) *DeadLetter {
	attempts, _ := strconv.Atoi(header.Get(HeaderAttempts))
	d := &DeadLetter{
		Seq:      seq,
		Worker:   header.Get(HeaderWorker),
		Reason:   header.Get(HeaderReason),
		Topic:    header.Get(HeaderTopic),
		Message:  header.Get(HeaderMessage),
		Attempts: attempts,
		Digest:   header.Get(HeaderDigest),
		Output:   header.Get(HeaderOutput),
		At:       at,
		Header:   make(map[string][]string),
		Data:     data,
		body:     header.Get(HeaderBody),
	}
	for name, values := range header {
		switch name {
		case HeaderReason, HeaderWorker, HeaderTopic, HeaderMessage, HeaderDigest, HeaderOutput, HeaderBody, HeaderAttempts:
			continue
		}
		if !strings.HasPrefix(name, "Nats-") { // these are the letter's own
			d.Header[strings.TrimPrefix(name, HeaderOriginal)] = values
		}
	}
	return d
}

// putBody stores the headers and the data of a message under a name.
func (l *letters) putBody(ctx context.Context, name string, d *DeadLetter) error {
	header, err := json.Marshal(d.Header)
	if err == nil {
		err = l.chunks.put(ctx, l.body+name+".header", header)
	}
	if err == nil {
		err = l.chunks.put(ctx, l.body+name+".data", d.Data)
	}
	return err
}

// readBody returns what putBody has stored.
func (l *letters) readBody(ctx context.Context, name string) (header map[string][]string, data []byte, err error) {
	if err := checkID("body", name); err != nil {
		return nil, nil, err
	}
	text, err := l.chunks.get(ctx, l.body+name+".header")
	if err == nil {
		err = json.Unmarshal(text, &header)
	}
	if err == nil {
		data, err = l.chunks.get(ctx, l.body+name+".data")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("its headers and data: %w", err)
	}
	return header, data, nil
}

// one returns a letter, without an original that is stored beside it.
func (l *letters) one(ctx context.Context, subject string, seq uint64) (*DeadLetter, error) {
	if seq == 0 {
		return nil, ErrNoLetter
	}
	raw, err := l.stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && !matches(subject, raw.Subject):
		return nil, ErrNoLetter
	case err != nil:
		return nil, fmt.Errorf("read it: %w", err)
	}
	return letter(raw.Sequence, raw.Time, raw.Header, raw.Data), nil
}

// complete reads the original of a letter when it is stored beside the letter.
func (l *letters) complete(ctx context.Context, d *DeadLetter) {
	if d.body == "" {
		return
	}
	if d.Header, d.Data, d.gone = l.readBody(ctx, d.body); d.gone != nil {
		d.Reason += "; " + d.gone.Error()
	}
}

// each calls fn with each letter on subject, beginning at sequence from, until fn returns
// false or an error. A letter whose original is stored beside it comes without it.
func (l *letters) each(ctx context.Context, subject string, from uint64, fn func(*DeadLetter) (bool, error)) error {
	for {
		raw, err := l.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		if more, err := fn(letter(raw.Sequence, raw.Time, raw.Header, raw.Data)); err != nil || !more {
			return err
		}
		from = raw.Sequence + 1
	}
}

// heads calls fn with the letters on subject, the oldest first, until fn returns false. It
// reads at most limit of them, in one pass and without their data.
func (l *letters) heads(ctx context.Context, subject string, from uint64, limit int, fn func(*DeadLetter) bool) error {
	by := jetstream.ConsumerConfig{FilterSubject: subject, HeadersOnly: true, OptStartSeq: from}
	return replay.Each(ctx, l.stream, by, limit, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		return fn(letter(meta.Sequence.Stream, meta.Timestamp, m.Headers(), nil)), nil
	})
}

// count returns how many letters there are on each subject that the pattern has.
func (l *letters) count(ctx context.Context, pattern string) (map[string]uint64, error) {
	info, err := l.stream.Info(ctx, jetstream.WithSubjectFilter(pattern))
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return info.State.Subjects, nil
}

// bound removes the oldest letters on a subject when it has more than limit and a tenth, so
// that limit are left. It returns how many it has removed.
func (l *letters) bound(ctx context.Context, subject string, limit int) (int, error) {
	counts, err := l.count(ctx, subject)
	over := int(counts[subject]) - limit
	if err != nil || over <= limit/10 {
		return 0, err
	}
	var bodies []string
	err = l.heads(ctx, subject, 1, over, func(d *DeadLetter) bool {
		bodies = append(bodies, d.body)
		return true
	})
	for _, body := range bodies {
		if body != "" && err == nil {
			err = l.drop(ctx, l.body+body)
		}
	}
	if err == nil {
		err = l.stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeKeep(uint64(limit)))
	}
	if err != nil {
		return 0, fmt.Errorf("remove the oldest dead letters: %w", err)
	}
	return over, nil
}

// remove removes a letter and what is stored beside it. It reports whether the letter was
// there.
func (l *letters) remove(ctx context.Context, seq uint64, body string) (bool, error) {
	if err := l.stream.DeleteMsg(ctx, seq); err != nil {
		// The client's error does not say why.
		if _, gone := l.stream.GetMsg(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
			return false, nil
		}
		return false, fmt.Errorf("%d: remove the letter: %w", seq, err)
	}
	if body == "" {
		return true, nil
	}
	if err := l.drop(ctx, l.body+body); err != nil {
		return true, fmt.Errorf("%d: remove its body: %w", seq, err)
	}
	return true, nil
}

// hold stores a message of a group when no member for its topic is loaded, so that the
// message does not hold up the group. publishHeld publishes it again once such a member is
// loaded.
func (h *Host) hold(ctx context.Context, slot string, d *delivery) error {
	return h.letters.put(ctx, h.letters.held+slot, slot+":"+d.name(), &DeadLetter{
		Reason:  "no worker for it is running",
		Topic:   d.topic,
		Message: d.id,
		Header:  d.header,
		Data:    d.data,
	})
}

// dropHeld removes the messages that are held for a group and are on none of the topics.
func (l *letters) dropHeld(ctx context.Context, slot string, topics []string) error {
	err := l.each(ctx, l.held+slot, 1, func(d *DeadLetter) (bool, error) {
		if slices.ContainsFunc(topics, func(topic string) bool { return matches(topic, d.Topic) }) {
			return true, nil
		}
		_, err := l.remove(ctx, d.Seq, d.body)
		return true, err
	})
	if err != nil {
		return fmt.Errorf("remove the messages that are held for it: %w", err)
	}
	return nil
}

// giveUpHeld makes a message that was held a dead letter of the member that it is for.
func (s *slot) giveUpHeld(ctx context.Context, d *DeadLetter, rec *Record, why error) error {
	letter := *d
	letter.Worker, letter.Digest, letter.Reason, letter.body = rec.ID, rec.Digest, why.Error(), ""
	id := s.name + ":held:" + strconv.FormatUint(d.Seq, 10)
	if err := s.host.storeLetter(ctx, rec.Tenant, id, &letter); err != nil {
		return err
	}
	_, err := s.host.letters.remove(ctx, d.Seq, d.body)
	return err
}

// publishHeld publishes again the messages of this group that were held because no member for
// their topic was loaded, and for which members has one now.
func (s *slot) publishHeld(ctx context.Context, members []*member) error {
	if !isGroup(s.name) || len(members) == 0 {
		return nil
	}
	l := s.host.letters
	err := l.each(ctx, l.held+s.name, 1, func(d *DeadLetter) (bool, error) {
		for _, m := range members {
			if matches(m.record.Topic, d.Topic) {
				_, err := l.redrive(ctx, d, s.name)
				if errors.Is(err, ErrInvalid) {
					err = s.giveUpHeld(ctx, d, m.record, err)
				}
				return true, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("group %s: messages that were held: %w", s.name, err)
	}
	return nil
}
