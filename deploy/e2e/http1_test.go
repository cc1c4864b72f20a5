package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// rawConn writes HTTP/1.1 by hand: one POST after the other, and never a retry. Like
// the most careless client, it sends without checking whether the server has closed.
type rawConn struct {
	net.Conn
	reader  *bufio.Reader
	trickle time.Duration // between two bytes of a body
	used    int
	last    time.Time // when the latest answer was read
}

func dialRaw(addr string) (*rawConn, error) {
	c, err := net.DialTimeout("tcp", addr, answerIn)
	if err != nil {
		return nil, err
	}
	return &rawConn{Conn: c, reader: bufio.NewReader(c)}, nil
}

// post sends one request and reads its answer to the end.
func (c *rawConn) post(path string) answer {
	return c.exchange("POST "+path+" HTTP/1.1\r\nHost: e2e\r\nContent-Length: 7\r\n\r\n", "nothing")
}

// get sends a GET, for servers that answer nothing else.
func (c *rawConn) get(path string) answer {
	return c.exchange("GET "+path+" HTTP/1.1\r\nHost: e2e\r\n\r\n", "")
}

func (c *rawConn) exchange(head, body string) (a answer) {
	a.sent, a.fresh, a.conn = time.Now(), c.used == 0, "a new connection"
	if c.used > 0 {
		a.conn = fmt.Sprintf("a connection used %d times and idle for %v", c.used, time.Since(c.last).Round(time.Millisecond))
	}
	c.used++
	if a.err = c.SetDeadline(a.sent.Add(answerIn)); a.err != nil {
		return a
	}
	if _, a.err = io.WriteString(c, head); a.err != nil {
		return a
	}
	for _, b := range []byte(body) {
		if c.trickle > 0 {
			time.Sleep(c.trickle)
		}
		if _, a.err = c.Write([]byte{b}); a.err != nil {
			a.err = fmt.Errorf("send the body: %w", a.err)
			return a
		}
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		a.err = fmt.Errorf("read the answer: %w", err)
		return a
	}
	defer resp.Body.Close()
	a.status, a.goodbye = resp.StatusCode, resp.Close
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		a.err = fmt.Errorf("read the answer's body: %w", err)
	}
	c.last = time.Now()
	return a
}

// http1 returns a client that keeps its connection as long as the server allows
// it, and is idle between two requests.
func http1(path string, want int, idle func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		var conn *rawConn
		defer func() {
			if conn != nil {
				conn.Close()
			}
		}()
		for range maxRequests {
			if conn == nil {
				began := time.Now()
				var err error
				if conn, err = dialRaw(addr); err != nil {
					conn = nil
					l.enter(answer{sent: began, conn: "no connection", err: err}, want)
				}
			}
			if conn != nil {
				a := conn.post(path)
				l.enter(a, want)
				if a.err != nil || a.goodbye {
					conn.Close()
					conn = nil
				}
			}
			if !pause(ctx, idle()) {
				return
			}
		}
	}
}

// fresh returns a client that opens a connection for every request. It does not ask the
// server to close it: when an answer does, that is the server's decision.
func fresh(path string, want int, idle func() time.Duration) client {
	return hesitant{}.client(path, want, idle)
}

// hesitant is how a fresh client tries the server's patience.
type hesitant struct {
	silent  time.Duration // between connecting and sending
	trickle time.Duration // between two bytes of a body of seven
	get     bool          // and no body at all
}

func (h hesitant) client(path string, want int, idle func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		for range maxRequests {
			began := time.Now()
			if conn, err := dialRaw(addr); err != nil {
				l.enter(answer{sent: began, conn: "no connection", err: err}, want)
			} else {
				time.Sleep(h.silent) // also after the load has ended; it is short
				conn.trickle = h.trickle
				if h.get {
					l.enter(conn.get(path), want)
				} else {
					l.enter(conn.post(path), want)
				}
				conn.Close()
			}
			if !pause(ctx, idle()) {
				return
			}
		}
	}
}
