package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
)

// Writer writes messages, one line each. Unless a message is large it takes one
// write. Only one goroutine at a time may use a Writer.
type Writer struct {
	w      io.Writer
	limit  int
	buf    []byte
	broken error
}

// NewWriter returns a writer of lines of up to limit bytes, including the newline.
// 0 is [DefaultMaxFrame].
func NewWriter(w io.Writer, limit int) *Writer {
	if limit <= 0 {
		limit = DefaultMaxFrame
	}
	return &Writer{w: w, limit: limit}
}

// Query sends a query to a worker. The payload must be one JSON value; nil is null. data is
// sent beside it, nil for none, to a worker that announced [CanBytes].
func (w *Writer) Query(requestID string, payload json.RawMessage, data []byte, about About) error {
	b := appendAbout(appendLength(w.begin(Query, requestID), data), about)
	return w.carry(b, "payload", payload, data)
}

// appendLength says how many bytes follow the line.
func appendLength(b, data []byte) []byte {
	if len(data) == 0 {
		return b
	}
	return strconv.AppendInt(append(b, `,"bytes":`...), int64(len(data)), 10)
}

// appendAbout appends what a worker learns about a query.
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
	return w.carry(appendString(append(w.begin(Reply, ""), `,"callId":`...), callID), "result", result, nil)
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
	return w.carry(appendString(append(b, `,"method":`...), method), "params", params, nil)
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

// Ready says that the worker takes queries, and what it offers.
func (w *Writer) Ready(o Offer) error {
	return w.send(Ready, "", func(b []byte) []byte {
		if o.Version > 0 {
			b = strconv.AppendInt(append(b, `,"version":`...), int64(o.Version), 10)
		}
		if len(o.Capabilities) > 0 {
			names, _ := json.Marshal(o.Capabilities) // texts can be marshalled
			b = append(append(b, `,"capabilities":`...), names...)
		}
		if o.Concurrency > 0 {
			b = strconv.AppendInt(append(b, `,"concurrency":`...), int64(o.Concurrency), 10)
		}
		return b
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

// Message sends a part of an answer. The content must be one JSON value; nil is null. data is
// sent beside it, nil for none.
func (w *Writer) Message(requestID string, content json.RawMessage, data []byte) error {
	return w.carry(appendLength(w.begin(Message, requestID), data), "content", content, data)
}

// Complete ends an answer with its result, which must be one JSON value; nil is null. data is
// sent beside it, nil for none.
func (w *Writer) Complete(requestID string, result json.RawMessage, data []byte) error {
	return w.carry(appendLength(w.begin(Complete, requestID), data), "result", result, data)
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
	return w.write(0, append(b, "}\n"...))
}

// carry ends a line that was begun, with a value, and sends data after it.
func (w *Writer) carry(b []byte, field string, value json.RawMessage, data []byte) error {
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	b = append(append(append(b, `,"`...), field...), `":`...)
	if bytes.IndexByte(value, '\n') >= 0 { // in valid JSON only between tokens
		value = bytes.ReplaceAll(value, []byte("\n"), []byte(" "))
	}
	if len(data) == 0 {
		return w.write(0, b, value, []byte("}\n"))
	}
	return w.write(len(data), b, value, []byte("}\n"), data, []byte("\n"))
}

// write writes the parts of a line, and of length bytes after it. It copies small parts to
// the first one, which is in the buffer, and writes large ones as they are.
func (w *Writer) write(length int, parts ...[]byte) error {
	w.buf = parts[0]
	if w.broken != nil {
		return fmt.Errorf("%w: %w", ErrPoisoned, w.broken)
	}
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if size > w.limit {
		return &TooLongError{Limit: w.limit, Length: length, Head: bytes.Clone(parts[0][:min(len(parts[0]), 256)])}
	}
	large := slices.ContainsFunc(parts[1:], func(part []byte) bool { return len(part) >= bufferSize })
	if large {
		w.broken = w.writeLarge(parts)
		return w.broken
	}
	for _, part := range parts[1:] {
		w.buf = append(w.buf, part...)
	}
	_, w.broken = w.w.Write(w.buf)
	return w.broken
}

// writeLarge writes parts of which some are large, without a copy of these.
func (w *Writer) writeLarge(parts [][]byte) error {
	b := parts[0]
	var all net.Buffers
	for _, part := range parts[1:] {
		if len(part) >= bufferSize {
			all = append(all, b, part)
			b = nil
			continue
		}
		b = append(b, part...)
	}
	all = append(all, b)
	_, err := all.WriteTo(w.w)
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
