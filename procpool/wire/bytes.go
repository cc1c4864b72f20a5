package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// A query, a message or a complete of version 2 may have bytes beside its value, as
// they are. Its field bytes says how many. They follow the line, and a newline follows
// them: what comes in its place shows that the length is wrong.

// LengthError says that the bytes after a line are not as many as the line says. What
// comes next on the connection cannot be read.
type LengthError struct {
	Length int  // as the line says
	Next   byte // what came after them in place of the newline
}

// Error shows the length and what came after it.
func (e *LengthError) Error() string {
	return fmt.Sprintf("after the %d bytes that its line announced came %q, want a newline", e.Length, string(rune(e.Next)))
}

// errNoLine is the error for bytes without a line before them.
var errNoLine = errors.New("no line was read that the bytes could follow")

// Bytes reads the n bytes that follow the line that Next has returned last, n being the
// line's Length and more than 0. It reads into buf when that has a capacity of n+1 or
// more, and otherwise into new memory. The line stays valid. When reading fails because
// of a deadline, call Bytes again to go on, and Keep first when buf gets another use. It
// returns a [*TooLongError] when line and bytes are longer than the limit, a
// [*LengthError] when no newline follows them, and a [*PartialError] when the stream ends
// before.
func (r *Reader) Bytes(n int, buf []byte) ([]byte, error) {
	if r.data == nil {
		if r.lastLine == 0 || n < 1 {
			return nil, errNoLine
		}
		if n > r.limit-r.lastLine-1 {
			return nil, &TooLongError{Limit: r.limit, Length: n}
		}
		if cap(buf) > n {
			r.data = buf[:n+1]
		} else {
			r.data = make([]byte, n+1)
		}
		r.have = copy(r.data, r.buf[r.from:r.to])
		r.from += r.have
	}
	for r.have < len(r.data) {
		got, err := r.r.Read(r.data[r.have:])
		if r.have += got; got > 0 {
			continue
		}
		if err == io.EOF {
			err = &PartialError{Length: len(r.data) - 1, Missing: len(r.data) - r.have}
		}
		if err != nil {
			return nil, err
		}
	}
	data, last := r.data[:len(r.data)-1:len(r.data)-1], r.data[len(r.data)-1]
	r.data, r.have, r.lastLine = nil, 0, 0
	if last != '\n' {
		return nil, &LengthError{Length: len(data), Next: last}
	}
	return data, nil
}

// Keep moves what Bytes has read of unfinished bytes out of the buffer that it was given.
func (r *Reader) Keep() {
	if r.data != nil {
		r.data = append(make([]byte, 0, len(r.data)), r.data...)
	}
}

// QueryBytes sends a query to a worker that announced [CanBytes], with bytes beside the
// payload. Without bytes it is QueryAbout; so it is for the others.
func (w *Writer) QueryBytes(requestID string, payload json.RawMessage, data []byte, about About) error {
	return w.carryBytes(appendAbout(w.beginBytes(Query, requestID, data), about), "payload", payload, data)
}

// MessageBytes sends a part of an answer, with bytes beside the content.
func (w *Writer) MessageBytes(requestID string, content json.RawMessage, data []byte) error {
	return w.carryBytes(w.beginBytes(Message, requestID, data), "content", content, data)
}

// CompleteBytes ends an answer with its result, and with bytes beside it.
func (w *Writer) CompleteBytes(requestID string, result json.RawMessage, data []byte) error {
	return w.carryBytes(w.beginBytes(Complete, requestID, data), "result", result, data)
}

// beginBytes starts a line that says how many bytes follow it.
func (w *Writer) beginBytes(t Type, requestID string, data []byte) []byte {
	b := w.begin(t, requestID)
	if len(data) > 0 {
		b = strconv.AppendInt(append(b, `,"bytes":`...), int64(len(data)), 10)
	}
	return b
}

// carryBytes ends a line that was begun with a value, and sends data after it.
func (w *Writer) carryBytes(b []byte, field string, value json.RawMessage, data []byte) error {
	if len(data) == 0 {
		return w.carryAfter(b, field, value)
	}
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	b = append(append(append(b, `,"`...), field...), `":`...)
	if len(b)+len(value)+len("}\n")+len(data)+1 > w.limit {
		w.buf = b
		return &TooLongError{Limit: w.limit, Length: len(data), Head: bytes.Clone(b)}
	}
	from := len(b)
	b = append(b, value...)
	oneLine(b[from:])
	b = append(b, "}\n"...)
	if len(data) < bufferSize {
		return w.flush(append(append(b, data...), '\n'))
	}
	return w.flushAll(b, data, newline)
}

var newline = []byte("\n")

// oneLine replaces newlines, which valid JSON has only between tokens.
func oneLine(value []byte) {
	for {
		at := bytes.IndexByte(value, '\n')
		if at < 0 {
			return
		}
		value[at] = ' '
		value = value[at+1:]
	}
}

// flushAll writes a line in three parts.
func (w *Writer) flushAll(b, middle, end []byte) error {
	w.buf = b
	if w.broken != nil {
		return fmt.Errorf("%w: %w", ErrPoisoned, w.broken)
	}
	w.vectors = [3][]byte{b, middle, end}
	all := net.Buffers(w.vectors[:])
	_, err := all.WriteTo(w.w)
	w.vectors = [3][]byte{}
	w.broken = err
	return err
}
