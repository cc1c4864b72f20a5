package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// once is a body that can be read once: without GetBody, net/http does not repeat a
// request that the server may have seen.
type once struct{ io.Reader }

// postOnce returns a client of HTTP/2, with TLS or without, that cannot repeat a request.
// It keeps its connection until the server says goodbye.
func postOnce(secure bool, path string, want int, idle func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		transport, url := newHTTP2(), "http://"+addr+path
		if secure {
			protocols := new(http.Protocols)
			protocols.SetHTTP2(true)
			transport.Protocols, url = protocols, "https://"+addr+path
			transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the server's certificate is its own
		}
		defer transport.CloseIdleConnections()
		first := true
		for range maxRequests {
			a, unsent := postBody(transport, url)
			if unsent {
				l.tookBack()
				a, _ = postBody(transport, url)
			}
			a.goodbye = a.fresh && !first // a client that has to reconnect was asked to
			first = false
			l.enter(a, want)
			if !pause(ctx, idle()) {
				return
			}
		}
	}
}

// postBody sends one request. unsent reports that net/http gave it up before it wrote
// anything: its connection was asked to go in the moment between the choice of the
// connection and the first frame. net/http repeats such a request only when it has a
// GetBody, so a client without one has to. No server can prevent it.
func postBody(transport *http.Transport, url string) (a answer, unsent bool) {
	var wrote atomic.Bool
	defer func() {
		unsent = a.err != nil && !wrote.Load() && strings.Contains(a.err.Error(), "cannot rewind body after connection loss")
	}()
	a.sent, a.conn = time.Now(), "no connection"
	// Not under the load's context: a request that was sent is awaited.
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }, GotConn: func(got httptrace.GotConnInfo) {
		a.fresh, a.conn = !got.Reused, "a new HTTP/2 connection"
		if got.Reused {
			a.conn = "an HTTP/2 connection that was used before"
		}
	}})
	const body = "nothing"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, once{strings.NewReader(body)})
	if err != nil {
		a.err = err
		return a, false
	}
	req.ContentLength = int64(len(body))
	resp, err := transport.RoundTrip(req)
	if err != nil {
		a.err = err
		return a, false
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	_, a.err = io.Copy(io.Discard, resp.Body)
	return a, false
}

// finite returns a client of event streams that end by themselves, on a connection each.
// A stream is lost when it ends without the event that says why.
func finite(length func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		for range maxRequests {
			a := answer{sent: time.Now(), conn: "a stream", fresh: true}
			asked := length()
			a.goodbye, a.err = readFinite(fmt.Sprintf("http://%s/events?for=%v", addr, asked))
			a.sent = a.sent.Add(min(asked, time.Since(a.sent))) // the length that was asked for is not a delay
			if a.err == nil {
				a.status = http.StatusOK
			}
			l.enter(a, http.StatusOK)
			if !pause(ctx, 20*time.Millisecond) {
				return
			}
		}
	}
}

func readFinite(url string) (goodbye bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d", resp.StatusCode)
	}
	lines := bufio.NewReader(resp.Body)
	for said := false; ; {
		line, err := lines.ReadString('\n')
		switch {
		case strings.HasPrefix(line, "event: goodbye"):
			goodbye, said = true, true
		case strings.HasPrefix(line, "event: end"):
			said = true
		case errors.Is(err, io.EOF) && said:
			return goodbye, nil
		case err != nil:
			return goodbye, fmt.Errorf("%w: %w", errCut, err)
		}
	}
}

// talk is a connection on which each message gets an answer, until the server asks
// the client to finish and to go.
type talk struct {
	send  func() error
	recv  func() (goodbye bool, err error) // the next message
	leave func()                           // ends it; nothing is unanswered
	cut   func()                           // ends recv
}

// chatting returns a client that keeps a talk until it is asked to go. Each message and
// each talk is a request: a talk is lost when it ends without a goodbye.
func chatting(open func(ctx context.Context, addr string) (*talk, error), idle func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		for messages := 0; messages < maxRequests; {
			a := answer{sent: time.Now(), conn: "a new stream", fresh: true}
			var n int
			n, a.goodbye, a.err = oneTalk(ctx, addr, open, idle, l)
			messages += n + 1
			a.sent = time.Now() // the length of the talk is not a delay
			if a.err == nil {
				a.status = http.StatusOK
			}
			l.enter(a, http.StatusOK)
			if !pause(ctx, 100*time.Millisecond) {
				return
			}
		}
	}
}

func oneTalk(ctx context.Context, addr string, open func(context.Context, string) (*talk, error), idle func() time.Duration, l *ledger) (messages int, goodbye bool, err error) {
	// Not under the load's context: a message that was sent is awaited.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	t, err := open(own, addr)
	if err != nil {
		return 0, false, err
	}
	answers, asked, ended := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer t.cut()
	reader.Go(func() {
		for told := false; ; {
			bye, err := t.recv()
			switch {
			case err != nil:
				ended <- err
				return
			case !bye:
				answers <- struct{}{}
			case !told:
				told = true
				close(asked)
			}
		}
	})
	for ; ; messages++ {
		wait := time.NewTimer(idle())
		select {
		case <-wait.C:
		case <-asked:
			wait.Stop()
			t.leave()
			return messages, true, nil
		case <-ctx.Done():
			wait.Stop()
			t.leave()
			return messages, false, nil
		case err := <-ended:
			wait.Stop()
			return messages, false, fmt.Errorf("%w: %w", errCut, err)
		}
		a := answer{sent: time.Now(), conn: fmt.Sprintf("a stream with %d messages", messages), status: http.StatusOK}
		if a.err = t.send(); a.err == nil {
			late := time.NewTimer(answerIn)
			select {
			case <-answers:
			case a.err = <-ended:
			case <-late.C:
				a.err = errors.New("no answer")
			}
			late.Stop()
		}
		l.enter(a, http.StatusOK)
		if a.err != nil {
			return messages + 1, false, a.err
		}
	}
}

// openSocket opens a chat by websocket.
func openSocket(ctx context.Context, addr string) (*talk, error) {
	dialing, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	conn, resp, err := websocket.Dial(dialing, "ws://"+addr+"/chat", &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{}}})
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("status %d: %w", resp.StatusCode, err)
		}
		return nil, err
	}
	return &talk{
		send: func() error { return conn.Write(ctx, websocket.MessageText, []byte("hello")) },
		recv: func() (bool, error) {
			_, text, err := conn.Read(ctx)
			return string(text) == "goodbye", err
		},
		leave: func() { _ = conn.Close(websocket.StatusNormalClosure, "") }, // the server may end it first
		cut:   func() { _ = conn.CloseNow() },
	}, nil
}

// openCall opens a chat by gRPC, on a channel of its own.
func openCall(ctx context.Context, addr string) (*talk, error) {
	ch, err := newChannel(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := ch.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/e2e.Chat/Chat")
	if err != nil {
		cancel()
		ch.close()
		return nil, err
	}
	return &talk{
		send: func() error { return stream.SendMsg(&healthpb.HealthCheckRequest{}) },
		recv: func() (bool, error) {
			var m healthpb.HealthCheckResponse
			err := stream.RecvMsg(&m)
			return m.GetStatus() == healthpb.HealthCheckResponse_SERVICE_UNKNOWN, err
		},
		leave: func() { _ = stream.CloseSend() }, // always nil
		cut:   func() { cancel(); ch.close() },
	}, nil
}
