//go:build unix

package child_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/child"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServeRefuses(t *testing.T) {
	handler := func(context.Context, *child.Query) (any, error) { return nil, nil }
	t.Setenv(wire.EnvSocket, "")
	if err := child.Serve(t.Context(), handler); !errors.Is(err, child.ErrNoPool) {
		t.Errorf("without a pool: %v", err)
	}
	t.Setenv(wire.EnvSocket, filepath.Join(t.TempDir(), "none"))
	if err := child.Serve(t.Context(), handler); err == nil || !strings.Contains(err.Error(), "connect to the pool") {
		t.Errorf("without a socket: %v", err)
	}
	t.Setenv(wire.EnvMaxFrame, "much")
	if err := child.Serve(t.Context(), handler); err == nil || !strings.Contains(err.Error(), `"much", want a number of bytes`) {
		t.Errorf("with a wrong limit: %v", err)
	}
}

// pool plays the pool's side.
type pool struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
	ended chan error
}

// serve runs Serve in this process.
func serve(ctx context.Context, t *testing.T, handler child.Handler, opts ...child.Option) *pool {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(wire.EnvSocket, path)
	p := &pool{t: t, ended: make(chan error, 1)}
	go func() { p.ended <- child.Serve(ctx, handler, opts...) }()
	if p.conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.conn.Close() })
	_ = p.conn.SetDeadline(time.Now().Add(time.Minute))
	p.lines = bufio.NewReader(p.conn)
	p.want(`{"type":"ready",`)
	return p
}

func (p *pool) say(line string) { fmt.Fprintln(p.conn, line) }

func (p *pool) want(part string) {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil || !strings.Contains(line, part) {
		p.t.Fatalf("it said %q, %v, want %q", line, err, part)
	}
}

func (p *pool) wantEnd(is error) {
	p.t.Helper()
	if err := <-p.ended; !errors.Is(err, is) {
		p.t.Errorf("Serve returned %v, want %v", err, is)
	}
}

func query(id, payload string) string {
	return fmt.Sprintf(`{"type":"query","requestId":%q,"payload":%q}`, id, payload)
}

// mute panics in Error and MarshalJSON.
type mute struct{ text string }

func (m *mute) Error() string              { return m.text }
func (*mute) MarshalJSON() ([]byte, error) { panic("no JSON") }

func TestEveryEndOfAHandlerIsAnAnswer(t *testing.T) {
	t.Setenv(wire.EnvMaxFrame, "8192")
	p := serve(t.Context(), t, func(_ context.Context, q *child.Query) (any, error) {
		switch string(q.Payload) {
		case `"panic"`:
			panic("ouch")
		case `"goexit"`:
			runtime.Goexit()
		case `"error"`:
			return nil, errors.New("no")
		case `"chan"`:
			return make(chan int), nil
		case `"long error"`:
			return nil, errors.New(strings.Repeat("é", 1<<16))
		case `"long"`:
			return strings.Repeat("x", 1<<16), nil
		case `"mute"`:
			return nil, (*mute)(nil)
		case `"marshal"`:
			return &mute{}, nil
		}
		return q.Payload, nil
	})
	for range 3 { // the worker goes on
		for payload, want := range map[string]string{"panic": "ouch", "goexit": "runtime.Goexit", "error": "no", "chan": "unsupported type", "long error": "éé", "long": "the result: a line is longer", "mute": "nil pointer", "marshal": "no JSON", "echo": `"result":"echo"`} {
			p.say(query("a", payload))
			p.want(want)
		}
	}
	p.say(`{"type":"shutdown","graceful":true}`)
	p.want(`{"type":"shutdown_ack"}`)
	p.wantEnd(nil)
}

// TestMessagesAreHeardWhileAQueryRuns has queries that take so long that another
// goroutine starts to read.
func TestMessagesAreHeardWhileAQueryRuns(t *testing.T) {
	p := serve(t.Context(), t, func(ctx context.Context, q *child.Query) (any, error) {
		if string(q.Payload) == `"wait"` {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return "done", nil
	})
	for i := range 50 { // whether watch sleeps or not
		id := fmt.Sprint("w", i)
		p.say(query(id, "wait"))
		p.say(`{"type":"health_check"}`)
		p.want("health_ok")
		p.say(query("other", "x"))
		p.want("busy: the worker takes 1 at a time")
		p.say(fmt.Sprintf(`{"type":"cancel","requestId":%q}`, id))
		p.want("cancelled")
		p.say(query("next", "x"))
		p.want("done")
		if i%10 == 0 {
			time.Sleep(300 * time.Millisecond) // until watch sleeps
		}
	}
	p.say(query("last", "wait"))
	p.say(`{"type":"shutdown","graceful":false}`)
	p.want("cancelled")
	p.want("shutdown_ack")
	p.wantEnd(nil)
}

func TestPoolThatIsGoneEndsTheQueryAndTheWorker(t *testing.T) {
	causes := make(chan error, 1)
	p := serve(t.Context(), t, func(ctx context.Context, _ *child.Query) (any, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, nil
	})
	p.say(query("a", "x"))
	p.say(`{"type":"health_check"}`)
	p.want("health_ok")
	p.conn.Close()
	p.wantEnd(child.ErrPoolGone)
	if err := <-causes; !errors.Is(err, child.ErrPoolGone) {
		t.Errorf("the query's cause is %v", err)
	}
}

func TestNothingIsSentBehindTheAnswer(t *testing.T) {
	var first *child.Query
	p := serve(t.Context(), t, func(_ context.Context, q *child.Query) (any, error) {
		if first == nil {
			first = q
			return nil, q.Send("in time")
		}
		return nil, errors.Join(first.Send("late"), first.Session("late"))
	})
	p.say(query("a", "first"))
	p.want("in time")
	p.want("complete")
	p.say(query("b", "second"))
	p.want("the query has been answered\\nthe query has been answered")
	p.conn.Close()
	p.wantEnd(child.ErrPoolGone)
}

// TestPoolThatDiesDuringAShutdown has a handler that ignores its context, and a pool
// that is dead and cannot kill it.
func TestPoolThatDiesDuringAShutdown(t *testing.T) {
	let := make(chan struct{})
	defer close(let)
	p := serve(t.Context(), t, func(context.Context, *child.Query) (any, error) {
		<-let
		return nil, nil
	})
	p.say(query("a", "deaf"))
	p.say(`{"type":"shutdown","graceful":true}`)
	p.say(`{"type":"health_check"}`) // not answered any more
	p.conn.Close()
	p.wantEnd(child.ErrPoolGone)
}

func TestContextEndsServe(t *testing.T) {
	mine := errors.New("mine")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := serve(ctx, t, func(context.Context, *child.Query) (any, error) { return nil, nil })
	cancel(mine)
	p.wantEnd(mine)
}

// TestContextEndsServeThatReads is the same while a goroutine blocks in a read, which
// only the end of the connection wakes up.
func TestContextEndsServeThatReads(t *testing.T) {
	mine := errors.New("mine")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := serve(ctx, t, func(context.Context, *child.Query) (any, error) { return "done", nil })
	p.say(query("a", "x"))
	p.want("done")
	time.Sleep(20 * time.Millisecond) // most likely it reads by now
	cancel(mine)
	select {
	case err := <-p.ended:
		if !errors.Is(err, mine) {
			t.Errorf("Serve returned %v, want %v", err, mine)
		}
	case <-time.After(time.Minute):
		t.Error("Serve has not returned")
	}
}
