package workflow

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/trace"
)

// The headers of an entity's messages. A header without information is absent.
const (
	headerWrite  = "Lifecycle"        // the data of every write: see meta.write
	headerNote   = "Lifecycle-Note"   // of the transition
	headerTimers = "Lifecycle-Timers" // the entity's timers as JSON, on each of its writes
	headerFired  = "Lifecycle-Fired"  // the timer that fired with the write
	headerKeys   = "Lifecycle-Keys"   // the idempotency keys of the entity's last writes: see addKey
	headerPause  = "Lifecycle-Pause"  // whether the entity is paused: see pausing

	headerExpected  = jetstream.ExpectedLastSubjSeqHeader
	headerOperation = "KV-Operation"
	headerMarker    = "Nats-Marker-Reason"
)

// meta is what a write stores beside the record, in the headers of its message. Texts of
// users are escaped there like a URL path, because a header is one line.
type meta struct {
	op       string           // the operation that wrote it
	workflow string           // whose record it is
	on       uint64           // the revision before: a journal's messages lack headerExpected
	chained  bool             // on is known: this package wrote the message
	version  string           // of the record
	entered  string           // the phase that the write entered; "" for one that keeps the phase, and for a deletion
	from     string           // the phase that a transition left
	source   TransitionSource // what caused the transition
	since    int64            // when the phase was entered, in unix nanoseconds; 0 for a write that enters it
	change   uint64           // the revision of the last write before this one that changes; 0 for none, or unknown
	pending  int              // how many writes ago the first change was that the journal may not have; 0 for none
	note     string
	timers   string
	fired    string
	keys     string
	pause    pausing
	trace    trace.Context // of the write
	removal  string        // "DEL" or "PURGE" for a deletion, "" for a record
}

// write returns the value of headerWrite: the members of meta from op to pending, without
// chained. They share one header, because ten headers take the server and every reader longer.
func (m *meta) write() string {
	return strings.Join([]string{
		m.op,
		url.PathEscape(m.workflow),
		strconv.FormatUint(m.on, 10),
		m.version,
		url.PathEscape(m.entered),
		url.PathEscape(m.from),
		string(m.source),
		number(m.since),
		number(m.change),
		number(m.pending),
	}, "|")
}

// number returns a number as text, "" for 0.
func number[N int | int64 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// readWrite reads a line that write has made. For any other line it does not change m.
func (m *meta) readWrite(line string) {
	parts := strings.Split(line, "|")
	if len(parts) != 10 {
		return
	}
	on, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return
	}
	m.op, m.workflow, m.on, m.chained, m.version = parts[0], unescaped(parts[1]), on, true, parts[3]
	m.entered, m.from = unescaped(parts[4]), unescaped(parts[5])
	if source := TransitionSource(parts[6]); source.valid() {
		m.source = source
	}
	m.since, _ = strconv.ParseInt(parts[7], 10, 64) // 0 for none
	m.change, _ = strconv.ParseUint(parts[8], 10, 64)
	m.pending, _ = strconv.Atoi(parts[9])
}

func unescaped(raw string) string {
	if text, err := url.PathUnescape(raw); err == nil {
		return text
	}
	return raw
}

// readMeta reads the headers of a message. For a message of another program it returns empty
// fields, and TransitionSourceFramework as the source.
func readMeta(h nats.Header) meta {
	get := func(name string) string {
		if values := h[name]; len(values) > 0 {
			return values[0]
		}
		return ""
	}
	m := meta{
		source: TransitionSourceFramework,
		note:   unescaped(get(headerNote)),
		timers: get(headerTimers),
		fired:  unescaped(get(headerFired)),
		keys:   get(headerKeys),
		pause:  pausing(get(headerPause)),
	}
	m.readWrite(get(headerWrite))
	if parent := get(trace.HeaderParent); parent != "" {
		m.trace = trace.Parse(parent, get(trace.HeaderState))
	}
	switch operation := get(headerOperation); {
	case operation == "DEL" || operation == "PURGE":
		m.removal = operation
	case get(headerMarker) != "": // a limit of the bucket removed it
		m.removal = "PURGE"
	}
	return m
}

func (m *meta) header() nats.Header {
	h := nats.Header{headerWrite: {m.write()}}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{value}
		}
	}
	set(headerNote, url.PathEscape(m.note))
	set(headerTimers, m.timers)
	set(headerFired, url.PathEscape(m.fired))
	set(headerKeys, m.keys)
	set(headerPause, string(m.pause))
	set(headerOperation, m.removal)
	m.trace.Set(h)
	return h
}

// message makes the message that carries out a decision.
func (r *registration) message(key string, d *decision) *nats.Msg {
	h := d.header()
	h[headerExpected] = []string{strconv.FormatUint(d.on, 10)}
	if d.removal == "PURGE" {
		h[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	}
	return &nats.Msg{Subject: r.bucket.put + key, Data: d.data, Header: h}
}

type entry struct {
	key      string
	revision uint64
	at       time.Time // when the server stored it
	data     []byte
	meta
	phase   string // the record's, when this process has decoded it; else ""
	guessed bool   // since is by this process's clock, not the server's
}

func newEntry(key string, revision uint64, at time.Time, h nats.Header, data []byte) *entry {
	return &entry{key: key, revision: revision, at: at.UTC(), data: data, meta: readMeta(h)}
}

// deleted reports whether the entry is a deletion: by this package, by the nats command or
// by the bucket's limits.
func (e *entry) deleted() bool { return e.removal != "" }

// erased reports whether another program or a limit of the bucket has written the entry in
// place of all earlier writes.
func (e *entry) erased() bool { return !e.chained && e.removal == "PURGE" }

func (e *entry) moved() bool { return e.entered != "" }

// reacts reports whether the write is one that hooks react to: it entered a phase, deleted the
// entity, or was made by a timer.
func (e *entry) reacts() bool { return e.moved() || e.deleted() || e.fired != "" }

// changes reports whether the write is one that a trail or a hook tells of.
func (e *entry) changes() bool { return e.reacts() || e.pauses() }

// lastChange returns the revision of the entity's last write that changes, this one included.
func (e *entry) lastChange() uint64 {
	switch {
	case e == nil:
		return 0
	case e.changes():
		return e.revision
	}
	return e.change
}

// sinceTime returns when the phase was entered.
func (e *entry) sinceTime() time.Time {
	if e.since != 0 {
		return time.Unix(0, e.since)
	}
	return e.at
}

func revisionOf(e *entry) uint64 {
	if e == nil {
		return 0
	}
	return e.revision
}
