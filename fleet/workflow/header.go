package workflow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers of an entity's messages. All but the first two belong to transitions.
// A header without information is absent.
const (
	headerOp       = "Lifecycle-Op"       // the operation that wrote it
	headerWorkflow = "Lifecycle-Workflow" // whose record it is
	headerPhase    = "Lifecycle-Phase"    // the phase it entered
	headerFrom     = "Lifecycle-From"     // the phase it left
	headerSource   = "Lifecycle-Source"
	headerNote     = "Lifecycle-Note"    // escaped like a URL path, because a header is one line
	headerSince    = "Lifecycle-Since"   // unix nanoseconds; when the phase was entered, in writes that keep the phase
	headerVersion  = "Lifecycle-Version" // of the record
	headerOn       = "Lifecycle-On"      // the revision before: the server takes headerExpected out of a journal's messages

	// headerCompact has the first of these in one line, at the place that compactPlace tells: the
	// server and every client read one header in less time than eight. A program of an
	// earlier release does not know it, so it is written to a bucket that is marked.
	headerCompact = "Lifecycle"

	headerExpected  = jetstream.ExpectedLastSubjSeqHeader
	headerOperation = "KV-Operation"
)

// message makes the message that writes a record, or deletes it.
func (r *registration) message(key string, d decision, expected uint64) *nats.Msg {
	c := d.change
	on := strconv.FormatUint(expected, 10)
	msg := &nats.Msg{Subject: r.bucket.subject(key), Data: d.data}
	if r.bucket.traits.compact.Load() {
		msg.Header = nats.Header{headerExpected: {on}, headerCompact: {r.compact(d, on)}}
	} else {
		msg.Header = r.spread(d, on)
	}
	if d.data == nil {
		msg.Header[headerOperation] = []string{"DEL"}
		if c.purge {
			msg.Header[headerOperation], msg.Header[jetstream.MsgRollup] = []string{"PURGE"}, []string{jetstream.MsgRollupSubject}
		}
	}
	if c.keys != "" {
		msg.Header[headerKeys] = []string{c.keys}
	}
	if c.timers != "" {
		msg.Header[headerTimers] = []string{c.timers}
	}
	if c.fired != "" {
		msg.Header[headerFired] = []string{url.PathEscape(c.fired)}
	}
	if c.note != "" {
		msg.Header[headerNote] = []string{url.PathEscape(c.note)}
	}
	return msg
}

// spread returns the headers that every release knows.
func (r *registration) spread(d decision, on string) nats.Header {
	c := d.change
	h := nats.Header{
		headerOp:       {c.op},
		headerWorkflow: {r.workflow},
		headerExpected: {on},
		headerOn:       {on},
	}
	if version := d.version; d.data != nil && version != "" && version != "0" {
		h[headerVersion] = []string{version}
	}
	if !c.moved && d.data != nil {
		h[headerSince] = []string{strconv.FormatInt(c.since.UnixNano(), 10)}
		return h
	}
	if d.data != nil {
		h[headerPhase] = []string{url.PathEscape(d.phase)}
	}
	if c.from != "" {
		h[headerFrom] = []string{url.PathEscape(c.from)}
	}
	h[headerSource] = []string{string(c.source)}
	return h
}

// compact returns what spread does, in one header.
func (r *registration) compact(d decision, on string) string {
	c := d.change
	line := make([]byte, 0, 128)
	line = append(line, c.op...)
	line = append(append(line, '|'), url.PathEscape(r.workflow)...)
	line = append(append(line, '|'), on...)
	line = append(line, '|')
	if d.data != nil && d.version != "0" {
		line = append(line, d.version...)
	}
	line = append(line, '|')
	if !c.moved && d.data != nil {
		return string(strconv.AppendInt(append(line, "|||"...), c.since.UnixNano(), 10))
	}
	if d.data != nil {
		line = append(line, url.PathEscape(d.phase)...)
	}
	line = append(append(line, '|'), url.PathEscape(c.from)...)
	line = append(append(line, '|'), c.source...)
	return string(append(line, '|'))
}

// compactPlace returns where a header's value is in headerCompact, -1 for one that is not.
func compactPlace(name string) int {
	switch name {
	case headerOp:
		return 0
	case headerWorkflow:
		return 1
	case headerOn:
		return 2
	case headerVersion:
		return 3
	case headerPhase:
		return 4
	case headerFrom:
		return 5
	case headerSource:
		return 6
	case headerSince:
		return 7
	}
	return -1
}

// get returns the value of a header, "" for none, in either form.
func (e *entry) get(name string) string {
	if values := e.header[name]; len(values) > 0 {
		return values[0]
	}
	lines := e.header[headerCompact]
	if len(lines) == 0 {
		return ""
	}
	value, rest := "", lines[0]
	for place := compactPlace(name); place >= 0; place-- {
		value, rest, _ = strings.Cut(rest, "|")
	}
	if name == headerWorkflow { // the only one that is not escaped in its own header
		if text, err := url.PathUnescape(value); err == nil {
			return text
		}
	}
	return value
}

// traits is what this process knows of a bucket's stream.
type traits struct {
	single   atomic.Bool  // it has one replica
	allowed  atomic.Bool  // it answers direct gets
	indirect atomic.Bool  // others answer them in its place, or none
	compact  atomic.Bool  // it is marked for headerCompact
	at       atomic.Int64 // when it was looked at, unix nanoseconds; 0 for never
}

// direct reports whether a direct get may have the last write.
func (t *traits) direct() bool {
	return t.single.Load() && t.allowed.Load() && !t.indirect.Load() && t.fresh()
}

// traitsTime is how long a look is good for a process that follows no bucket. A
// follower looks more often.
const traitsTime = time.Minute

func (t *traits) learn(info *jetstream.StreamInfo) {
	t.single.Store(info.Config.Replicas == 1)
	t.allowed.Store(info.Config.AllowDirect && info.Config.Mirror == nil)
	t.compact.Store(info.Config.Metadata[compactMark] == "1")
	t.at.Store(time.Now().UnixNano())
}

// fresh reports whether the last look is not too old.
func (t *traits) fresh() bool {
	at := t.at.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < traitsTime
}

// look learns the traits if the last look is too old. Without an answer they stay as
// they were.
func (b *bucket) look(ctx context.Context) {
	if b.traits.fresh() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if stream, err := b.js.Stream(ctx, b.stream); err == nil {
		b.traits.learn(stream.CachedInfo())
	}
}

// compactMark is the metadata of a bucket whose entities' messages have headerCompact.
const compactMark = "lifecycle-compact-headers"

// CompactHeaders marks an existing bucket: from then on every Manager writes what it
// stores beside a record (the operation, the phases, the source) into one header, and no
// longer into eight. A write then costs the server and every reader less time.
//
// Call it, once, when no program of a release older than this function uses the bucket,
// and none will again: such a program reads the records, but takes a write with one
// header for one without a history, and its hooks do not see it. Managers find the mark
// within some seconds, those without a view within a minute. Programs with and without
// the news work side by side meanwhile: all of them read both forms.
func CompactHeaders(ctx context.Context, js jetstream.JetStream, bucket string) error {
	stream, err := js.Stream(ctx, "KV_"+bucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("%w: %w", jetstream.ErrBucketNotFound, err)
	}
	if err != nil {
		return fmt.Errorf("mark bucket %s: %w", bucket, err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = make(map[string]string)
	}
	cfg.Metadata[compactMark] = "1"
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("mark bucket %s: %w", bucket, err)
	}
	return nil
}
