package operator

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// AuditLog keeps the attempts to write, and lists them. [OpenAuditLog] returns one that
// outlives the server and that all replicas share.
type AuditLog interface {
	// Append stores an entry.
	Append(ctx context.Context, entry *operatorv1.AuditEntry) error
	// List returns the entries that match, newest first, and the value of Before for the
	// next page, 0 when there is none. A page may be shorter than Limit and yet have a
	// next one.
	List(ctx context.Context, q AuditQuery) (entries []*operatorv1.AuditEntry, next uint64, err error)
}

// AuditQuery selects entries. An empty field selects all.
type AuditQuery struct {
	Who, Action, Target string // each a part of the text, in any case
	Refused             bool   // only those with an outcome other than ok
	Since, Until        time.Time
	Before              uint64 // the end of the previous page, 0 for the first one
	Limit               int    // at least 1
}

// matches reports whether the query selects an entry.
func (q AuditQuery) matches(e *operatorv1.AuditEntry) bool {
	has := func(text, part string) bool {
		return part == "" || strings.Contains(strings.ToLower(text), strings.ToLower(part))
	}
	at := e.GetAt().AsTime()
	named := has(e.GetWho(), q.Who) && has(e.GetAction(), q.Action) && has(e.GetTarget(), q.Target)
	inTime := (q.Since.IsZero() || !at.Before(q.Since)) && (q.Until.IsZero() || at.Before(q.Until))
	return named && inTime && (!q.Refused || e.GetOutcome() != "ok")
}

// AuditLogConfig configures an [AuditLog] in a stream.
type AuditLogConfig struct {
	// Stream is the name of the stream. Defaults to "FLEET_AUDIT". It takes the subject
	// "lifecycle.audit.STREAM".
	Stream string
	// MaxAge is how long an entry is kept. Defaults to 90 days. MaxBytes is how large
	// the stream may become; defaults to 1 GiB. Then the oldest entries go. Both take
	// effect when the stream is created.
	MaxAge   time.Duration
	MaxBytes int64
}

// OpenAuditLog returns an AuditLog in a JetStream stream, which it creates when it is
// missing.
func OpenAuditLog(ctx context.Context, js jetstream.JetStream, c AuditLogConfig) (AuditLog, error) {
	c.Stream = cmp.Or(c.Stream, "FLEET_AUDIT")
	c.MaxAge = cmp.Or(c.MaxAge, 90*24*time.Hour)
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<30)
	if c.MaxAge < time.Minute || c.MaxBytes < 0 {
		return nil, fmt.Errorf("operator: audit log: MaxAge is %v and MaxBytes %d: want a minute or more, and more than 0",
			c.MaxAge, c.MaxBytes)
	}
	subject := "lifecycle.audit." + c.Stream
	log, err := eventlog.Open(ctx, js, eventlog.Config{
		Stream:      c.Stream,
		Setting:     "AuditLogConfig.Stream",
		Subjects:    []string{subject},
		Description: "attempts to write through the operators' API",
		MaxAge:      c.MaxAge,
		MaxBytes:    c.MaxBytes,
		BytesOf:     "AuditLogConfig.MaxBytes",
		MaxRecord:   64 << 10,
	})
	if err != nil {
		return nil, fmt.Errorf("operator: audit log: %w", err)
	}
	return &auditStream{log, subject}, nil
}

type auditStream struct {
	log     *eventlog.Log
	subject string
}

func (a *auditStream) Append(ctx context.Context, e *operatorv1.AuditEntry) error {
	text, err := protojson.Marshal(e)
	if err != nil {
		return err
	}
	return a.log.Append(ctx, a.subject, "", text)
}

func (a *auditStream) List(ctx context.Context, q AuditQuery) (list []*operatorv1.AuditEntry, next uint64, err error) {
	read := func(r eventlog.Record) *operatorv1.AuditEntry {
		e := new(operatorv1.AuditEntry)
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(r.Data, e); err != nil {
			detail := "this entry cannot be read: " + clip(err.Error(), maxName)
			e = &operatorv1.AuditEntry{At: timestamppb.New(r.At), Detail: detail}
		}
		return e
	}
	records, next, err := a.log.Back(ctx, eventlog.Query{
		Subjects: []string{a.subject},
		Before:   q.Before,
		Limit:    q.Limit,
		Keep:     func(r eventlog.Record) bool { return q.matches(read(r)) },
	})
	for _, r := range records {
		list = append(list, read(r))
	}
	return list, next, err
}

// audit logs every attempt to write, and passes it to the AuditLog.
type audit struct {
	log   *slog.Logger
	store AuditLog
	lost  repeatLog
}

// saveTime is how long a store may take, for an entry of the audit or the end of a session.
const saveTime = 5 * time.Second

// record takes one entry. It runs on when the request's context ends: a caller that
// hangs up is audited too.
func (a *audit) record(ctx context.Context, e *operatorv1.AuditEntry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	e.At = timestamppb.Now()
	level := slog.LevelInfo
	if e.GetOutcome() != "ok" {
		level = slog.LevelWarn
	}
	a.log.Log(ctx, level, "operator: audit",
		"who", e.GetWho(), "role", e.GetRole(), "method", e.GetMethod(), "remote", e.GetRemote(),
		"action", e.GetAction(), "target", e.GetTarget(), "detail", e.GetDetail(), "dry_run", e.GetDryRun(),
		"outcome", e.GetOutcome())
	if err := a.store.Append(ctx, e); err != nil {
		a.lost.warn(a.log, "operator: the audit log does not take an entry, which is in this log", err,
			"who", e.GetWho(), "action", e.GetAction(), "target", e.GetTarget())
	}
}

// auditSize is how many entries an auditMemory keeps.
const auditSize = 1000

// auditMemory is the AuditLog of a server that has no other: the latest 1000 entries.
type auditMemory struct {
	mu   sync.Mutex               // guards the fields below
	list []*operatorv1.AuditEntry // oldest first
	gone int                      // how many older ones there were
}

func (a *auditMemory) Append(_ context.Context, e *operatorv1.AuditEntry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.list = append(a.list, e); len(a.list) > auditSize {
		a.list = slices.Delete(a.list, 0, 1)
		a.gone++
	}
	return nil
}

func (a *auditMemory) List(_ context.Context, q AuditQuery) (list []*operatorv1.AuditEntry, next uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, e := range slices.Backward(a.list) {
		seq := uint64(a.gone + i + 1)
		switch {
		case q.Before != 0 && seq >= q.Before, !q.matches(e):
		case len(list) == q.Limit:
			return list, seq + 1, nil
		default:
			list = append(list, proto.CloneOf(e))
		}
	}
	return list, 0, nil
}
