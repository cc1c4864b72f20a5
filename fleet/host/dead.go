package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers that a dead letter has beside those of its original. A header of
// the original that begins with "Nats-" would mean something to the server: it
// keeps it as HeaderOriginal and the name.
const (
	HeaderReason   = "Lifecycle-Reason"
	HeaderWorker   = "Lifecycle-Worker"
	HeaderTopic    = "Lifecycle-Topic"
	HeaderMessage  = "Lifecycle-Message" // the id of the original: stream and sequence
	HeaderAttempts = "Lifecycle-Attempts"
	HeaderDigest   = "Lifecycle-Digest" // of the code that gave it up
	HeaderOriginal = "Lifecycle-Original-"

	// HeaderFor is on a message that was redriven: only the worker or group of
	// that name handles it.
	HeaderFor = "Lifecycle-For"
)

// DeadLetter is a message that a worker gave up, whole, with the reason.
type DeadLetter struct {
	Seq      uint64 // names it to [Host.Redrive]
	Worker   string
	Reason   string
	Topic    string
	Message  string // the original's id
	Attempts int
	Digest   string
	At       time.Time
	Header   map[string][]string // the original's
	Data     []byte
}

// letters is the stream of dead letters, and of those that are held for a member
// of a group that is stopped.
type letters struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	dead   string // "host.dead."
	held   string // "host.held."
}

// put stores a message under subject and returns once the server has it. It does
// so once for each key, however often it is called within the server's duplicate
// window.
func (l *letters) put(ctx context.Context, subject, key string, d *DeadLetter) error {
	m := nats.NewMsg(subject)
	m.Data = d.Data
	for name, values := range d.Header {
		if strings.HasPrefix(strings.ToLower(name), "nats-") {
			name = HeaderOriginal + name
		}
		m.Header[name] = values
	}
	m.Header.Set(HeaderReason, strings.Map(printable, clip(d.Reason, 2000)))
	m.Header.Set(HeaderWorker, d.Worker)
	m.Header.Set(HeaderTopic, d.Topic)
	m.Header.Set(HeaderMessage, d.Message)
	m.Header.Set(HeaderAttempts, strconv.Itoa(d.Attempts))
	m.Header.Set(HeaderDigest, d.Digest)
	_, err := l.js.PublishMsg(ctx, m, jetstream.WithMsgID(subject+":"+key))
	if errors.Is(err, nats.ErrMaxPayload) {
		// The original fits and the original with its reason does not: it stays
		// where it is, and the letter says where that is.
		m.Data = nil
		m.Header.Set(HeaderReason, m.Header.Get(HeaderReason)+" "+tooLarge)
		_, err = l.js.PublishMsg(ctx, m, jetstream.WithMsgID(subject+":"+key))
	}
	if err != nil {
		return fmt.Errorf("store the dead letter: %w", err)
	}
	return nil
}

// printable keeps a header on one line.
func printable(r rune) rune {
	if r == '\r' || r == '\n' {
		return ' '
	}
	return r
}

func clip(text string, n int) string {
	if len(text) > n {
		return strings.ToValidUTF8(text[:n], "") + "…"
	}
	return text
}

// each calls fn with the letters on subject from sequence from on, until it
// returns false.
func (l *letters) each(ctx context.Context, subject string, from uint64, fn func(*DeadLetter) (bool, error)) error {
	for {
		raw, err := l.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		if more, err := fn(letter(raw)); err != nil || !more {
			return err
		}
		from = raw.Sequence + 1
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

func letter(raw *jetstream.RawStreamMsg) *DeadLetter {
	d := &DeadLetter{Seq: raw.Sequence, At: raw.Time, Data: raw.Data, Header: make(map[string][]string)}
	for name, values := range raw.Header {
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

// redrive publishes a letter's original for slot again and then removes the
// letter. To do so twice publishes once, within the server's duplicate window.
func (l *letters) redrive(ctx context.Context, d *DeadLetter, slot string) error {
	m := nats.NewMsg(d.Topic)
	m.Data = d.Data
	for name, values := range d.Header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			m.Header[name] = values
		}
	}
	if len(d.Data) == 0 {
		if err := l.original(ctx, d, m); err != nil {
			return err
		}
	}
	m.Header.Set(HeaderFor, slot)
	if _, err := l.js.PublishMsg(ctx, m, jetstream.WithMsgID("redrive:"+l.dead+strconv.FormatUint(d.Seq, 10))); err != nil {
		return fmt.Errorf("redrive %d to %s: %w", d.Seq, d.Topic, err)
	}
	if err := l.stream.DeleteMsg(ctx, d.Seq); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("redrive %d: remove the letter: %w", d.Seq, err)
	}
	return nil
}

// original reads the data of a letter that was too large to be copied. A message
// that had none stays as it is.
func (l *letters) original(ctx context.Context, d *DeadLetter, m *nats.Msg) error {
	if !strings.HasSuffix(d.Reason, tooLarge) {
		return nil
	}
	name, text, _ := strings.Cut(d.Message, ":")
	seq, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("redrive %d: %q does not name its original: %w", d.Seq, d.Message, err)
	}
	stream, err := l.js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("redrive %d: %w", d.Seq, err)
	}
	raw, err := stream.GetMsg(ctx, seq)
	if err != nil {
		return fmt.Errorf("redrive %d: the original %s: %w", d.Seq, d.Message, err)
	}
	m.Data = raw.Data
	return nil
}

// tooLarge ends the reason of a letter without its original's data.
const tooLarge = "(too large to keep a copy of)"
