package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// TooLongError says that a line, or a line with the bytes that follow it, is longer than
// the limit. After a line that is too long the next call of Next returns the line after
// it.
type TooLongError struct {
	Limit int
	// Length is how many bytes were to follow the line, 0 when the line itself is too
	// long.
	Length int
	// Head is the beginning of the line, as much as the reader kept.
	Head []byte
}

// Error says what the limit is and which setting changes it.
func (e *TooLongError) Error() string {
	if e.Length > 0 {
		return fmt.Sprintf("a line with %d bytes after it is longer than %d bytes, the limit (MaxFrame)", e.Length, e.Limit)
	}
	return fmt.Sprintf("a line is longer than %d bytes, the limit (MaxFrame)", e.Limit)
}

// PartialError says that the stream ended in the middle of a line, or of the bytes that
// follow one.
type PartialError struct {
	Line    []byte // its beginning; nil when bytes are missing
	Length  int    // how many bytes were to follow the line
	Missing int    // of them and the newline after them
}

// Error shows the beginning of the line, or how much is missing.
func (e *PartialError) Error() string {
	if e.Length > 0 {
		return fmt.Sprintf("the connection ended in the middle of the %d bytes after a line: %d are missing, with the newline", e.Length, e.Missing)
	}
	return "the connection ended in the middle of a line: " + Excerpt(e.Line)
}

// Unwrap returns [io.ErrUnexpectedEOF].
func (e *PartialError) Unwrap() error { return io.ErrUnexpectedEOF }

const (
	bufferSize = 64 << 10
	keepBuffer = 2 << 20 // a larger buffer is released when it is empty
)

// Reader reads lines. It is for one goroutine.
type Reader struct {
	r        io.Reader
	limit    int
	buf      []byte
	from, to int // the bytes that were read and not returned
	looked   int // how many of them are known to have no newline
	skipping bool
	lastLine int    // the length of the line that Next has returned, with its newline; 0 once its bytes are read
	data     []byte // the bytes after it, and their newline, while they are read
	have     int    // how many of them have come
}

// NewReader returns a reader of lines of up to limit bytes, including the newline.
// 0 is [DefaultMaxFrame].
func NewReader(r io.Reader, limit int) *Reader {
	if limit <= 0 {
		limit = DefaultMaxFrame
	}
	return &Reader{r: r, limit: limit, buf: make([]byte, min(bufferSize, limit))}
}

// Next returns the next line without its newline. The slice is valid until the next
// call. Next skips lines of white space. At the end it returns [io.EOF], or a
// [*PartialError] when the last line has no newline. For a line that is too long it
// returns a [*TooLongError], and the next call continues after that line.
func (r *Reader) Next() ([]byte, error) {
	for {
		if at := bytes.IndexByte(r.buf[r.from+r.looked:r.to], '\n'); at >= 0 {
			line := r.buf[r.from : r.from+r.looked+at]
			r.from += len(line) + 1
			r.looked = 0
			if r.skipping {
				r.skipping = false
				continue
			}
			if blank(line) {
				continue
			}
			r.lastLine = len(line) + 1
			return line, nil
		}
		r.looked = r.to - r.from
		if r.skipping {
			r.from, r.to, r.looked = 0, 0, 0
		} else if r.looked >= r.limit {
			err := &TooLongError{Limit: r.limit, Head: bytes.Clone(r.buf[r.from:min(r.to, r.from+bufferSize)])}
			r.from, r.to, r.looked, r.skipping = 0, 0, 0, true
			return nil, err
		}
		if err := r.fill(); err != nil {
			rest := r.buf[r.from:r.to]
			if err == io.EOF && !blank(rest) { //nolint:errorlint // a Reader returns io.EOF unwrapped
				r.from = r.to
				return nil, &PartialError{Line: bytes.Clone(rest[:min(len(rest), bufferSize)])}
			}
			return nil, err
		}
	}
}

func blank(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }

// fill makes room and reads once.
func (r *Reader) fill() error {
	if r.from == r.to {
		r.from, r.to = 0, 0
		if len(r.buf) > keepBuffer {
			r.buf = make([]byte, min(bufferSize, r.limit))
		}
	}
	if r.to == len(r.buf) {
		if r.from > 0 {
			r.to = copy(r.buf, r.buf[r.from:r.to])
			r.from = 0
		} else {
			bigger := make([]byte, min(2*len(r.buf), r.limit))
			copy(bigger, r.buf)
			r.buf = bigger
		}
	}
	for range 100 {
		n, err := r.r.Read(r.buf[r.to:])
		if n > 0 {
			r.to += n
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// Writer writes messages, one line each. Unless a message is large it takes one
// write. Only one goroutine at a time may use a Writer.
type Writer struct {
	w       io.Writer
	limit   int
	buf     []byte
	vectors [3][]byte
	broken  error
}

// ErrPoisoned is wrapped by the error of every write after a failed one. A part of
// that line may have arrived, so the other side could not read the lines after it.
var ErrPoisoned = errors.New("an earlier write has failed")

// NewWriter returns a writer of lines of up to limit bytes, including the newline.
// 0 is [DefaultMaxFrame].
func NewWriter(w io.Writer, limit int) *Writer {
	if limit <= 0 {
		limit = DefaultMaxFrame
	}
	return &Writer{w: w, limit: limit}
}

// Query sends a query to a worker. The payload must be one JSON value.
func (w *Writer) Query(requestID string, payload json.RawMessage) error {
	return w.carry(Query, requestID, "payload", payload)
}

// QueryAbout sends a query to a worker of version 2.
func (w *Writer) QueryAbout(requestID string, payload json.RawMessage, about About) error {
	return w.carryAfter(appendAbout(w.begin(Query, requestID), about), "payload", payload)
}

// appendAbout appends what a worker of version 2 learns about a query.
func appendAbout(b []byte, about About) []byte {
	if about.TimeoutMs > 0 {
		b = strconv.AppendInt(append(b, `,"timeoutMs":`...), about.TimeoutMs, 10)
	}
	if about.Traceparent != "" {
		b = appendString(append(b, `,"traceparent":`...), about.Traceparent)
	}
	if about.Tracestate != "" {
		b = appendString(append(b, `,"tracestate":`...), about.Tracestate)
	}
	if len(about.Metadata) > 0 {
		if data, err := json.Marshal(about.Metadata); err == nil { // texts can be marshalled
			b = append(append(b, `,"metadata":`...), data...)
		}
	}
	return b
}

// Reply answers a call with its result, which must be one JSON value.
func (w *Writer) Reply(callID string, result json.RawMessage) error {
	return w.carryAfter(appendString(append(w.begin(Reply, ""), `,"callId":`...), callID), "result", result)
}

// ReplyError answers a call with an error; an empty text becomes "error".
func (w *Writer) ReplyError(callID, text string) error {
	return w.send(Reply, "", func(b []byte) []byte {
		b = appendString(append(b, `,"callId":`...), callID)
		return appendString(append(b, `,"error":`...), cmp.Or(text, "error"))
	})
}

// Call asks the pool's process something on behalf of a query. The params must be one
// JSON value.
func (w *Writer) Call(requestID, callID, method string, params json.RawMessage) error {
	b := appendString(append(w.begin(Call, requestID), `,"callId":`...), callID)
	return w.carryAfter(appendString(append(b, `,"method":`...), method), "params", params)
}

// Cancel asks a worker to stop a query.
func (w *Writer) Cancel(requestID string) error { return w.send(Cancel, requestID, nil) }

// Shutdown asks a worker to end: after its query when graceful, else at once.
func (w *Writer) Shutdown(graceful bool) error {
	return w.send(Shutdown, "", func(b []byte) []byte {
		return strconv.AppendBool(append(b, `,"graceful":`...), graceful)
	})
}

// HealthCheck asks a worker for a HealthOK.
func (w *Writer) HealthCheck() error { return w.send(HealthCheck, "", nil) }

// Ready says that the worker takes queries.
func (w *Writer) Ready() error { return w.send(Ready, "", nil) }

// Announce says that the worker takes queries, and what it is able to do.
func (w *Writer) Announce(o Offer) error {
	return w.send(Ready, "", func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `,"version":`...), int64(o.Version), 10)
		b = append(b, `,"capabilities":[`...)
		for i, name := range o.Capabilities {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, name)
		}
		return strconv.AppendInt(append(b, `],"concurrency":`...), int64(o.Concurrency), 10)
	})
}

// Dump asks a worker for its stacks.
func (w *Writer) Dump() error { return w.send(Dump, "", nil) }

// Stacks answers a dump.
func (w *Writer) Stacks(stacks string) error {
	return w.send(Stacks, "", func(b []byte) []byte { return appendString(append(b, `,"stacks":`...), stacks) })
}

// Session sends the worker's own id of a query's work.
func (w *Writer) Session(requestID, sessionID string) error {
	return w.send(Session, requestID, func(b []byte) []byte { return appendString(append(b, `,"sessionId":`...), sessionID) })
}

// Message sends a part of an answer. The content must be one JSON value.
func (w *Writer) Message(requestID string, content json.RawMessage) error {
	return w.carry(Message, requestID, "content", content)
}

// Complete ends an answer with its result, which must be one JSON value.
func (w *Writer) Complete(requestID string, result json.RawMessage) error {
	return w.carry(Complete, requestID, "result", result)
}

// Error ends an answer with an error.
func (w *Writer) Error(requestID, text string) error {
	return w.send(Error, requestID, func(b []byte) []byte { return appendString(append(b, `,"error":`...), text) })
}

// ShutdownAck confirms a shutdown. It is a worker's last message.
func (w *Writer) ShutdownAck() error { return w.send(ShutdownAck, "", nil) }

// HealthOK answers a health check.
func (w *Writer) HealthOK(uptime float64, queries int64) error {
	return w.send(HealthOK, "", func(b []byte) []byte {
		b = strconv.AppendFloat(append(b, `,"uptime":`...), uptime, 'f', 3, 64)
		return strconv.AppendInt(append(b, `,"queriesProcessed":`...), queries, 10)
	})
}

// begin starts a line in the buffer.
func (w *Writer) begin(t Type, requestID string) []byte {
	b := append(w.buf[:0], `{"type":"`...)
	b = append(append(b, t...), '"')
	if requestID != "" {
		b = appendString(append(b, `,"requestId":`...), requestID)
	}
	return b
}

func (w *Writer) send(t Type, requestID string, more func([]byte) []byte) error {
	b := w.begin(t, requestID)
	if more != nil {
		b = more(b)
	}
	return w.flush(append(b, "}\n"...))
}

// carry sends a message with a value that the caller supplied.
func (w *Writer) carry(t Type, requestID, field string, value json.RawMessage) error {
	return w.carryAfter(w.begin(t, requestID), field, value)
}

// carryAfter ends a line that was begun with a value.
func (w *Writer) carryAfter(b []byte, field string, value json.RawMessage) error {
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	b = append(append(append(b, `,"`...), field...), `":`...)
	if len(b)+len(value)+2 > w.limit {
		w.buf = b
		return &TooLongError{Limit: w.limit, Head: bytes.Clone(b)}
	}
	if bytes.IndexByte(value, '\n') >= 0 { // in valid JSON only between tokens
		value = bytes.ReplaceAll(value, []byte("\n"), []byte(" "))
	}
	if len(value) < bufferSize {
		return w.flush(append(append(b, value...), "}\n"...))
	}
	return w.flushAll(b, value, lineEnd)
}

var lineEnd = []byte("}\n")

func (w *Writer) flush(b []byte) error {
	w.buf = b
	if w.broken != nil {
		return fmt.Errorf("%w: %w", ErrPoisoned, w.broken)
	}
	if len(b) > w.limit {
		return &TooLongError{Limit: w.limit, Head: bytes.Clone(b[:min(len(b), 256)])}
	}
	_, err := w.w.Write(b)
	w.broken = err
	return err
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	if asIs(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	quoted, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // cannot happen: every string can be marshalled
	}
	return append(b, quoted...)
}

// asIs reports whether s needs no escapes between quotes.
func asIs(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
			return false
		}
	}
	return true
}
