package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// The headers that a dead letter has beside those of its original. The server would
// act upon a header of the original that begins with "Nats-", so the letter stores it
// under HeaderOriginal and the name.
const (
	HeaderReason   = "Lifecycle-Reason"
	HeaderWorker   = "Lifecycle-Worker"
	HeaderTopic    = "Lifecycle-Topic"
	HeaderMessage  = "Lifecycle-Message" // the id of the original: stream and sequence
	HeaderAttempts = "Lifecycle-Attempts"
	HeaderDigest   = "Lifecycle-Digest" // of the code that could not handle it
	HeaderOriginal = "Lifecycle-Original-"
	// HeaderOutput is on the letter of an output that could not be delivered, with
	// the id under which it would have been published.
	HeaderOutput = "Lifecycle-Output"
	// HeaderUID and HeaderTenant say which worker of this id could not handle it: a later
	// one may be of another tenant. Letters of earlier versions of this package have none.
	HeaderUID    = "Lifecycle-Worker-UID"
	HeaderTenant = "Lifecycle-Tenant"
	// HeaderKey is for publishers: messages with the same key are handled in order.
	// The key of a message without it is its subject.
	HeaderKey = "Lifecycle-Key"

	// HeaderTimer is on the message of a timer, with the name of the timer;
	// HeaderTimerDue has when it was due (RFC 3339), and HeaderTimerWorker the worker.
	// They mean nothing on a message that is published.
	HeaderTimer       = "Lifecycle-Timer"
	HeaderTimerDue    = "Lifecycle-Timer-Due"
	HeaderTimerWorker = "Lifecycle-Timer-Worker"

	// HeaderFor is on a redriven message and names the slot of a worker or group.
	// Only that worker or group handles the message.
	HeaderFor = "Lifecycle-For"
	// HeaderBody is on a letter or a redriven message when the original and the
	// headers above do not fit into one message together. It is the name under
	// which the stream of letters stores the original's own headers and data.
	HeaderBody = "Lifecycle-Body"
)

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

	tenancy tenancy
	body    string // the HeaderBody, when Header and Data are not in the letter
	gone    error  // why Header and Data could not be read
	edited  bool   // Data is not the original's
}

// letters stores dead letters, and messages of a group that are held until a member
// for their topic runs.
type letters struct {
	chunks
	dead string // "host.dead."
	held string // "host.held."
	body string // "host.body."

	hidden hidden
}

// put stores a message under subject and returns once the server has it. Repeated
// calls with one key store it once, within the server's duplicate window.
func (l *letters) put(ctx context.Context, subject, key string, d *DeadLetter) error {
	m := nats.NewMsg(subject)
	m.Data = d.Data
	for name, values := range d.Header {
		if strings.HasPrefix(strings.ToLower(name), "nats-") {
			name = HeaderOriginal + name
		}
		m.Header[name] = values
	}
	own := d.own()
	for _, name := range []string{HeaderUID, HeaderTenant, HeaderOutput, HeaderBody} {
		delete(m.Header, name) // a publisher may have set it
	}
	maps.Copy(m.Header, own)
	_, err := l.js.PublishMsg(ctx, m, jetstream.WithMsgID(subject+":"+key))
	if unfit(err) {
		// The message fits alone, but not together with the letter's headers, or it
		// has a header that only other clients can publish.
		sum := sha256.Sum256([]byte(subject + ":" + key)) // a repeated call gets the same name
		body := hex.EncodeToString(sum[:16])
		if err = l.keep(ctx, body, d); err == nil {
			m.Data, m.Header = nil, own
			m.Header.Set(HeaderBody, body)
			_, err = l.js.PublishMsg(ctx, m, jetstream.WithMsgID(subject+":"+key))
		}
	}
	if err != nil {
		return fmt.Errorf("store the dead letter: %w", err)
	}
	return nil
}

// own returns the headers that a letter has beside those of its original.
func (d *DeadLetter) own() nats.Header {
	own := nats.Header{
		HeaderReason: {text.OneLine(text.Clip(d.Reason, 2000))}, HeaderWorker: {d.Worker}, HeaderTopic: {d.Topic}, HeaderMessage: {d.Message},
		HeaderAttempts: {strconv.Itoa(d.Attempts)}, HeaderDigest: {d.Digest},
	}
	if d.Output != "" {
		own.Set(HeaderOutput, d.Output)
	}
	if d.tenancy.UID != "" {
		own.Set(HeaderUID, d.tenancy.UID)
		own.Set(HeaderTenant, d.tenancy.Tenant)
	}
	return own
}

// unfit reports whether the client or the server refused a message for its size or for the
// name of a header. The server also refuses headers of more than 64 KiB; it takes any name,
// and the client does not.
func unfit(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg) || natserr.Is(err, natserr.HeadersTooLarge, jetstream.JSErrCodeStreamMessageExceedsMaximum)
}

// each calls fn with each letter on subject, beginning at sequence from, until fn
// returns false or an error. A letter whose original is stored beside it comes without
// it; whole reads it.
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

// whole reads the original of a letter when it is stored beside the letter.
func (l *letters) whole(ctx context.Context, d *DeadLetter) {
	if d.body == "" {
		return
	}
	if d.Header, d.Data, d.gone = l.read(ctx, d.body); d.gone != nil {
		d.Reason += "; " + d.gone.Error()
	}
}

// count returns how many letters each worker has.
func (l *letters) count(ctx context.Context) (map[string]int, error) {
	info, err := l.stream.Info(ctx, jetstream.WithSubjectFilter(l.dead+">"))
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	counts := make(map[string]int, len(info.State.Subjects))
	for subject, n := range info.State.Subjects {
		counts[strings.TrimPrefix(subject, l.dead)] = int(n)
	}
	return counts, nil
}

// bound removes the oldest letters of a worker when it has more than limit and a tenth,
// so that limit are left. It returns how many it has removed.
func (l *letters) bound(ctx context.Context, worker string, limit int) (int, error) {
	subject := l.dead + worker
	info, err := l.stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	over := int(info.State.Subjects[subject]) - limit
	if over <= limit/10 {
		return 0, nil
	}
	n := 0
	err = l.each(ctx, subject, 1, func(d *DeadLetter) (bool, error) {
		if n == over {
			return false, nil
		}
		n++
		if d.body == "" {
			return true, nil
		}
		return true, l.drop(ctx, l.body+d.body)
	})
	if err == nil {
		err = l.stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeKeep(uint64(limit)))
	}
	if err != nil {
		return 0, fmt.Errorf("remove the oldest dead letters: %w", err)
	}
	return over, nil
}

// keep stores the headers and the data of a message under body, in the stream of
// letters.
func (l *letters) keep(ctx context.Context, body string, d *DeadLetter) error {
	header, err := json.Marshal(d.Header)
	if err == nil {
		err = l.chunks.put(ctx, l.body+body+".header", header)
	}
	if err == nil {
		err = l.chunks.put(ctx, l.body+body+".data", d.Data)
	}
	return err
}

// read returns the headers and the data that keep has stored under body.
func (l *letters) read(ctx context.Context, body string) (header map[string][]string, data []byte, err error) {
	if err := checkID("body", body); err != nil {
		return nil, nil, err
	}
	text, err := l.chunks.get(ctx, l.body+body+".header")
	if err == nil {
		err = json.Unmarshal(text, &header)
	}
	if err == nil {
		data, err = l.chunks.get(ctx, l.body+body+".data")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("its headers and data: %w", err)
	}
	return header, data, nil
}

// letter reads a stored message: data is nil when only its headers were read.
func letter(seq uint64, at time.Time, header nats.Header, data []byte) *DeadLetter {
	d := &DeadLetter{Seq: seq, At: at, Data: data, Header: make(map[string][]string)}
	for name, values := range header {
		first := ""
		if len(values) > 0 {
			first = values[0]
		}
		switch name {
		case HeaderReason:
			d.Reason = first
		case HeaderWorker:
			d.Worker = first
		case HeaderTopic:
			d.Topic = first
		case HeaderMessage:
			d.Message = first
		case HeaderDigest:
			d.Digest = first
		case HeaderOutput:
			d.Output = first
		case HeaderUID:
			d.tenancy.UID = first
		case HeaderTenant:
			d.tenancy.Tenant = first
		case HeaderBody:
			d.body = first
		case HeaderAttempts:
			d.Attempts, _ = strconv.Atoi(first)
		default:
			if strings.HasPrefix(name, "Nats-") {
				continue // the letter's own
			}
			d.Header[strings.TrimPrefix(name, HeaderOriginal)] = values
		}
	}
	return d
}

// doom decides that a message becomes a dead letter. The decision is committed before
// the letter is written: a host that finds it calls no handler.
func (r *runner) doom(t *task, d *delivery, attempt int, why error) {
	rec := d.member.record
	end := doom{tenancy: rec.tenancy(), Worker: rec.ID, Digest: rec.Digest, Attempts: attempt, Reason: text.Clip(why.Error(), 2000)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), commitWithin)
	defer cancel()
	if err := r.part.commit(ctx, d.caused(&effects{doom: &end})); err != nil {
		r.fail(t, d, 0, fmt.Errorf("%w: %w", ErrDetached, err))
		return
	}
	d.member.counts.Failed.Add(1)
	r.host.lines.add(rec, true, fmt.Sprintf("message %s is a dead letter after attempt %d: %s", d.id, attempt, end.Reason))
	r.letter(t, d, end)
}

// letter stores the dead letter of a message, and terminates the message once the
// server has the letter.
func (r *runner) letter(t *task, d *delivery, end doom) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
	defer cancel()
	err := r.host.letters.put(ctx, r.host.letters.dead+end.Worker, r.slot.name+":"+messageKey(d), &DeadLetter{
		tenancy: end.tenancy, Worker: end.Worker, Reason: end.Reason, Topic: d.topic, Message: d.id, Attempts: end.Attempts, Digest: end.Digest,
		Header: d.header, Data: d.data,
	})
	if err == nil {
		if d.member != nil {
			d.member.counts.DeadLetters.Add(1)
		}
		r.host.letterStored(ctx, end.Worker)
		r.host.log.Warn("hosted worker: dead letter", "worker", end.Worker, "message", d.id, "attempts", end.Attempts, "err", end.Reason)
		err = r.part.commit(ctx, d.caused(&effects{done: true}))
	}
	switch {
	case err == nil:
		r.mu.Lock()
		delete(r.inHand, d.seq)
		r.mu.Unlock()
		r.answer(func() error { return d.msg.Load().TermWithReason(text.Clip(text.OneLine(end.Reason), 200)) }, d)
		if t != nil {
			r.queue.Done(t)
		}
	case t == nil:
		r.giveBack(d, r.host.cfg.RetryBase)
	default:
		r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "err", err)
		r.later(t, d, r.host.cfg.RetryBase)
	}
}
