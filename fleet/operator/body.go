package operator

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
)

// viewerBody is how many bytes a request of a viewer or an inspector may have: they only ask. An
// operator's may have [Config.MaxBody].
const viewerBody = 64 << 10

// Limits of time.
const (
	bodyTime  = 20 * time.Second // for a body to arrive
	writeTime = 30 * time.Second // for one write; after that the caller counts as not reading
)

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

// readBody reads the whole body of r, within the limit of the caller's role, and replaces it with a
// copy in memory. So a faulty body is refused before any service is called. When the whole body has
// arrived it clears the deadline that guard has set, because on HTTP/1 the deadline would end the
// response too. A body that failed keeps it: otherwise reading its rest could take forever.
func (s *Server) readBody(out *http.ResponseController, r *http.Request, who Principal) error {
	if encoding := compression(r); encoding != "" {
		return Errorf(connect.CodeUnimplemented, ReasonCompressed, "",
			"the request is compressed with %s: send it without compression", clip(encoding, 64))
	}
	if q := r.URL.Query(); isRPC(r.URL.Path) && r.Method == http.MethodGet && q.Get("base64") == "1" {
		if _, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(q.Get("message"), "=")); err != nil {
			return malformed("message", "message is not base64 as of RFC 4648, section 5: %v", err)
		}
	}
	if r.Body == nil || r.Body == http.NoBody || strings.HasPrefix(r.URL.Path, "/grpc.reflection.") {
		return nil // reflection reads one small message after the other
	}
	limit := s.cfg.MaxBody
	if who.most() != RoleOperator { // before the body is parsed: parsed, it takes many times its size
		limit = min(limit, viewerBody)
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return Errorf(connect.CodeInvalidArgument, ReasonBodyTooLarge, "",
			"the body is larger than %d bytes, the limit for your role", limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return malformed("", "the body did not arrive within %v", bodyTime)
	case err != nil:
		return malformed("", "the body cannot be read: %s", clip(err.Error(), maxName))
	}
	_ = out.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// deadlineWriter gives every write of a response its own deadline, where the connection
// supports it (HTTP/1.1 and 2 do). So the server disconnects a caller that does
// not read, but not a caller that reads slowly.
type deadlineWriter struct {
	http.ResponseWriter
	out *http.ResponseController
}

func (w *deadlineWriter) Write(b []byte) (int, error) {
	_ = w.out.SetWriteDeadline(time.Now().Add(writeTime))
	return w.ResponseWriter.Write(b)
}

func (w *deadlineWriter) Flush() {
	_ = w.out.SetWriteDeadline(time.Now().Add(writeTime))
	w.out.Flush()
}

func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// places bounds how many watches all callers have open at one time, and how many each of them.
type places struct {
	all, each int

	mu   sync.Mutex // guards the fields below
	held int
	by   map[string]int // by caller
}

// take takes a place for a caller, and returns false when there is none.
func (p *places) take(caller string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == p.all || p.by[caller] == p.each {
		return false
	}
	p.held++
	p.by[caller]++
	return true
}

func (p *places) give(caller string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held--
	if p.by[caller]--; p.by[caller] == 0 {
		delete(p.by, caller)
	}
}

// limiters are the token buckets of callers.
type limiters struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex // guards by
	by map[string]*rate.Limiter
}

// take takes a token of a caller, and returns false when there is none.
func (l *limiters) take(caller string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.by[caller]
	if b == nil {
		b = rate.NewLimiter(l.rate, l.burst)
		l.by[caller] = b
	}
	return b.Allow()
}
