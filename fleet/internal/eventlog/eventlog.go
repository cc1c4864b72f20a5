package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
)

// Config describes the stream.
type Config struct {
	Stream      string
	Setting     string // the user's setting for Stream, for errors
	Subjects    []string
	Description string
	MaxAge      time.Duration // how long a record is kept
	MaxBytes    int64         // how large the stream may become; then the oldest records go
	BytesOf     string        // the user's setting for MaxBytes, for errors
	MaxRecord   int32         // the largest record, in bytes
}

// Log is an open log. Its methods may be called concurrently.
type Log struct {
	js   jetstream.JetStream
	name string
}

// Open opens a log and creates its stream when it is missing. It does not change a
// stream that exists. A stream with other subjects belongs to another log: that is an error.
func Open(ctx context.Context, js jetstream.JetStream, c Config) (*Log, error) {
	stream, err := js.Stream(ctx, c.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name:        c.Stream,
			Subjects:    c.Subjects,
			Description: c.Description,
			MaxAge:      c.MaxAge,
			MaxBytes:    c.MaxBytes,
			MaxMsgSize:  c.MaxRecord,
			Discard:     jetstream.DiscardOld,
			Duplicates:  min(2*time.Minute, c.MaxAge),
			Storage:     jetstream.FileStorage,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			stream, err = js.Stream(ctx, c.Stream)
		}
	}
	if natserr.Is(err, natserr.StorageExceeded) {
		return nil, fmt.Errorf("stream %s reserves %d MiB, and the NATS server has no room for that: give the server more, or set %s lower: %w",
			c.Stream, c.MaxBytes>>20, c.BytesOf, err)
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", c.Stream, err)
	}
	has := stream.CachedInfo().Config.Subjects
	for _, subject := range c.Subjects {
		if !slices.ContainsFunc(has, func(s string) bool { return covers(s, subject) }) {
			return nil, fmt.Errorf("stream %s has the subjects %q and not %s: it is of another fleet; %s must name another stream",
				c.Stream, has, subject, c.Setting)
		}
	}
	return &Log{js, c.Stream}, nil
}

// covers reports whether a subject of a stream has all of another one.
func covers(s, other string) bool {
	before, isOpen := strings.CutSuffix(s, ">")
	return s == other || isOpen && strings.HasPrefix(other, before)
}

// Append stores a record and waits until the stream has it. A second record with the
// same id within two minutes is not stored; "" is no id.
func (l *Log) Append(ctx context.Context, subject, id string, data []byte) error {
	m := &nats.Msg{Subject: subject, Data: data}
	if id != "" {
		m.Header = nats.Header{jetstream.MsgIDHeader: {id}}
	}
	_, err := l.js.PublishMsg(ctx, m, jetstream.WithExpectStream(l.name))
	return err
}

// Record is one record of a log.
type Record struct {
	Seq     uint64
	Subject string
	At      time.Time // when the server stored it
	Data    []byte
}

// Limits of one call of Back.
const (
	firstWindow = 256
	maxScan     = 20_000 // records; then the page is returned as it is
)

// Query selects records.
type Query struct {
	Subjects      []string          // one of them matches
	After, Before uint64            // the sequence is above After and below Before; 0 bounds nothing
	Since         time.Time         // the server stored it then or later
	Limit         int               // at least 1
	Keep          func(Record) bool // nil keeps all
}

// Back returns at most Limit records, newest first. It also returns the value of Before
// for the next page, or 0 when there are no older records. A page may be shorter than
// Limit, or empty, and yet not be the last.
func (l *Log) Back(ctx context.Context, q Query) (page []Record, next uint64, err error) {
	stream, err := l.js.Stream(ctx, l.name)
	if err != nil {
		return nil, 0, fmt.Errorf("stream %s: %w", l.name, err)
	}
	state := stream.CachedInfo().State
	last := state.LastSeq
	if q.Before != 0 && q.Before <= last {
		last = q.Before - 1
	}
	first := max(state.FirstSeq, q.After+1)
	if state.Msgs == 0 {
		return nil, 0, nil
	}
	scanned := 0
	for window := uint64(firstWindow); last >= first && last > 0; {
		from := first
		if last >= window && last-window+1 > from {
			from = last - window + 1
		}
		found, n, isOver, err := l.between(ctx, stream, q, from, last, q.Limit-len(page))
		if err != nil {
			return nil, 0, fmt.Errorf("stream %s: %w", l.name, err)
		}
		page = append(page, found...)
		scanned += n
		last = from - 1
		switch {
		case len(page) == q.Limit:
			if end := page[len(page)-1].Seq; end > first {
				next = end
			}
			return page, next, nil
		case isOver:
			return page, 0, nil
		case scanned >= maxScan:
			if from > first {
				next = from
			}
			return page, next, nil
		case n*4 <= maxScan-scanned: // the next window has as many of its records, as it seems
			window *= 4
		}
	}
	return page, 0, nil
}

// between returns the newest records with sequences from first to last that the query keeps,
// newest first and at most limit, and how many it has looked at. It holds no more than those in
// memory. isOver says that some, and so all before them, are older than the query wants.
func (l *Log) between(
	ctx context.Context, stream jetstream.Stream, q Query, first, last uint64, limit int,
) (list []Record, scanned int, isOver bool, err error) {
	by := jetstream.ConsumerConfig{FilterSubjects: q.Subjects, OptStartSeq: first}
	err = replay.Each(ctx, stream, by, math.MaxInt, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		r := Record{meta.Sequence.Stream, m.Subject(), meta.Timestamp, m.Data()}
		switch {
		case r.Seq > last:
			return false, nil
		case r.At.Before(q.Since):
			isOver = true
			return true, nil
		}
		if scanned++; q.Keep == nil || q.Keep(r) {
			if len(list) >= 2*limit {
				list = slices.Delete(list, 0, limit)
			}
			list = append(list, r)
		}
		return true, nil
	})
	if err != nil {
		return nil, 0, false, err
	}
	list = list[max(0, len(list)-limit):]
	slices.Reverse(list)
	return list, scanned, isOver, nil
}
