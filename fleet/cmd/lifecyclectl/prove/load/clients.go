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

// get sends one request and reads its answer to the end. close reports whether the
// server ends the connection.
func (t *target) get(c *conn, limit time.Duration) (close bool, how How, err error) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return true, Closed, err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: lifecyclectl-prove\r\n\r\n", t.Get, t.Addr); err != nil {
		return true, howOf(err), fmt.Errorf("send: %w", err)
	}
	if _, err := c.reader.Peek(1); err != nil {
		return true, howOf(err), fmt.Errorf("wait for the answer: %w", err)
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return true, cutOrLate(err), fmt.Errorf("read the answer: %w", err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return true, cutOrLate(err), fmt.Errorf("read the answer's body: %w", err)
	}
	c.last = time.Now()
	how, err = judge(resp)
	return resp.Close, how, err
}

// judge takes a status of 500 or more for no answer.
func judge(resp *http.Response) (How, error) {
	if resp.StatusCode >= http.StatusInternalServerError {
		return Status, fmt.Errorf("status %d", resp.StatusCode)
	}
	return "", nil
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
	_, _, err = t.get(c, tryIn)
	return err
}

// kept keeps its connection for as long as the server allows it.
func (t *target) kept(ctx context.Context, l *call) {
	var c *conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for {
		o := outcome{sent: l.begin()}
		if c == nil {
			if c, o.err = t.dial(answerIn); o.err != nil {
				o.how = howOf(o.err)
			}
		} else if o.kept = !c.last.IsZero(); o.kept {
			o.idle = time.Since(c.last)
		}
		over := true
		if o.err == nil {
			over, o.how, o.err = t.get(c, answerIn)
		}
		l.end(o)
		if over && c != nil {
			c.Close()
			c = nil
		}
		if !pause(ctx, gap()) {
			return
		}
	}
}

// freshEvery is the mean time between two new connections of all clients together.
// Linux goes through its local ports in about 3,000 connections to one address. A port
// that is used again within 2 minutes may match what the node remembers of a connection
// to a pod that is gone; the request would be lost for that reason, and not for the stop.
const freshEvery = 42 * time.Millisecond

// fresh opens a connection for every request.
func (t *target) fresh(ctx context.Context, l *call) {
	for {
		o := outcome{sent: l.begin()}
		if c, err := t.dial(answerIn); err != nil {
			o.how, o.err = howOf(err), err
		} else {
			_, o.how, o.err = t.get(c, answerIn)
			c.Close()
		}
		l.end(o)
		if !pause(ctx, rand.N(2*freshEvery*time.Duration(t.Clients))) {
			return
		}
	}
}

// newHTTP2 returns net/http's client of HTTP/2: over TLS, or with prior knowledge.
func (t *target) newHTTP2() *http.Transport {
	protocols := new(http.Protocols)
	if t.TLS {
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Transport{Protocols: protocols, TLSClientConfig: t.tlsConfig("h2"), DialContext: (&net.Dialer{Timeout: answerIn}).DialContext}
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
func (t *target) post(ctx context.Context, client *http.Transport, limit time.Duration) (kept bool, how How, err error) {
	for range 3 {
		var wrote atomic.Bool
		trace := &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }}
		kept, how, err = t.postOnce(httptrace.WithClientTrace(ctx, trace), client, limit)
		if err == nil || wrote.Load() || !strings.Contains(err.Error(), "cannot rewind body after connection loss") {
			break
		}
	}
	return kept, how, err
}

func (t *target) postOnce(ctx context.Context, client *http.Transport, limit time.Duration) (kept bool, how How, err error) {
	// Not under the load's context: a request that was sent is awaited.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { kept = got.Reused }})
	const text = "prove"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url(t.Post), once{strings.NewReader(text)})
	if err != nil {
		return false, Closed, err
	}
	req.ContentLength = int64(len(text))
	req.Header.Set("User-Agent", "lifecyclectl-prove")
	resp, err := client.RoundTrip(req)
	if err != nil {
		return kept, howOf(err), err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return kept, cutOrLate(err), fmt.Errorf("read the answer's body: %w", err)
	}
	how, err = judge(resp)
	return kept, how, err
}

func (t *target) tryPost(ctx context.Context) error {
	client := t.newHTTP2()
	defer client.CloseIdleConnections()
	_, how, err := t.post(ctx, client, tryIn)
	if how == Status {
		return fmt.Errorf("POST %s: %w", t.Post, err)
	}
	return err
}

// http2 keeps its connection until the server sends GOAWAY.
func (t *target) http2(ctx context.Context, l *call) {
	client := t.newHTTP2()
	defer client.CloseIdleConnections()
	var last time.Time
	for {
		o := outcome{sent: l.begin()}
		if !last.IsZero() {
			o.idle = time.Since(last)
		}
		o.kept, o.how, o.err = t.post(ctx, client, answerIn)
		l.end(o)
		last = time.Now()
		if !pause(ctx, gap()) {
			return
		}
	}
}

// open asks for the stream on a connection of its own.
func (t *target) open(ctx context.Context) (*http.Response, error) {
	client := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: t.tlsConfig("http/1.1"),
		DialContext: (&net.Dialer{Timeout: answerIn}).DialContext, ResponseHeaderTimeout: answerIn,
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
func (t *target) stream(ctx context.Context, l *call) {
	for {
		o := outcome{sent: l.begin()}
		resp, err := t.open(ctx)
		if err != nil {
			o.how, o.err = howOf(err), err
		} else {
			if o.how, o.err = judge(resp); o.err == nil {
				if _, o.err = io.Copy(io.Discard, resp.Body); o.err != nil {
					o.how = Cut
				}
			}
			resp.Body.Close()
		}
		if ctx.Err() != nil { // this side has ended it
			o.how, o.err = "", nil
		}
		l.end(o)
		if !pause(ctx, time.Second) {
			return
		}
	}
}
