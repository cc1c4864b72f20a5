//go:build linux

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// kind is a kind of clients. None of them sends a request twice.
type kind struct {
	name  string
	grpc  bool
	nginx nginxListen
	// ask returns the process that answers.
	ask func(c *clients, ctx context.Context) (pid int64, err error)
	// run sends requests until ctx ends.
	run func(c *clients, ctx context.Context) error

	program, install string // that it needs, and its Debian package
}

// nginxListen is what nginx's configuration has behind the address.
type nginxListen string

const (
	plain nginxListen = ""
	http2 nginxListen = " http2"
	none  nginxListen = "none" // nginx alone cannot serve it
)

var kinds = []kind{
	{name: "http1", ask: (*clients).askHTTP1, run: (*clients).runHTTP1, nginx: plain},
	{name: "wrk", ask: (*clients).askHTTP1, run: (*clients).runWrk, nginx: plain, program: "wrk", install: "wrk"},
	{name: "http2", ask: (*clients).askHTTP2, run: (*clients).runHTTP2, nginx: http2},
	{name: "h2load", ask: (*clients).askHTTP2, run: (*clients).runH2load, nginx: http2, program: "h2load", install: "nghttp2-client"},
	{name: "grpc", ask: (*clients).askGRPC, run: (*clients).runGRPC, nginx: none, grpc: true},
	{name: "websocket", ask: (*clients).askHTTP1, run: (*clients).runSockets, nginx: none},
}

// clients count what is lost.
type clients struct {
	addr           string
	answered, lost atomic.Int64

	mu   sync.Mutex
	took []time.Duration
}

// p99 returns the time within which 99 of 100 requests have ended, since the last call.
func (c *clients) p99() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := c.took
	c.took = nil
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// loop calls ask until ctx ends, in n goroutines.
func (c *clients) loop(ctx context.Context, n int, ask func(i int) error) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := ask(i)
				took := time.Since(began)
				if err != nil {
					c.lost.Add(1)
				} else {
					c.answered.Add(1)
				}
				c.mu.Lock()
				c.took = append(c.took, took)
				c.mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
}

// post sends a request that net/http cannot send a second time.
func (c *clients) post(tr *http.Transport) (pid int64, err error) {
	client := &http.Client{Transport: tr, Timeout: patience}
	resp, err := client.Post("http://"+c.addr, "text/plain", io.MultiReader(strings.NewReader("an order")))
	if err != nil {
		return 0, err
	}
	body, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(body), 10, 64)
}

func transportHTTP2() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols}
}

func (c *clients) askHTTP1(context.Context) (int64, error) {
	return c.post(&http.Transport{DisableKeepAlives: true})
}

func (c *clients) askHTTP2(context.Context) (int64, error) {
	tr := transportHTTP2()
	defer tr.CloseIdleConnections()
	return c.post(tr)
}

// runHTTP1 has eight clients that keep their connections and eight that do not.
func (c *clients) runHTTP1(ctx context.Context) error {
	transports := make([]*http.Transport, 16)
	for i := range transports {
		transports[i] = &http.Transport{DisableKeepAlives: i%2 == 0}
		defer transports[i].CloseIdleConnections()
	}
	c.loop(ctx, 16, func(i int) error { _, err := c.post(transports[i]); return err })
	return nil
}

// runHTTP2 has four connections with four requests at a time.
func (c *clients) runHTTP2(ctx context.Context) error {
	transports := make([]*http.Transport, 4)
	for i := range transports {
		transports[i] = transportHTTP2()
		defer transports[i].CloseIdleConnections()
	}
	c.loop(ctx, 16, func(i int) error { _, err := c.post(transports[i%4]); return err })
	return nil
}

func (c *clients) dialGRPC() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+c.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func callGRPC(ctx context.Context, conn *grpc.ClientConn) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	pid := new(wrapperspb.Int64Value)
	err := conn.Invoke(ctx, grpcMethod, new(emptypb.Empty), pid)
	return pid.GetValue(), err
}

func (c *clients) askGRPC(ctx context.Context) (int64, error) {
	conn, err := c.dialGRPC()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return callGRPC(ctx, conn)
}

// runGRPC has four connections with four calls at a time.
func (c *clients) runGRPC(ctx context.Context) error {
	conns := make([]*grpc.ClientConn, 4)
	for i := range conns {
		conn, err := c.dialGRPC()
		if err != nil {
			return err
		}
		defer conn.Close()
		conns[i] = conn
	}
	c.loop(ctx, 16, func(i int) error { _, err := callGRPC(ctx, conns[i%4]); return err })
	return nil
}

// runSockets has eight websockets that stay and eight clients that open one for each message. A
// socket that the server ends behind an answer loses nothing, and its client opens the next one.
func (c *clients) runSockets(ctx context.Context) error {
	conns := make([]*websocket.Conn, 16)
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.CloseNow()
			}
		}
	}()
	c.loop(ctx, 16, func(i int) error {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if conns[i] == nil {
			conn, _, err := websocket.Dial(within, "ws://"+c.addr+"/socket", nil)
			if err != nil {
				return err
			}
			conns[i] = conn
		}
		err := conns[i].Write(within, websocket.MessageText, []byte("an order"))
		if err == nil {
			_, _, err = conns[i].Read(within)
		}
		if err != nil || i%2 == 0 {
			_ = conns[i].CloseNow()
			conns[i] = nil
		}
		return err
	})
	return nil
}

// programTime is how long a program sends requests: the process is replaced meanwhile.
const programTime = 3 * time.Second

func (c *clients) runWrk(ctx context.Context) error {
	text, err := runProgram(ctx, "wrk", "-t", "1", "-c", "16", "-d", programTime.String(), "http://"+c.addr)
	if err != nil {
		return err
	}
	answered, err := number(text, `(\d+) requests in`)
	if err != nil {
		return err
	}
	lost := 0
	if m := regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`).FindStringSubmatch(text); m != nil {
		for _, digits := range m[1:] {
			n, _ := strconv.Atoi(digits)
			lost += n
		}
	}
	c.answered.Add(int64(answered))
	c.lost.Add(int64(lost))
	return nil
}

func (c *clients) runH2load(ctx context.Context) error {
	text, err := runProgram(ctx, "h2load", "-c", "4", "-m", "4", "-D", strconv.Itoa(int(programTime.Seconds())), "http://"+c.addr)
	if err != nil {
		return err
	}
	answered, err := number(text, `(\d+) succeeded`)
	if err != nil {
		return err
	}
	lost, err := number(text, `(\d+) failed`)
	if err != nil {
		return err
	}
	c.answered.Add(int64(answered))
	c.lost.Add(int64(lost))
	return nil
}

func runProgram(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(context.WithoutCancel(ctx), name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return string(out), nil
}

func number(text, pattern string) (int, error) {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("nothing matches %s in\n%s", pattern, text)
	}
	return strconv.Atoi(m[1])
}
