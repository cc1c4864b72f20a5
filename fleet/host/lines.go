package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/trace"
)

// Line is a line of a worker's log: what its code printed, or an error of a message or
// of a load.
type Line struct {
	Seq    uint64    `json:"-"` // the later of two lines of a worker has the greater one
	At     time.Time `json:"-"`
	Text   string    `json:"text"`
	Host   string    `json:"host"`            // that ran the code
	Digest string    `json:"digest"`          // of the code
	Error  bool      `json:"error,omitempty"` // it is an error, and not what the code printed
}

// Bounds of the logs.
const (
	MaxLines  = 1000               // of a worker that are kept; the newest
	maxLine   = 4096               // bytes of a line
	linesFor  = 7 * 24 * time.Hour // how long a line is kept
	linesRate = 100                // lines a second of a worker on one host, in the long run, unless a grant says otherwise
)

// lines keeps the logs of all workers in one stream, which has the newest MaxLines
// messages of each subject $host.lines.WORKER. A line is sent without waiting for the
// server: one that is printed while the server is away may be lost.
type lines struct {
	nc     *nats.Conn
	stream jetstream.Stream
	prefix string // "$host.lines."
	host   string

	rateOf func(*Record) int // lines a second of a worker in the long run

	mu    sync.Mutex // guards everything below
	rates map[string]*lineRate
}

// lineRate says how many lines a worker may send now.
type lineRate struct {
	*rate.Limiter
	dropped int
}

// storedLine is a line as the stream has it.
type storedLine struct {
	UID string `json:"uid,omitempty"` // of the worker
	Line
}

// take returns whether a line may be sent and logged, and how many were dropped before it.
func (l *lines) take(rec *Record, now time.Time) (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.rates[rec.ID]
	if b == nil {
		if l.rates == nil || len(l.rates) >= 10_000 {
			l.rates = make(map[string]*lineRate) // a new one has all its lines
		}
		perSecond := l.rateOf(rec)
		b = &lineRate{Limiter: rate.NewLimiter(rate.Limit(perSecond), MaxLines/linesRate*perSecond)}
		l.rates[rec.ID] = b
	}
	if !b.AllowN(now, 1) {
		b.dropped++
		return false, 0
	}
	dropped, b.dropped = b.dropped, 0
	return true, dropped
}

func (l *lines) add(rec *Record, isError bool, line string) {
	if l.admit(rec) {
		l.send(rec, isError, line)
	}
}

// admit reports whether a worker may send a line, and notes in its log what was dropped.
func (l *lines) admit(rec *Record) bool {
	ok, dropped := l.take(rec, time.Now())
	if dropped > 0 {
		l.send(rec, true, fmt.Sprintf("%d lines before this one were dropped: more than %d a second", dropped, l.rateOf(rec)))
	}
	return ok
}

func (l *lines) send(rec *Record, isError bool, line string) {
	stored := Line{Text: text.Clip(line, maxLine), Host: l.host, Digest: rec.Digest, Error: isError}
	data, err := json.Marshal(storedLine{rec.UID, stored})
	if err == nil {
		_ = l.nc.Publish(l.prefix+rec.ID, data) // a log is worth no retry
	}
}

// printer takes the lines that the code of one program prints. The host's own log has the same
// lines as the worker's: the rate bounds both.
type printer struct {
	host  *Host
	rec   *Record
	trace atomic.Pointer[trace.Context] // of the message that the program handles; nil for none
}

func (h *Host) printer(rec *Record) *printer { return &printer{host: h, rec: rec} }

func (p *printer) print(line string) {
	if !p.host.lines.admit(p.rec) {
		return
	}
	attrs := []slog.Attr{slog.String("worker", p.rec.ID), slog.String("line", line)}
	if t := p.trace.Load(); t != nil {
		attrs = append(attrs, t.Attrs()...)
	}
	p.host.log.LogAttrs(context.Background(), slog.LevelInfo, "hosted worker prints", attrs...)
	p.host.lines.send(p.rec, false, line)
}

// lineOf reads a stored line. It is of another worker when one was made anew under the same ID,
// perhaps for another tenant.
func lineOf(rec *Record, seq uint64, at time.Time, data []byte) (l Line, isOfOther bool, err error) {
	var s storedLine
	err = json.Unmarshal(data, &s)
	s.Seq, s.At = seq, at
	return s.Line, s.UID != "" && s.UID != rec.UID, err
}

// drop removes the log of a worker.
func (l *lines) drop(ctx context.Context, rec *Record) error {
	return l.stream.Purge(ctx, jetstream.WithPurgeSubject(l.prefix+rec.ID))
}

// Logs returns up to limit of the newest lines of a worker's log before sequence
// before, the oldest first; 0 is the end. Each host returns the lines of all hosts. A worker
// has at most [MaxLines] lines of at most 4 KiB, for a week. A worker that prints more than
// 1000 lines at once and 100 a second after that loses lines; the log says how many. The
// lines have no secrets.
func (h *Host) Logs(ctx context.Context, id string, before uint64, limit int) ([]Line, error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	var all []Line
	take := func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		if before != 0 && meta.Sequence.Stream >= before {
			return false, nil
		}
		line, isOfOther, err := lineOf(rec, meta.Sequence.Stream, meta.Timestamp, m.Data())
		if !isOfOther {
			all = append(all, line)
		}
		return true, err
	}
	if err := forward(ctx, h.lines.stream, h.lines.prefix+id, 1, 2*MaxLines, take); err != nil {
		return nil, fmt.Errorf("worker %s: read its log: %w", id, err)
	}
	limit = min(max(limit, 0), MaxLines) // lines that came while it read replaced others
	return all[max(0, len(all)-limit):], nil
}

// pollLines is how often FollowLogs looks for lines while there is none.
const pollLines = 250 * time.Millisecond

// FollowLogs calls each for every line of a worker's log behind sequence after, in
// order, until ctx ends, each returns an error or the worker is deleted. It returns
// the error of each, or ctx's. A worker that is made anew under the same ID is another one.
func (h *Host) FollowLogs(ctx context.Context, id string, after uint64, each func(Line) error) error {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	for idle := 1; ; idle++ {
		m, err := h.lines.stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(h.lines.prefix+id))
		switch {
		case err == nil:
			after, idle = m.Sequence, 0
			line, isOfOther, err := lineOf(rec, m.Sequence, m.Time, m.Data)
			switch {
			case isOfOther:
				return fmt.Errorf("logs: worker %s was deleted, and another made: %w", id, ErrNotFound)
			case err == nil:
				err = each(line)
			}
			if err != nil {
				return err
			}
			continue
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return fmt.Errorf("worker %s: read its log: %w", id, err)
		case idle%40 == 0:
			now, err := h.Get(ctx, id)
			switch {
			case err != nil:
				return fmt.Errorf("logs: %w", err)
			case now.UID != rec.UID:
				return fmt.Errorf("logs: worker %s was deleted, and another made: %w", id, ErrNotFound)
			}
		}
		select {
		case <-time.After(pollLines):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// eachMessage handles a stored message. It returns false to end.
type eachMessage = func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error)

// forward calls each for up to limit messages of a subject, which may have wildcards, from a
// sequence on.
func forward(ctx context.Context, stream jetstream.Stream, subject string, from uint64, limit int, each eachMessage) error {
	return replay.Each(ctx, stream, jetstream.ConsumerConfig{FilterSubject: subject, OptStartSeq: from}, limit, each)
}
