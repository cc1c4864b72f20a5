package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Line is a line of a worker's log: what its code printed, or an error of a message or
// of a load.
type Line struct {
	Seq    uint64 // the later of two lines of a worker has the greater one
	At     time.Time
	Text   string
	Host   string // that ran the code
	Digest string // of the code
	Error  bool   // it is an error, and not what the code printed
}

// Bounds of the logs.
const (
	MaxLines  = 1000               // of a worker that are kept; the newest
	maxLine   = 4096               // bytes of a line
	linesFor  = 7 * 24 * time.Hour // how long a line is kept
	linesRate = 100                // lines a second of a worker on one host, in the long run
)

// lines keeps the logs of all workers in one stream, which has the newest MaxLines
// messages of each subject host.lines.WORKER. A line is sent without waiting for the
// server: one that is printed while the server is away may be lost.
type lines struct {
	nc     *nats.Conn
	stream jetstream.Stream
	prefix string // "host.lines."
	host   string

	mu      sync.Mutex // guards everything below
	budgets map[string]*budget
}

// budget says how many lines a worker may send now.
type budget struct {
	*rate.Limiter
	dropped int
}

// storedLine is a line as the stream has it.
type storedLine struct {
	Host   string `json:"host"`
	Digest string `json:"digest"`
	Error  bool   `json:"error,omitempty"`
	Text   string `json:"text"`
}

// take returns whether a line may be sent, and how many were dropped before it.
func (l *lines) take(worker string, now time.Time) (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.budgets[worker]
	if b == nil {
		if l.budgets == nil || len(l.budgets) >= 10_000 {
			l.budgets = make(map[string]*budget) // a new budget is a full one
		}
		b = &budget{Limiter: rate.NewLimiter(linesRate, MaxLines)}
		l.budgets[worker] = b
	}
	if !b.AllowN(now, 1) {
		b.dropped++
		return false, 0
	}
	dropped, b.dropped = b.dropped, 0
	return true, dropped
}

// add sends a line.
func (l *lines) add(rec *Record, isError bool, line string) {
	ok, dropped := l.take(rec.ID, time.Now())
	if dropped > 0 {
		l.send(rec, true, fmt.Sprintf("%d lines before this one were dropped: more than %d a second", dropped, linesRate))
	}
	if ok {
		l.send(rec, isError, line)
	}
}

func (l *lines) send(rec *Record, isError bool, line string) {
	data, err := json.Marshal(storedLine{l.host, rec.Digest, isError, text.Clip(line, maxLine)})
	if err == nil {
		_ = l.nc.Publish(l.prefix+rec.ID, data) // a log is worth no retry
	}
}

// printer returns what takes the lines that a worker's code prints.
func (h *Host) printer(rec *Record) func(string) {
	return func(line string) {
		h.log.Info("hosted worker prints", "worker", rec.ID, "line", line)
		h.lines.add(rec, false, line)
	}
}

func lineOf(seq uint64, at time.Time, data []byte) (Line, error) {
	var s storedLine
	err := json.Unmarshal(data, &s)
	return Line{Seq: seq, At: at, Text: s.Text, Host: s.Host, Digest: s.Digest, Error: s.Error}, err
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
	if _, err := h.Get(ctx, id); err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	var all []Line
	take := func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		if before != 0 && meta.Sequence.Stream >= before {
			return false, nil
		}
		line, err := lineOf(meta.Sequence.Stream, meta.Timestamp, m.Data())
		all = append(all, line)
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
// the error of each, or ctx's.
func (h *Host) FollowLogs(ctx context.Context, id string, after uint64, each func(Line) error) error {
	if _, err := h.Get(ctx, id); err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for idle := 1; ; idle++ {
		m, err := h.lines.stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(h.lines.prefix+id))
		switch {
		case err == nil:
			after, idle = m.Sequence, 0
			line, err := lineOf(m.Sequence, m.Time, m.Data)
			if err == nil {
				err = each(line)
			}
			if err != nil {
				return err
			}
			continue
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return fmt.Errorf("worker %s: read its log: %w", id, err)
		case idle%40 == 0:
			if _, err := h.Get(ctx, id); err != nil {
				return fmt.Errorf("logs: %w", err)
			}
		}
		wait.Reset(pollLines)
		select {
		case <-wait.C:
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
