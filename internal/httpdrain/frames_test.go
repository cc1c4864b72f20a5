package httpdrain

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// frame makes one frame.
func frame(kind, flags byte, stream uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return string(b) + payload
}

// gaps lists the places in a direction's bytes where a frame may be inserted. Unlike
// frames, it has all bytes at once.
func gaps(b []byte) (at []int) {
	const settings = "\x04"
	block := uint32(0)
	for pos := 0; len(b)-pos >= frameHead; {
		length := int(binary.BigEndian.Uint32(b[pos:]) >> 8)
		kind, flags, id := b[pos+3], b[pos+4], binary.BigEndian.Uint32(b[pos+5:])&0x7fffffff
		if pos == 0 && (string(kind) != settings || flags&1 != 0 || id != 0) {
			return nil
		}
		if (block != 0) != (kind == 9) || block != 0 && id != block {
			return at
		}
		if kind == 1 || kind == 5 || kind == 9 {
			block = id
			if flags&4 != 0 {
				block = 0
			} else if id == 0 {
				return at
			}
		}
		pos += frameHead + length
		if pos > len(b) {
			return at
		}
		if block == 0 {
			at = append(at, pos)
		}
	}
	return at
}

// script is a connection that reads and writes in given pieces.
type script struct {
	net.Conn
	in     []byte
	pieces []byte // sizes of reads and writes
	out    bytes.Buffer
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(s.in))
	if len(s.pieces) > 0 {
		n = min(n, int(s.pieces[0])+1)
		s.pieces = s.pieces[1:]
	}
	n = copy(p, s.in[:n])
	s.in = s.in[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error)    { return s.out.Write(p) }
func (*script) SetReadDeadline(time.Time) error  { return nil }
func (*script) SetWriteDeadline(time.Time) error { return nil }
func (*script) Close() error                     { return nil }
func (s *script) pass(h *http2Conn, out []byte) { // writes out in pieces
	for len(out) > 0 {
		n := len(out)
		if len(s.pieces) > 0 {
			n = min(n, int(s.pieces[0])+1)
			s.pieces = s.pieces[1:]
		}
		if k, err := h.Write(out[:n]); k != n || err != nil {
			panic("a write was cut")
		}
		out = out[n:]
	}
}

// alone makes an http2Conn on s that is not in any server's books.
func alone(s *script) *http2Conn {
	return newHTTP2Conn(&conn{Conn: s, tracker: newTracker(), server: &Server{goodbye: make(chan struct{})}}, s)
}

// inserted finds the one place where got has extra, and reports whether got is want
// without it.
func inserted(got, want []byte, extra string) (at int, ok bool) {
	if bytes.Equal(got, want) {
		return -1, true
	}
	for at := range len(want) + 1 {
		if bytes.HasPrefix(got[at:], []byte(extra)) && bytes.Equal(got[:at], want[:at]) && bytes.Equal(got[at+len(extra):], want[at:]) {
			return at, true
		}
		if at >= len(got) {
			break
		}
	}
	return 0, false
}

const (
	settingsFrame = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// A GET of http://test/ (RFC 7541, appendix A).
	getBlock  = "\x82\x86\x84\x41\x04test"
	postBlock = "\x83\x86\x84\x41\x04test\x5c\x013" // content-length: 3
)

var pongFrame = frame(framePing, flagAck, 0, goodbyePing)

// All bytes pass unchanged, and a goodbye is put in between two frames
// only, at the first such place after it was asked for.
func FuzzHTTP2Conn(f *testing.F) {
	block := frame(frameHeaders, flagEndStream, 1, getBlock) + frame(frameContinuation, 0, 1, "") + frame(frameContinuation, flagEndHeaders, 1, "")
	f.Add([]byte(settingsFrame+block+pongFrame), []byte{0, 3, 8, 200}, uint8(2), true)
	f.Add([]byte(settingsFrame+frame(frameData, 0, 1, strings.Repeat("x", 300))), []byte{8, 100}, uint8(20), false)
	f.Add([]byte(settingsFrame+pongFrame+pongFrame+block), []byte{250}, uint8(0), true)
	f.Add([]byte(settingsFrame+frame(frameGoAway, 0, 0, "\x00\x00\x00\x03\x00\x00\x00\x00")), []byte{}, uint8(3), false)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), []byte{1}, uint8(1), true)
	f.Add([]byte("\xff\xff\xff\x04\x00\x00\x00\x00\x00"), []byte{}, uint8(0), true)
	f.Fuzz(func(t *testing.T, data, pieces []byte, after uint8, ack bool) {
		places := gaps(data)

		// The writing side. The goodbye is asked for after some bytes.
		first := min(int(after), len(data))
		s := &script{pieces: slices.Clone(pieces)}
		h := alone(s)
		s.pass(h, data[:first])
		h.step.CompareAndSwap(notAsked, asked)
		h.tryWriteFirstGoAway()
		s.pass(h, data[first:])
		h.stop()
		at, ok := inserted(s.out.Bytes(), data, firstGoAway)
		if !ok {
			t.Fatalf("wrote %q for %q", s.out.Bytes(), data)
		}
		checkPlace(t, data, places, at, first)

		// The reading side. The implementation is told after some bytes, or the client
		// acknowledges by a PING in data.
		s = &script{in: slices.Clone(data), pieces: slices.Clone(pieces)}
		h = alone(s)
		first = 0
		if len(data) > int(after) {
			first = int(after)
		}
		if ack {
			h.step.Store(waiting)
		}
		var got []byte
		for buf := make([]byte, 1+int(after)); ; {
			if !ack && len(got) >= first && h.step.Load() == notAsked {
				h.step.Store(ending)
				h.wakeReader()
			}
			n, err := h.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil {
				break
			}
		}
		h.mu.Lock()
		seen := h.wait != nil
		h.mu.Unlock()
		h.stop()
		at, ok = inserted(got, data, clientGoAway)
		if !ok {
			t.Fatalf("read %q of %q", got, data)
		}
		if at >= 0 && !slices.Contains(places, at) {
			t.Fatalf("told at %d of %q, want one of %v", at, data, places)
		}
		pong := bytes.Index(data, []byte(pongFrame))
		if ack && !seen && slices.Contains(places, pong) && slices.Contains(places, pong+len(pongFrame)) {
			t.Fatalf("the acknowledgement at %d of %q was not seen", pong, data)
		}
	})
}

// checkPlace checks that the first GOAWAY stands at the first gap from first on.
func checkPlace(t *testing.T, data []byte, places []int, at, first int) {
	t.Helper()
	for _, place := range places {
		if place < first {
			continue
		}
		if bytes.Contains(data[:place], []byte("\x07")) && at < 0 {
			return // the implementation may have sent GOAWAY itself
		}
		if at != place {
			t.Fatalf("GOAWAY at %d of %q, want %d", at, data, place)
		}
		return
	}
	if at >= 0 {
		t.Fatalf("GOAWAY at %d of %q, which has no such place", at, data)
	}
}

// A goodbye that is asked for in the middle of a header block or of a frame waits
// for its end, and does not wait for the end of the write.
func TestGoodbyeWaitsForTheFrame(t *testing.T) {
	head := frame(frameHeaders, 0, 1, "block")
	rest := frame(frameContinuation, flagEndHeaders, 1, "block")
	body := frame(frameData, flagEndStream, 1, "body")
	for _, test := range []struct{ name, before, then, after string }{
		{"frame", settingsFrame + body[:3], body[3:], body},
		{"payload", settingsFrame + body[:11], body[11:], body},
		{"header block", settingsFrame + head, rest, body},
		{"first frame", settingsFrame[:5], settingsFrame[5:], head + rest},
		{"nothing", "", settingsFrame, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &script{}
			h := alone(s)
			s.pass(h, []byte(test.before))
			h.step.Store(asked)
			h.tryWriteFirstGoAway()
			if s.out.String() != test.before {
				t.Fatalf("%q", s.out.String())
			}
			s.pass(h, []byte(test.then+test.after))
			h.stop()
			if want := test.before + test.then + firstGoAway + test.after; s.out.String() != want {
				t.Errorf("wrote %q, want %q", s.out.String(), want)
			}
		})
	}
}

// After a GOAWAY of the implementation none of ours follows: it would name a higher
// stream (RFC 9113, section 6.8).
func TestNoGoodbyeAfterGoAway(t *testing.T) {
	s := &script{}
	h := alone(s)
	sent := settingsFrame + frame(frameGoAway, 0, 0, "\x00\x00\x00\x03\x00\x00\x00\x00")
	s.pass(h, []byte(sent))
	h.step.Store(asked)
	h.tryWriteFirstGoAway()
	if s.out.String() != sent || !isClosed(h.ended) {
		t.Errorf("wrote %q", s.out.String())
	}
}

// A connection that does not carry HTTP/2 passes unchanged and gets no goodbye.
func TestForeignBytesPass(t *testing.T) {
	const text = "HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n"
	s := &script{in: []byte("GET / HTTP/1.1\r\n\r\n")}
	h := alone(s)
	h.step.Store(asked)
	s.pass(h, []byte(text))
	got, err := io.ReadAll(h)
	if s.out.String() != text || string(got) != "GET / HTTP/1.1\r\n\r\n" || err != nil || !h.notHTTP2.Load() {
		t.Errorf("%q, %q, %v", s.out.String(), got, err)
	}
}

// Following frames allocates nothing.
func TestFramesAllocateNothing(t *testing.T) {
	s := &script{}
	h := alone(s)
	s.pass(h, []byte(settingsFrame))
	write := []byte(frame(frameHeaders, flagEndHeaders, 1, getBlock) + frame(frameData, flagEndStream, 1, "body"))
	s.out.Grow(1 << 20)
	read := []byte(frame(frameHeaders, flagEndHeaders|flagEndStream, 1, getBlock))
	buf := make([]byte, 64)
	if n := testing.AllocsPerRun(1000, func() {
		s.out.Reset()
		_, _ = h.Write(write)
		s.in = read
		_, _ = h.Read(buf[:frameHead])
		_, _ = h.Read(buf)
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

// Read deadlines of the HTTP/2 implementation survive a goodbye that wakes a read.
func TestGoAwayKeepsReadDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		h := newHTTP2Conn(&conn{Conn: near, tracker: newTracker()}, near)
		began := time.Now()
		_ = h.SetReadDeadline(began.Add(time.Hour))
		h.step.Store(waiting)
		read := make(chan error, 1)
		go func() { _, err := h.Read(make([]byte, 1)); read <- err }()
		synctest.Wait()
		h.wakeReader()
		if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A goodbye does not wait for a client that reads nothing.
func TestGoAwayDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		h := newHTTP2Conn(&conn{Conn: near, tracker: newTracker()}, near)
		h.out.begun = true
		time.Sleep(goAwayWait)
		h.beginGoodbye()
		synctest.Wait() // the goodbye waits, and this does not
		far.Close()
	})
}
