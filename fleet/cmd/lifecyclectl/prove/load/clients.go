package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// target is the server.
type target struct{ Plan }

func (t *target) url(path string) string {
	if t.TLS {
		return "https://" + t.Addr + path
	}
	return "http://" + t.Addr + path
}

// tlsConfig trusts every certificate: the load asks whether answers come, and not
// who gives them.
func (t *target) tlsConfig(protocol string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // the certificate is for names that the cluster's own clients use
		NextProtos:         []string{protocol},
		MinVersion:         tls.VersionTLS12,
	}
}

// conn writes HTTP/1.1 by hand. Like the simplest client, it sends without
// checking whether the server has closed.
type conn struct {
	net.Conn
	reader *bufio.Reader
	last   time.Time // when the latest answer was read; zero before it
}

func (t *target) dial(limit time.Duration) (*conn, error) {
	c, err := net.DialTimeout("tcp", t.Addr, limit)
	if err != nil {
		return nil, err
	}
	if t.TLS {
		c = tls.Client(c, t.tlsConfig("http/1.1"))
	}
	return &conn{Conn: c, reader: bufio.NewReader(c)}, nil
}

// lost is the loss of a request for a reason.
func lost(how How, doing string, err error) Loss {
	return Loss{How: how, Why: strings.TrimPrefix(doing+": "+err.Error(), ": ")}
}

// get sends one request and reads its answer to the end. over reports whether the
// server ends the connection.
func (t *target) get(c *conn, limit time.Duration) (over bool, l Loss) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return true, lost(Closed, "", err)
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: lifecyclectl-prove\r\n\r\n", t.Get, t.Addr); err != nil {
		return true, lost(howOf(err), "send", err)
	}
	if _, err := c.reader.Peek(1); err != nil {
		return true, lost(howOf(err), "wait for the answer", err)
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return true, lost(cutOrLate(err), "read the answer", err)
	}
	l = readAnswer(resp)
	c.last = time.Now()
	return resp.Close || l.How != "" && l.How != Status, l
}

// readAnswer reads an answer to its end. A status of 500 or more is no answer.
func readAnswer(resp *http.Response) Loss {
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return lost(cutOrLate(err), "read the answer's body", err)
	}
	return judge(resp)
}

func judge(resp *http.Response) (l Loss) {
	if resp.StatusCode >= http.StatusInternalServerError {
		l.How, l.Why = Status, fmt.Sprintf("status %d", resp.StatusCode)
	}
	return l
}

// howOf names the error of a connection that has not answered yet.
func howOf(err error) How {
	var slow net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return Unreachable
	case strings.Contains(err.Error(), "GOAWAY"):
		return GoAway
	case errors.As(err, &slow) && slow.Timeout(), errors.Is(err, context.DeadlineExceeded):
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return Unreachable
		}
		return Late
	}
	return Closed
}

func cutOrLate(err error) How {
	if how := howOf(err); how == Late {
		return how
	}
	return Cut
}

func (t *target) tryGet() error {
	c, err := t.dial(tryIn)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, l := t.get(c, tryIn); l.How != "" {
		return errors.New(l.Why)
	}
	return nil
}

// kept keeps its connection for as long as the server allows it.
func (t *target) kept(ctx context.Context, report func(Loss)) {
	var c *conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	repeat(ctx, report, gap, func() Loss {
		if c == nil {
			var err error
			if c, err = t.dial(AnswerIn); err != nil {
				return lost(howOf(err), "", err)
			}
		}
		before := c.last
		idle := time.Since(before)
		over, l := t.get(c, AnswerIn)
		if l.Kept = !before.IsZero(); l.Kept {
			l.Idle = idle
		}
		if over {
			c.Close()
			c = nil
		}
		return l
	})
}

// freshEvery is the mean time between two new connections of all clients together.
// Linux goes through its local ports in about 3,000 connections to one address. A port
// that is used again within 2 minutes may match what the node remembers of a connection
// to a pod that is gone; the request would be lost for that reason, and not for the stop.
const freshEvery = 42 * time.Millisecond

// fresh opens a connection for every request.
func (t *target) fresh(ctx context.Context, report func(Loss)) {
	idle := func() time.Duration { return rand.N(2 * freshEvery * time.Duration(t.Clients)) }
	repeat(ctx, report, idle, func() Loss {
		c, err := t.dial(AnswerIn)
		if err != nil {
			return lost(howOf(err), "", err)
		}
		defer c.Close()
		_, l := t.get(c, AnswerIn)
		return l
	})
}

// newHTTP2 returns net/http's client of HTTP/2: over TLS, or with prior knowledge.
func (t *target) newHTTP2() *http.Transport {
	protocols := new(http.Protocols)
	if t.TLS {
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	dial := (&net.Dialer{Timeout: AnswerIn}).DialContext
	return &http.Transport{Protocols: protocols, TLSClientConfig: t.tlsConfig("h2"), DialContext: dial}
}

// once is a body that can be read once: without GetBody, net/http does not repeat
// a request that the server may have seen.
type once struct{ io.Reader }

// post sends one request. It reports whether the connection was used before.
//
// Sometimes net/http gives a request up before it has written anything, because its
// connection was asked to go in the moment between the choice of the connection and
// the first frame. It repeats such a request only when that has a GetBody. No server
// can prevent this, and nothing was sent, so post tries again.
func (t *target) post(ctx context.Context, client *http.Transport, limit time.Duration) (l Loss) {
	for range 3 {
		var wrote atomic.Bool
		trace := &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }}
		l = t.postOnce(httptrace.WithClientTrace(ctx, trace), client, limit)
		if l.How == "" || wrote.Load() || !strings.Contains(l.Why, "cannot rewind body after connection loss") {
			break
		}
	}
	return l
}

func (t *target) postOnce(ctx context.Context, client *http.Transport, limit time.Duration) (l Loss) {
	// Not under the load's context: a request that was sent is awaited.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	isKept := false
	defer func() { l.Kept = isKept }()
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { isKept = got.Reused }}
	ctx = httptrace.WithClientTrace(ctx, trace)
	const text = "prove"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url(t.Post), once{strings.NewReader(text)})
	if err != nil {
		return lost(Closed, "", err)
	}
	req.ContentLength = int64(len(text))
	req.Header.Set("User-Agent", "lifecyclectl-prove")
	resp, err := client.RoundTrip(req)
	if err != nil {
		return lost(howOf(err), "", err)
	}
	return readAnswer(resp)
}

func (t *target) tryPost(ctx context.Context) error {
	client := t.newHTTP2()
	defer client.CloseIdleConnections()
	if l := t.post(ctx, client, tryIn); l.How != "" {
		return fmt.Errorf("POST %s: %s", t.Post, l.Why)
	}
	return nil
}

// http2 keeps its connection until the server sends GOAWAY.
func (t *target) http2(ctx context.Context, report func(Loss)) {
	client := t.newHTTP2()
	defer client.CloseIdleConnections()
	last := time.Now()
	repeat(ctx, report, gap, func() Loss {
		idle := time.Since(last)
		l := t.post(ctx, client, AnswerIn)
		l.Idle, last = idle, time.Now()
		return l
	})
}

// open asks for the stream on a connection of its own.
func (t *target) open(ctx context.Context) (*http.Response, error) {
	client := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: t.tlsConfig("http/1.1"),
		DialContext: (&net.Dialer{Timeout: AnswerIn}).DialContext, ResponseHeaderTimeout: AnswerIn,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url(t.Stream), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	return client.RoundTrip(req)
}

func (t *target) tryStream(ctx context.Context) error {
	resp, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		return fmt.Errorf("status %d and content type %q, want 200 and text/event-stream", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return nil
}

// stream keeps one stream open, and opens the next when the server ends it. It is
// lost when it is cut.
func (t *target) stream(ctx context.Context, report func(Loss)) {
	repeat(ctx, report, func() time.Duration { return time.Second }, func() (l Loss) {
		resp, err := t.open(ctx)
		if err != nil {
			l = lost(howOf(err), "", err)
		} else {
			defer resp.Body.Close()
			if l = judge(resp); l.How == "" {
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					l = lost(Cut, "", err)
				}
			}
		}
		if ctx.Err() != nil { // this side has ended it
			return Loss{}
		}
		return l
	})
}
