package httpdrain

import "encoding/binary"

// clientPreface is what a client sends before its first frame (RFC 9113, section 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frameHead is the length of a frame's header (RFC 9113, section 4.1).
const frameHead = 9

// The types and flags of frames that matter here (RFC 9113, section 6).
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	framePush         = 0x5
	framePing         = 0x6
	frameGoAway       = 0x7
	frameContinuation = 0x9

	flagEndStream  = 0x1 // of DATA and HEADERS
	flagAck        = 0x1 // of SETTINGS and PING
	flagEndHeaders = 0x4
)

// frames parses one direction of an HTTP/2 connection, frame by frame, and knows where
// another frame may be inserted. The bytes come from the peer: once they are not HTTP/2,
// nothing may be inserted any more.
//
// It is not safe for concurrent use.
type frames struct {
	before          string // bytes that must still pass before the first frame
	inUpgradeAnswer bool   // the HTTP/1.1 response to the upgrade passes first; it ends with an empty line
	lineEndSeen     int    // bytes of that line's end that have passed

	head        [frameHead]byte // of the latest frame
	headSeen    int             // bytes of head that have passed; 0 between two frames
	payloadLeft int             // bytes of the payload that have not passed
	data        [8]byte         // payload of the latest PING

	begun    bool   // the first frame has passed
	block    uint32 // the stream whose header block has not ended (RFC 9113, section 4.3)
	notHTTP2 bool   // this is not HTTP/2
}

// advance parses p to the end of a frame, or to the end of p. It returns the number of
// bytes parsed, which is at least one unless p is empty, and whether a frame has ended
// there. kind, flag and stream then describe that frame.
func (f *frames) advance(p []byte) (n int, whole bool) {
	n = f.passStart(p)
	if f.notHTTP2 {
		return len(p), false
	}
	if f.headSeen < frameHead {
		k := copy(f.head[f.headSeen:], p[n:])
		f.headSeen += k
		n += k
		if f.headSeen < frameHead {
			return n, false
		}
		f.payloadLeft = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		if !f.plausible() {
			f.notHTTP2 = true
			return len(p), false
		}
	}
	k := min(f.payloadLeft, len(p)-n)
	if f.kind() == framePing && f.payloadLeft <= len(f.data) {
		copy(f.data[len(f.data)-f.payloadLeft:], p[n:n+k])
	}
	f.payloadLeft -= k
	n += k
	if f.payloadLeft > 0 {
		return n, false
	}
	f.headSeen = 0
	f.begun = true
	return n, true
}

// untilQuiet returns how many bytes of p come before the end of the frame that ends the
// last of the open streams, and whether one does.
func (f frames) untilQuiet(p []byte, open *streams) (n int, found bool) {
	var ended []uint32
	for n < len(p) {
		k, whole := f.advance(p[n:])
		n += k
		if !whole || !f.endsStream() {
			continue
		}
		ended = append(ended, f.stream())
		if f.mayInsert() && open.areAllIn(ended) {
			return n, true
		}
	}
	return n, false
}

// endsStream reports whether the frame that has just passed is the last one of its stream
// in this direction.
func (f *frames) endsStream() bool {
	switch f.kind() {
	case frameHeaders, frameData:
		return f.flag(flagEndStream)
	case frameReset:
		return true
	}
	return false
}

// passStart follows the bytes before the first frame.
func (f *frames) passStart(p []byte) (n int) {
	for ; f.inUpgradeAnswer && n < len(p); n++ {
		switch p[n] {
		case "\r\n\r\n"[f.lineEndSeen]:
			f.lineEndSeen++
		case '\r':
			f.lineEndSeen = 1
		default:
			f.lineEndSeen = 0
		}
		f.inUpgradeAnswer = f.lineEndSeen < len("\r\n\r\n")
	}
	for ; f.before != "" && n < len(p); n++ {
		if p[n] != f.before[0] {
			f.notHTTP2 = true
			return n
		}
		f.before = f.before[1:]
	}
	return n
}

// plausible reports whether a frame may come here, and records header blocks. The HTTP/2
// implementation finds all other faults of a frame.
func (f *frames) plausible() bool {
	kind, id := f.kind(), f.stream()
	if !f.begun {
		return kind == frameSettings && id == 0 && !f.flag(flagAck)
	}
	inBlock := f.block != 0
	if continues := kind == frameContinuation; inBlock != continues || inBlock && id != f.block {
		return false
	}
	switch kind {
	case frameHeaders, framePush, frameContinuation:
		if f.block = id; f.flag(flagEndHeaders) {
			f.block = 0
		} else if id == 0 {
			return false
		}
	}
	return true
}

func (f *frames) kind() byte         { return f.head[3] }
func (f *frames) flag(bit byte) bool { return f.head[4]&bit != 0 }
func (f *frames) stream() uint32     { return binary.BigEndian.Uint32(f.head[5:]) &^ (1 << 31) }

// mayInsert reports whether a frame may be inserted here: behind the first frame, between
// two frames, and not into a header block.
func (f *frames) mayInsert() bool { return f.begun && f.headSeen == 0 && f.block == 0 && !f.notHTTP2 }
