package operator_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// pipe is a listener of connections within this process. Their deadlines use
// the time of the bubble.
type pipe struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipe() *pipe { return &pipe{make(chan net.Conn), make(chan struct{})} }

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return loopbackConn{c}, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipe) Close() error   { close(p.done); return nil }
func (p *pipe) Addr() net.Addr { return local }

func (p *pipe) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

var local = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}

// loopbackConn claims to come from this machine.
type loopbackConn struct{ net.Conn }

func (loopbackConn) LocalAddr() net.Addr  { return local }
func (loopbackConn) RemoteAddr() net.Addr { return local }

// onPipe serves cfg in a bubble.
func onPipe(t *testing.T, cfg operator.Config) (dial func() net.Conn, stop func()) {
	t.Helper()
	cfg.Logger = quiet
	s, err := operator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv, ln := s.HTTPServer(), newPipe()
	go srv.Serve(ln)
	return ln.dial, func() {
		s.Close(context.Background())
		srv.Close()
		time.Sleep(time.Second) // of the bubble: net/http waits half of it after it refused a body
	}
}

func send(t *testing.T, conn net.Conn, text string) *http.Response {
	t.Helper()
	go conn.Write([]byte(text))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// A watch whose client does not read ends, and frees its place, after
// the time limit of a write.
func TestWatcherThatDoesNotReadIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		dial, stop := onPipe(t, operator.Config{Workflows: m, MaxStreams: 1})
		defer stop()
		const watch = "GET /watch/workflows/drone-survey HTTP/1.1\r\nHost: localhost\r\n\r\n"
		deaf := dial()
		defer deaf.Close()
		if resp := send(t, deaf, watch); resp.StatusCode != 200 { // and then stops reading
			t.Fatalf("the first: %d", resp.StatusCode)
		}
		other := dial()
		defer other.Close()
		if resp := send(t, other, watch); resp.StatusCode != 429 {
			t.Fatalf("the second: %d", resp.StatusCode)
		}
		time.Sleep(time.Minute) // by now the client has failed to read heartbeats
		third := dial()
		defer third.Close()
		if resp := send(t, third, watch); resp.StatusCode != 200 {
			t.Errorf("after a minute: %d", resp.StatusCode)
		}
	})
}

// A watch that would have missed a deletion ends and says so.
func TestWatcherThatIsTooSlowIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(1)
		dial, stop := onPipe(t, operator.Config{Workflows: m})
		defer stop()
		conn := dial()
		defer conn.Close()
		resp := send(t, conn, "GET /watch/workflows/drone-survey HTTP/1.1\r\nHost: localhost\r\n\r\n")
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && lines.Text() != "event: synced" {
		}
		m.add("blocks", mission{}) // the client does not read the server's next writes for a while
		synctest.Wait()
		time.Sleep(time.Second)
		m.mu.Lock()
		for i := range 50_000 {
			for _, s := range m.sinks {
				s.Put(strconv.Itoa(i), &operatorv1.Entity{})
				s.Delete(strconv.Itoa(i))
			}
		}
		m.mu.Unlock()
		for lines.Scan() && lines.Text() != "event: error" {
		}
		if lines.Scan(); !strings.Contains(lines.Text(), "too slow") {
			t.Errorf("the watch ended with %q, %v", lines.Text(), lines.Err())
		}
	})
}

// A body that does not arrive holds nothing for longer than the body's time limit.
func TestBodyThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, stop := onPipe(t, operator.Config{Workflows: newMemory(1)})
		defer stop()
		for _, path := range []string{"/workflows/drone-survey/m-00000/transition", "/lifecycle.operator.v1.WorkflowService/Transition", "/ui/act/transition"} {
			conn := dial()
			begun := time.Now()
			resp := send(t, conn, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
			if resp.StatusCode < 400 || time.Since(begun) > time.Minute {
				t.Errorf("%s: %d after %v", path, resp.StatusCode, time.Since(begun))
			}
			conn.Close()
		}
	})
}
