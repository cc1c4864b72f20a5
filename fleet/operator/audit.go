package operator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// AuditSink gets every attempt to write, after it has ended. When it returns an
// error, the server logs the error with the entry; the write is not undone.
type AuditSink func(ctx context.Context, entry *operatorv1.AuditEntry) error

// AuditStream returns a sink that publishes each entry, as JSON, on a subject of a
// JetStream stream, and waits until the stream has stored it.
func AuditStream(js jetstream.JetStream, subject string) AuditSink {
	return func(ctx context.Context, entry *operatorv1.AuditEntry) error {
		text, err := protojson.Marshal(entry)
		if err != nil {
			return err
		}
		_, err = js.Publish(ctx, subject, text)
		return err
	}
}

// audit remembers the latest writes and passes each to the sinks.
type audit struct {
	log   *slog.Logger
	sinks []AuditSink

	mu   sync.Mutex               // guards the fields below
	ring []*operatorv1.AuditEntry // once it is full, the oldest is at next
	next int
}

// auditSize is how many writes a server remembers.
const auditSize = 1000

// sinkTimeout is how long a sink may take.
const sinkTimeout = 5 * time.Second

// record takes one entry. It runs on when the request's context ends: a caller that
// hangs up is audited too.
func (a *audit) record(ctx context.Context, e *operatorv1.AuditEntry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sinkTimeout)
	defer cancel()
	e.At = timestamppb.Now()
	level := slog.LevelInfo
	if e.GetOutcome() != "ok" {
		level = slog.LevelWarn
	}
	a.log.Log(ctx, level, "operator: audit", "who", e.GetWho(), "role", e.GetRole(), "method", e.GetMethod(), "remote", e.GetRemote(),
		"action", e.GetAction(), "target", e.GetTarget(), "detail", e.GetDetail(), "dry_run", e.GetDryRun(), "outcome", e.GetOutcome())
	a.mu.Lock()
	if len(a.ring) < auditSize {
		a.ring = append(a.ring, e)
	} else {
		a.ring[a.next] = e
		a.next = (a.next + 1) % auditSize
	}
	a.mu.Unlock()
	for _, sink := range a.sinks {
		if err := sink(ctx, e); err != nil {
			a.log.ErrorContext(ctx, "operator: an audit sink has failed", "who", e.GetWho(), "action", e.GetAction(), "target", e.GetTarget(), "error", err)
		}
	}
}

// latest returns at most n entries, the newest first.
func (a *audit) latest(n int) []*operatorv1.AuditEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*operatorv1.AuditEntry, 0, len(a.ring))
	list = append(append(list, a.ring[a.next:]...), a.ring[:a.next]...)
	slices.Reverse(list)
	if len(list) > n {
		list = list[:n]
	}
	for i, e := range list {
		list[i] = proto.CloneOf(e)
	}
	return list
}
