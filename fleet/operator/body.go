package operator

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"
)

// Limits of bodies, in bytes after decompression. Only [Config.MaxBody] is larger.
const (
	viewerBody = 64 << 10 // a viewer only asks
	plainBody  = 2 << 20  // an operator's request that carries no code and no message
)

// bodies bounds the memory of all bodies that are being read or handled at one time.
// One caller gets at most half of it.
type bodies struct {
	most int64 // bytes

	mu   sync.Mutex // guards the fields below
	held int64
	each map[string]int64 // by caller
}

// take takes n bytes for a caller when they are free.
func (b *bodies) take(caller string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held+n > b.most || b.each[caller]+n > b.most/2 {
		return false
	}
	b.held += n
	b.each[caller] += n
	return true
}

func (b *bodies) give(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.each[caller] -= n; b.each[caller] == 0 {
		delete(b.each, caller)
	}
}

// bodyLimit returns how large the body of a request may be. The role decides before
// the body is parsed, because a parsed body takes many times its size.
func (s *Server) bodyLimit(r *http.Request, role Role) int64 {
	switch {
	case role != RoleOperator:
		return min(s.cfg.MaxBody, viewerBody)
	case carriesCode(r.URL.Path), carriesLetter(r.URL.Path):
		return s.cfg.MaxBody
	}
	return min(s.cfg.MaxBody, plainBody)
}

// carriesCode reports whether the body of a request to path may have the code of a
// worker.
func carriesCode(path string) bool {
	return path == "/workers" || strings.HasPrefix(path, "/workers/") && strings.HasSuffix(path, "/code") ||
		strings.HasSuffix(path, ".WorkerService/CreateWorker") || strings.HasSuffix(path, ".WorkerService/LoadCode")
}

// carriesLetter reports whether the body of a request to path may have the data of a dead
// letter.
func carriesLetter(path string) bool {
	return strings.HasPrefix(path, "/workers/") && strings.Contains(path, "/deadletters/") && strings.HasSuffix(path, "/redrive") ||
		strings.HasSuffix(path, ".WorkerService/RedriveEdited")
}

// whole reads the body of r, decompresses it, and replaces it with the plain bytes, so
// that no decoder behind it decompresses anything. It does so for every protocol: gzip
// as the encoding of a body (REST, Connect), and gzip of each message in an envelope
// (gRPC, gRPC-Web, Connect's streams). The caller calls free when the request has been
// handled.
//
// The size counts decompressed bytes, and reading ends with the time limit of a body.
func (s *Server) whole(r *http.Request, who Principal) (free func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || strings.HasPrefix(r.URL.Path, "/grpc.reflection.") {
		return func() {}, nil // reflection reads one small message after the other
	}
	in := &account{caller: who.Method + " " + who.Name, limit: s.bodyLimit(r, who.most()), all: s.bodies}
	defer func() {
		if err != nil {
			in.close()
			err = bodyError(err, in.limit)
		}
	}()
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	media = strings.TrimSpace(strings.ToLower(media))
	var plain []byte
	switch encoding := strings.TrimSpace(strings.ToLower(r.Header.Get("Content-Encoding"))); {
	case strings.HasPrefix(media, "application/grpc") || strings.HasPrefix(media, "application/connect+"):
		plain, err = in.envelopes(r.Body)
	case encoding == "gzip":
		plain, err = in.inflate(r.Body, new(int64))
		r.Header.Del("Content-Encoding")
	default: // the services refuse an encoding that they do not know
		plain, err = in.read(r.Body, new(int64))
	}
	if err != nil {
		return nil, err
	}
	in.keep(int64(len(plain))) // a watch holds it for its life
	r.Body = io.NopCloser(bytes.NewReader(plain))
	r.ContentLength = int64(len(plain))
	r.TransferEncoding = nil
	r.Header.Set("Content-Length", strconv.Itoa(len(plain)))
	return in.close, nil
}

var (
	errTooLarge = errors.New("the body is too large")
	errBusy     = errors.New("too many large requests at once")
	errGzip     = errors.New("the body is not gzip")
	errEnvelope = errors.New("the body is not a sequence of whole messages")
)

// bodyError returns the error for the caller.
func bodyError(err error, limit int64) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, errTooLarge), errors.As(err, &tooLarge):
		return Errorf(connect.CodeInvalidArgument, ReasonBodyTooLarge, "", "the body is larger than %d bytes, decompressed: that is the most for this request and your role", limit)
	case errors.Is(err, errBusy):
		return Errorf(connect.CodeResourceExhausted, ReasonRateLimited, "", "too many large requests at once: try again in a moment")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Errorf(connect.CodeInvalidArgument, ReasonMalformed, "", "the body did not arrive within %v", bodyTime)
	case errors.Is(err, errGzip), errors.Is(err, errEnvelope):
		return Errorf(connect.CodeInvalidArgument, ReasonMalformed, "", "%v", err)
	}
	return Errorf(connect.CodeInvalidArgument, ReasonMalformed, "", "the body cannot be read: %s", clip(err.Error(), maxName))
}

// account reads one body, within its own limit and that of all bodies.
type account struct {
	caller string
	limit  int64
	all    *bodies
	held   int64
}

func (a *account) close() {
	a.all.give(a.caller, a.held)
	a.held = 0
}

// keep gives back what is held beyond n bytes.
func (a *account) keep(n int64) {
	a.all.give(a.caller, a.held-n)
	a.held = n
}

// read reads all of from, which may have at most limit bytes together with those that
// used counts.
func (a *account) read(from io.Reader, used *int64) ([]byte, error) {
	var out bytes.Buffer
	for step := int64(512); ; step = min(2*step, 32<<10) { // most requests are small
		if !a.all.take(a.caller, step) {
			return nil, errBusy
		}
		a.held += step
		n, err := io.CopyN(&out, from, step)
		*used += n
		switch {
		case *used > a.limit:
			return nil, errTooLarge
		case errors.Is(err, io.EOF):
			return out.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
}

func (a *account) inflate(from io.Reader, used *int64) ([]byte, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, notGzip(err)
	}
	plain, err := a.read(z, used)
	if err != nil {
		return nil, notGzip(err)
	}
	return plain, nil
}

// notGzip hides the errors of the decoder behind errGzip, and passes on all others.
func notGzip(err error) error {
	var corrupt flate.CorruptInputError
	if errors.As(err, &corrupt) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errGzip
	}
	return err
}

// The form of an envelope: one byte of flags, four of the length, the message.
const (
	envelopeHead       = 5
	envelopeCompressed = 1
)

// envelopes reads all messages and returns them without compression.
func (a *account) envelopes(from io.Reader) ([]byte, error) {
	packed, err := a.read(from, new(int64))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	var used int64
	for len(packed) > 0 {
		if len(packed) < envelopeHead {
			return nil, errEnvelope
		}
		flags, size := packed[0], int64(binary.BigEndian.Uint32(packed[1:envelopeHead]))
		packed = packed[envelopeHead:]
		if size > int64(len(packed)) {
			return nil, errEnvelope
		}
		message := packed[:size]
		packed = packed[size:]
		if flags&envelopeCompressed != 0 {
			if message, err = a.inflate(bytes.NewReader(message), &used); err != nil {
				return nil, fmt.Errorf("a message: %w", err)
			}
			flags &^= envelopeCompressed
		}
		out.WriteByte(flags)
		_ = binary.Write(&out, binary.BigEndian, uint32(len(message))) // a Buffer never fails
		out.Write(message)
	}
	return out.Bytes(), nil
}
