package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

const (
	bufferSize = 64 << 10
	keepBuffer = 2 << 20 // a larger line is not kept for the next one
)

// Reader reads lines, and the bytes that follow some of them. It is for one goroutine.
type Reader struct {
	r        io.Reader
	buffered *bufio.Reader // of r
	limit    int
	line     []byte // of a line whose end has not come yet, or the last line when that was long
	whole    bool   // line was returned
	skipping bool   // the rest of a line that is too long
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
	return &Reader{r: r, buffered: bufio.NewReaderSize(r, min(bufferSize, limit)), limit: limit}
}

// Next returns the next line without its newline. The slice is valid until the next
// call. Next skips lines of white space. At the end it returns [io.EOF], or a
// [*PartialError] when the last line has no newline. For a line that is too long it
// returns a [*TooLongError], and the next call continues after that line. After an error
// that is a deadline, call Next again to go on.
func (r *Reader) Next() ([]byte, error) {
	if r.whole {
		r.whole, r.line = false, r.line[:0]
		if cap(r.line) > keepBuffer {
			r.line = nil
		}
	}
	for {
		part, err := r.buffered.ReadSlice('\n')
		ended := err == nil
		switch {
		case r.skipping:
			r.skipping = !ended
			if ended {
				continue
			}
		case ended && len(r.line) == 0 && len(part) <= r.limit:
			if blank(part) {
				continue
			}
			r.lastLine = len(part)
			return part[:len(part)-1], nil
		default:
			r.line = append(r.line, part...)
		}
		switch {
		case len(r.line) > r.limit || len(r.line) == r.limit && !ended:
			long := &TooLongError{Limit: r.limit, Head: bytes.Clone(r.line[:min(len(r.line), bufferSize)])}
			r.line, r.skipping = nil, !ended
			return nil, long
		case ended && blank(r.line):
			r.line = r.line[:0]
		case ended:
			r.whole, r.lastLine = true, len(r.line)
			return r.line[:len(r.line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && !blank(r.line):
			partial := &PartialError{Line: bytes.Clone(r.line[:min(len(r.line), bufferSize)])}
			r.line = nil
			return nil, partial
		default:
			return nil, err
		}
	}
}

func blank(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }

// A query, a message or a complete may have bytes beside its value, as
// they are. Its field bytes says how many. They follow the line, and a newline follows
// them: what comes in its place shows that the length is wrong.

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
		r.have = 0
	}
	for r.have < len(r.data) {
		from := r.r // not by way of the buffer, where the line may be
		if r.buffered.Buffered() > 0 {
			from = r.buffered
		}
		got, err := from.Read(r.data[r.have:])
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
	r.data, r.lastLine = nil, 0
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
