// Package rawhttp is a hand-written HTTP/1.1 client for measurements: it allocates little, never
// retries, and reports the state of a connection.
package rawhttp

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
)

// Conn is one connection. Only one goroutine may use it.
type Conn struct {
	nc     net.Conn
	r      *bufio.Reader
	closes bool
}

// New returns a Conn on nc, which the caller closes.
func New(nc net.Conn) *Conn { return &Conn{nc: nc, r: bufio.NewReader(nc)} }

// Closes reports whether the last response said that the server closes the
// connection after it.
func (c *Conn) Closes() bool { return c.closes }

// Do sends request and reads the whole response. Anything but a complete
// response with status 200 and a body is an error.
func (c *Conn) Do(request []byte) error {
	c.closes = false
	if _, err := c.nc.Write(request); err != nil {
		return err
	}
	length, chunked := 0, false
	for first := true; ; first = false {
		text, err := c.line()
		if err != nil {
			return err
		}
		if first && text != "HTTP/1.1 200 OK" {
			return fmt.Errorf("the response is %q", text)
		}
		if text == "" {
			break
		}
		switch name, value, _ := strings.Cut(text, ": "); name {
		case "Content-Length":
			if length, err = strconv.Atoi(value); err != nil {
				return err
			}
		case "Transfer-Encoding":
			chunked = true
		case "Connection":
			c.closes = value == "close"
		}
	}
	switch {
	case chunked:
		return c.chunks()
	case length == 0:
		return errors.New("the response is empty")
	}
	_, err := c.r.Discard(length)
	return err
}

// line reads one line, without its end.
func (c *Conn) line() (string, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

func (c *Conn) chunks() error {
	for {
		text, err := c.line()
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(text, 16, 31)
		if err != nil {
			return err
		}
		if _, err := c.r.Discard(int(size) + len("\r\n")); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
	}
}

// Bench measures the wall-clock and the CPU time of b.N requests, one after the
// other over one connection to addr.
func Bench(b *testing.B, addr net.Addr, request []byte) {
	b.Helper()
	nc, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	c := New(nc)
	b.ReportAllocs()
	b.ResetTimer()
	report := cpu.Measure(b)
	for range b.N {
		if err := c.Do(request); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	report()
}
