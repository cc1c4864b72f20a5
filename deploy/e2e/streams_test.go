package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// errCut is the error of a stream that ended without a goodbye.
var errCut = errors.New("the stream ended without a goodbye")

// events returns a client of server-sent events that reconnects when it is asked
// to, after the delay of one second that the service sets.
func events(path string) client {
	return streaming(func(ctx context.Context, addr string) (bool, error) { return readEvents(ctx, "http://"+addr+path) })
}

// socket returns such a client of a websocket. Its goodbye is a close frame of status
// 1001, "going away".
func socket(path string) client {
	return streaming(func(ctx context.Context, addr string) (bool, error) { return readSocket(ctx, "ws://"+addr+path) })
}

// streaming keeps one stream open. Each stream counts as a request; it is answered
// when it ends with a goodbye or with the load.
func streaming(read func(ctx context.Context, addr string) (goodbye bool, err error)) client {
	return func(ctx context.Context, addr string, l *ledger) {
		for range maxRequests {
			a := answer{sent: time.Now(), conn: "a stream", fresh: true}
			a.goodbye, a.err = read(ctx, addr)
			if ctx.Err() != nil {
				a.err = nil // the client closed it
			}
			if a.err == nil {
				a.status = http.StatusOK
			}
			l.enter(a, http.StatusOK)
			if !pause(ctx, time.Second) {
				return
			}
		}
	}
}

// readEvents reads a stream to its end, and reports whether it had an event
// "goodbye" before it.
func readEvents(ctx context.Context, url string) (goodbye bool, err error) {
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d", resp.StatusCode)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		switch {
		case strings.HasPrefix(line, "event: goodbye"):
			goodbye = true
		case errors.Is(err, io.EOF) && goodbye:
			return true, nil
		case err != nil:
			return goodbye, fmt.Errorf("%w: %w", errCut, err)
		}
	}
}

// readSocket reads until the websocket is closed, and reports whether it was closed
// with a close frame of status 1001.
func readSocket(ctx context.Context, url string) (goodbye bool, err error) {
	transport := &http.Transport{DisableKeepAlives: true}
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("status %d: %w", resp.StatusCode, err)
		}
		return false, err
	}
	defer func() { _ = conn.CloseNow() }() // usually the other side has closed it
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			if websocket.CloseStatus(err) == websocket.StatusGoingAway {
				return true, nil
			}
			return false, fmt.Errorf("%w: %w", errCut, err)
		}
	}
}
