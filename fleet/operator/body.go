package operator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
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

// readBody reads the whole body of r, within the limit of the caller's role and the memory of all
// bodies, and replaces it with a copy in memory. So a faulty body is refused before any service is
// called. The caller calls release when the request has been handled.
func (s *Server) readBody(r *http.Request, who Principal) (release func(), err error) {
	release = func() {}
	if encoding := compression(r); encoding != "" {
		return release, Errorf(connect.CodeUnimplemented, ReasonCompressed, "",
			"the request is compressed with %s: send it without compression", clip(encoding, 64))
	}
	if r.Body == nil || r.Body == http.NoBody || strings.HasPrefix(r.URL.Path, "/grpc.reflection.") {
		return release, nil // reflection reads one small message after the other
	}
	limit, held := s.cfg.MaxBody, int64(0)
	if who.most() != RoleOperator { // before the body is parsed: parsed, it takes many times its size
		limit = min(limit, viewerBody)
	}
	release = func() { s.bodies.give(who.id(), held) }
	var body bytes.Buffer
	for step := int64(512); err == nil; step = min(2*step, 32<<10) { // most requests are small
		if !s.bodies.take(who.id(), step) {
			return release, Errorf(connect.CodeResourceExhausted, ReasonRateLimited, "",
				"too many large requests at once: try again in a moment")
		}
		held += step
		_, err = io.CopyN(&body, r.Body, step)
		if int64(body.Len()) > limit {
			return release, Errorf(connect.CodeInvalidArgument, ReasonBodyTooLarge, "",
				"the body is larger than %d bytes, the limit for your role", limit)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
	case errors.Is(err, os.ErrDeadlineExceeded):
		return release, malformed("", "the body did not arrive within %v", bodyTime)
	default:
		return release, malformed("", "the body cannot be read: %s", clip(err.Error(), maxName))
	}
	r.Body = io.NopCloser(&body)
	r.ContentLength = int64(body.Len())
	r.TransferEncoding = nil
	r.Header.Set("Content-Length", strconv.Itoa(body.Len()))
	return release, nil
}

// deadlineWriter gives every write of a response its own deadline, where the connection
// supports it (HTTP/1.1 and 2 do). So the server disconnects a caller that does
// not read, but not a caller that reads slowly.
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
// has arrived, because on HTTP/1 the deadline would end the response too. It keeps the
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

// quota bounds how much all callers hold at one time, and how much each of them: the bytes
// of bodies, open watches, scans, and reviews of tokens.
type quota struct {
	all, each int64

	mu    sync.Mutex // guards the fields below
	held  int64
	by    map[string]int64 // by caller
	given chan struct{}    // closed and replaced when something is given back
}

func newQuota(all, each int64) *quota {
	return &quota{all: all, each: each, by: map[string]int64{}, given: make(chan struct{})}
}

// take takes n for a caller, and returns false when that is too much.
func (q *quota) take(caller string, n int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held+n > q.all || q.by[caller]+n > q.each {
		return false
	}
	q.held += n
	q.by[caller] += n
	return true
}

// wait is take for a caller that waits, until ctx ends.
func (q *quota) wait(ctx context.Context, caller string, n int64) error {
	for {
		q.mu.Lock()
		given := q.given
		q.mu.Unlock()
		if q.take(caller, n) {
			return nil
		}
		select {
		case <-given:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *quota) give(caller string, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.given)
	q.given = make(chan struct{})
	q.held -= n
	if q.by[caller] -= n; q.by[caller] == 0 {
		delete(q.by, caller)
	}
}

// maxScans is how many scans of one caller run at one time. The others wait.
const maxScans = 4

// limiters are token buckets by name, in bounded memory.
type limiters struct {
	rate  rate.Limit
	burst int

	mu    sync.Mutex // guards the fields below
	names map[string]*rate.Limiter
}

func newLimiters(perSecond float64, burst int) *limiters {
	return &limiters{rate: rate.Limit(perSecond), burst: burst, names: map[string]*rate.Limiter{}}
}

// maxLimiters is how many buckets there may be before idle ones are removed.
const maxLimiters = 4096

// take takes one token. When there is none it returns the time until the next.
func (l *limiters) take(name string) (time.Duration, bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.names[name]
	if b == nil {
		if len(l.names) >= maxLimiters {
			// A full bucket equals a new one.
			maps.DeleteFunc(l.names, func(_ string, old *rate.Limiter) bool { return old.TokensAt(now) >= float64(l.burst) })
		}
		if len(l.names) >= maxLimiters {
			clear(l.names)
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.names[name] = b
	}
	if b.AllowN(now, 1) {
		return 0, true
	}
	return time.Duration(float64(time.Second) / float64(l.rate)), false
}
