package operator

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Limits of bodies, in bytes. Only [Config.MaxBody] is larger.
const (
	viewerBody = 64 << 10 // a viewer only asks
	plainBody  = 2 << 20  // an operator's request that carries no code and no message
)

// Limits of time.
const (
	bodyTime  = 20 * time.Second // for a body to arrive
	writeTime = 30 * time.Second // for one write; after that the caller counts as not reading
)

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
	ofLetter := strings.HasPrefix(path, "/workers/") && strings.Contains(path, "/deadletters/")
	return ofLetter && strings.HasSuffix(path, "/redrive") || strings.HasSuffix(path, ".WorkerService/RedriveEdited")
}

// compression returns how a request, or a message in it, is compressed, "" for not at all. The
// server decompresses nothing: the size of a request is what arrives.
func compression(r *http.Request) string {
	all := []string{
		r.Header.Get("Content-Encoding"),
		r.Header.Get("Grpc-Encoding"),
		r.Header.Get("Connect-Content-Encoding"),
	}
	if isRPC(r.URL.Path) {
		all = append(all, r.URL.Query().Get("compression")) // of Connect with GET
	}
	for _, encoding := range all {
		if encoding != "" && !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
			return encoding
		}
	}
	return ""
}

// readBody reads the body of r, within the limit of the caller's role and the memory of all
// bodies, and replaces it with what it has read: it is an error before a service is called.
// The caller calls free when the request has been handled.
func (s *Server) readBody(r *http.Request, who Principal) (free func(), err error) {
	free = func() {}
	if encoding := compression(r); encoding != "" {
		return free, Errorf(connect.CodeUnimplemented, ReasonCompressed, "",
			"the request is compressed with %s: send it without compression", clip(encoding, 64))
	}
	if r.Body == nil || r.Body == http.NoBody || strings.HasPrefix(r.URL.Path, "/grpc.reflection.") {
		return free, nil // reflection reads one small message after the other
	}
	limit, held := s.bodyLimit(r, who.most()), int64(0)
	free = func() { s.bodies.give(who.id(), held) }
	var body bytes.Buffer
	for step := int64(512); err == nil; step = min(2*step, 32<<10) { // most requests are small
		if !s.bodies.take(who.id(), step) {
			return free, Errorf(connect.CodeResourceExhausted, ReasonRateLimited, "",
				"too many large requests at once: try again in a moment")
		}
		held += step
		_, err = io.CopyN(&body, r.Body, step)
		if int64(body.Len()) > limit {
			return free, Errorf(connect.CodeInvalidArgument, ReasonBodyTooLarge, "",
				"the body is larger than %d bytes, the limit for this request and your role", limit)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
	case errors.Is(err, os.ErrDeadlineExceeded):
		return free, malformed("", "the body did not arrive within %v", bodyTime)
	default:
		return free, malformed("", "the body cannot be read: %s", clip(err.Error(), maxName))
	}
	r.Body = io.NopCloser(&body)
	r.ContentLength = int64(body.Len())
	r.TransferEncoding = nil
	r.Header.Set("Content-Length", strconv.Itoa(body.Len()))
	return free, nil
}

// deadlineWriter gives every write of a response its own deadline, where the connection
// supports it (HTTP/1.1 and 2 do). So the server disconnects a caller that does
// not read, but not one that reads slowly.
type deadlineWriter struct {
	http.ResponseWriter
	out *http.ResponseController
}

func (p *deadlineWriter) Write(b []byte) (int, error) {
	_ = p.out.SetWriteDeadline(time.Now().Add(writeTime))
	return p.ResponseWriter.Write(b)
}

func (p *deadlineWriter) Flush() {
	_ = p.out.SetWriteDeadline(time.Now().Add(writeTime))
	p.out.Flush()
}

func (p *deadlineWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// timed sets a deadline for the body. It clears the deadline when the whole body
// has arrived, because on HTTP/1 it would end the response too. It keeps the
// deadline for a body that failed; otherwise reading the rest of that body could
// take forever.
func timed(out *http.ResponseController, body io.ReadCloser) io.ReadCloser {
	_ = out.SetReadDeadline(time.Now().Add(bodyTime))
	return &timedBody{ReadCloser: body, out: out}
}

type timedBody struct {
	io.ReadCloser
	out    *http.ResponseController
	failed error // the error of a Read, returned by every later one
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.failed = err
		if errors.Is(err, io.EOF) {
			_ = b.out.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}
