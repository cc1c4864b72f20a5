package e2e

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

// http2 returns a client of HTTP/2 without TLS that can repeat a request when
// the server says by GOAWAY that it did not handle it: net/http's, with
// a body that can be read twice. Its requests overlap.
func http2(path string, want int, idle func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		transport := newHTTP2()
		defer transport.CloseIdleConnections()
		first := true
		for range maxRequests {
			a := postHTTP2(transport, "http://"+addr+path)
			// A client that has to reconnect was asked to by the server.
			a.goodbye = a.fresh && !first
			first = false
			l.enter(a, want)
			if !pause(ctx, idle()) {
				return
			}
		}
	}
}

func newHTTP2() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols}
}

func postHTTP2(transport *http.Transport, url string) (a answer) {
	a.sent, a.conn = time.Now(), "no connection"
	// Not under the load's context: a request that was sent is awaited.
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		a.fresh, a.conn = !got.Reused, "a new HTTP/2 connection"
		if got.Reused {
			a.conn = "an HTTP/2 connection that was used before"
		}
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("nothing")) // sets GetBody
	if err != nil {
		a.err = err
		return a
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	_, a.err = io.Copy(io.Discard, resp.Body)
	return a
}
