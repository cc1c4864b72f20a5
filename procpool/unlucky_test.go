//go:build unix

package procpool_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// TestBytesForAWorkerWithoutThemFailAtOnce has the caller read the connection itself: no
// message comes that could wake it up.
func TestBytesForAWorkerWithoutThemFailAtOnce(t *testing.T) {
	t.Setenv("SAYS", `{"type":"ready"}`)
	p := start(t, "says", func(c *procpool.Config) {
		c.HealthInterval, c.Recycle.Every, c.QueryTimeout = procpool.Off, time.Hour, time.Hour
	})
	for range 20 {
		do(t, p, ask{}.raw()) // no goroutine of the pool reads after that, most times
		ended := make(chan error, 1)
		go func() {
			_, _, err := p.DoBytes(context.Background(), nil, []byte("x"))
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, procpool.ErrNoBytes) {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("the caller still waits for a query that has failed")
		}
	}
}

// TestACancelLeavesTheOthersOfItsWorker has a worker with two queries that reads the
// second one slowly. The first is cancelled meanwhile.
func TestACancelLeavesTheOthersOfItsWorker(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GATE", dir)
	p := start(t, "unlucky:reads-slowly", func(c *procpool.Config) {
		c.CancelGrace, c.WriteTimeout, c.QueryTimeout = patience, patience, patience
	})
	first := submit(t, p, ask{Text: "first"}.raw())
	eventually(t, "the worker has it", func() bool { return first.State() == procpool.QueryProcessing })
	ended := make(chan error, 1)
	go func() {
		_, err := p.Do(context.Background(), ask{Text: strings.Repeat("x", 8<<20)}.raw())
		ended <- err
	}()
	eventually(t, "the second is being written", func() bool { return exists(dir, "full") })
	if !first.Cancel(nil) {
		t.Error("the first has ended")
	}
	time.Sleep(500 * time.Millisecond) // longer than a write of a cancelled query gets
	open(t, dir)
	if err := <-ended; err != nil {
		t.Errorf("the second: %v", err)
	}
	eventually(t, "the cancel is confirmed", func() bool { return p.Stats().Late == 1 })
	if s := p.Stats(); s.Spawned != 1 || s.Cancelled != 1 {
		t.Errorf("%+v", s)
	}
}

// TestADeadlineDoesNotWaitForOthers has a worker that does not read, and queries to it
// whose deadline passes while they are written or wait for that.
func TestADeadlineDoesNotWaitForOthers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GATE", dir)
	p := start(t, "unlucky:reads-slowly", func(c *procpool.Config) {
		c.CancelGrace, c.WriteTimeout, c.QueryTimeout = time.Hour, time.Hour, time.Hour
	})
	first := submit(t, p, ask{}.raw())
	eventually(t, "the worker has it", func() bool { return first.State() == procpool.QueryProcessing })
	for _, size := range []int{8 << 20, 10} {
		ended := make(chan error, 1)
		go func() {
			_, err := p.Do(context.Background(), ask{Text: strings.Repeat("x", size)}.raw(), procpool.Timeout(100*time.Millisecond))
			ended <- err
		}()
		select {
		case err := <-ended:
			var late *procpool.DeadlineError
			if !errors.As(err, &late) {
				t.Errorf("the one of %d bytes: %v", size, err)
			}
		case <-time.After(patience):
			t.Fatalf("the caller of the one of %d bytes still waits", size)
		}
	}
	open(t, dir)
	first.Cancel(nil)
	eventually(t, "the cancels are confirmed", func() bool { return p.Stats().Ready == 1 && p.Stats().Late >= 1 })
	if s := p.Stats(); s.Spawned != 1 {
		t.Errorf("%+v", s)
	}
}

// TestCallsWaitUntilTheyAreAnswered has a worker that makes many calls and reads no reply.
// An answered call waits until its reply is written.
func TestCallsWaitUntilTheyAreAnswered(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GATE", dir)
	result, err := json.Marshal(strings.Repeat("x", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int64
	p := start(t, "unlucky:calls", func(c *procpool.Config) {
		c.WriteTimeout, c.QueryTimeout = patience, patience
		c.Calls = func(context.Context, procpool.Call) (json.RawMessage, error) {
			answered.Add(1)
			return result, nil
		}
	})
	q := submit(t, p, ask{}.raw())
	eventually(t, "all calls are made", func() bool { return exists(dir, "full") })
	open(t, dir)
	got, err := q.Result()
	if err != nil || answered.Load() > 100 {
		t.Errorf("of 2000 calls %d were answered while no reply was read: %v", answered.Load(), err)
	}
	if string(got) != fmt.Sprint(answered.Load()) {
		t.Errorf("%d calls were answered, and the worker has %s", answered.Load(), got)
	}
}

// TestCallsInTurn has the same worker. Besides the reply that is written, one result takes memory.
func TestCallsInTurn(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GATE", dir)
	result, err := json.Marshal(strings.Repeat("x", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var answered, now atomic.Int64
	handler := procpool.Calls(func(context.Context, procpool.Call) (json.RawMessage, error) {
		if now.Add(1) > 1 {
			t.Error("two calls are answered at once")
		}
		defer now.Add(-1)
		answered.Add(1)
		return result, nil
	})
	p := start(t, "unlucky:calls", func(c *procpool.Config) { c.WriteTimeout, c.QueryTimeout = patience, patience })
	q := submit(t, p, ask{}.raw(), handler, procpool.CallsInTurn())
	eventually(t, "all calls are made", func() bool { return exists(dir, "full") })
	if n := answered.Load(); n > 2 {
		t.Errorf("%d calls were answered while no reply was read", n)
	}
	open(t, dir)
	if got, err := q.Result(); err != nil || string(got) != fmt.Sprint(answered.Load()) {
		t.Errorf("%d calls were answered, and the worker has %s, %v", answered.Load(), got, err)
	}
}

// TestALongLineMayHaveBytes has a worker send a line over the limit, and bytes after it
// that look like messages.
func TestALongLineMayHaveBytes(t *testing.T) {
	const forged = "\n" + `{"type":"forged"}` + "\n"
	long := strings.Repeat("x", 2<<20)
	for name, line := range map[string]string{
		"length first": fmt.Sprintf(`{"type":"complete","requestId":"ID","bytes":%d,"result":"%s"}`, len(forged), long),
		"length last":  fmt.Sprintf(`{"type":"complete","requestId":"ID","result":"%s","bytes":%d}`, long, len(forged)),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "line")
			if err := os.WriteFile(file, []byte(line+"\n"+forged+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("FILE", file)
			t.Setenv("SAYS", `{"type":"ready","capabilities":["bytes"]}`)
			p := start(t, "unlucky:file", func(c *procpool.Config) { c.MaxFrame, c.MaxQueue = 1<<20, 1 })
			var tooLong *wire.TooLongError
			if _, err := p.Do(within(t), ask{}.raw()); !errors.As(err, &tooLong) || !errors.Is(err, procpool.ErrProtocol) {
				t.Fatalf("got %v", err)
			}
			eventually(t, "the worker is ended", func() bool { return p.Stats().Ended[procpool.CauseProtocol] == 1 })
			if s := p.Stats(); s.Unknown != 0 {
				t.Errorf("the pool has read %d of the bytes as messages", s.Unknown)
			}
		})
	}
}

// TestErrorsOfBreachesAreShort has workers whose messages break the contract with long
// names in them. The pool keeps and logs such errors.
func TestErrorsOfBreachesAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, line := range map[string]string{
		"another request":         `{"type":"complete","requestId":"` + long + `","result":1}`,
		"a call for another":      `{"type":"call","requestId":"` + long + `","callId":"1","method":"m","params":1}`,
		"the id of a call":        `{"type":"call","requestId":"ID","callId":"` + long + `","method":"m","params":1}`,
		"bytes without a promise": `{"type":"` + long + `","bytes":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "line")
			if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("FILE", file)
			t.Setenv("SAYS", `{"type":"ready"}`)
			p := start(t, "unlucky:file", nil)
			_, err := p.Do(within(t), ask{}.raw())
			if !errors.Is(err, procpool.ErrProtocol) || len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes: %.200v", len(fmt.Sprint(err)), err)
			}
		})
	}
}

// TestReadyTakesNoBytes has a worker announce bytes and send some with its ready.
func TestReadyTakesNoBytes(t *testing.T) {
	t.Setenv("SAYS", `{"type":"ready","capabilities":["bytes"],"bytes":3}`+"\nabc")
	p := start(t, "says", func(c *procpool.Config) { c.BreakAfter = 1 })
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) || !strings.Contains(err.Error(), "ready takes no bytes") {
		t.Errorf("got %v", err)
	}
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

func open(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "open"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// unlucky is a worker that writes the protocol by hand. With $GATE it makes the file
// "full" there and waits for "open".
func unlucky(mode string) {
	conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
	if err != nil {
		panic(err)
	}
	say := func(format string, args ...any) {
		if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
			os.Exit(1)
		}
	}
	gate := func() {
		dir := os.Getenv("GATE")
		if err := os.WriteFile(filepath.Join(dir, "full"), nil, 0o600); err != nil {
			panic(err)
		}
		for !exists(dir, "open") {
			time.Sleep(5 * time.Millisecond)
		}
	}
	lines := bufio.NewReader(conn)
	next := func() (e wire.Envelope) {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(1)
		}
		if err := wire.Decode(bytes.TrimSpace(line), &e); err != nil {
			panic(err)
		}
		return e
	}
	if mode == "reads-slowly" {
		say(`{"type":"ready","concurrency":3}`)
	} else if says := os.Getenv("SAYS"); says != "" {
		say("%s", says)
	} else {
		say(`{"type":"ready"}`)
	}
	for first := true; ; {
		e := next()
		switch e.Type {
		case wire.HealthCheck:
			say(`{"type":"health_ok","uptime":1,"queriesProcessed":0}`)
		case wire.Shutdown:
			say(`{"type":"shutdown_ack"}`)
			return
		case wire.Cancel:
			say(`{"type":"complete","requestId":%q,"result":"stopped"}`, e.RequestID)
		case wire.Query:
			if !first {
				say(`{"type":"complete","requestId":%q,"result":"well"}`, e.RequestID)
				continue
			}
			first = false
			switch mode {
			case "reads-slowly": // the first waits for its cancel
				if _, err := lines.Peek(1); err != nil { // the beginning of the second, whose rest the socket cannot hold
					os.Exit(1)
				}
				gate()
			case "calls":
				const calls = 2000
				for i := range calls {
					if i%20 == 0 {
						time.Sleep(time.Millisecond) // so that those before have their answers
					}
					say(`{"type":"call","requestId":%q,"callId":"%d","method":"m","params":1}`, e.RequestID, i)
				}
				gate()
				answered := 0
				for range calls {
					if reply := next(); reply.Error == "" {
						answered++
					} else if !strings.Contains(reply.Error, "32 calls wait") {
						panic(reply.Error)
					}
				}
				say(`{"type":"complete","requestId":%q,"result":%d}`, e.RequestID, answered)
			case "file":
				text, err := os.ReadFile(os.Getenv("FILE"))
				if err != nil {
					panic(err)
				}
				_, _ = conn.Write(bytes.Replace(text, []byte("ID"), []byte(e.RequestID), 1))
			}
		}
	}
}

// TestACancelDoesNotCutALargeWrite cancels a query while it is written to a worker that
// stands still for longer than a moment, and less than CancelGrace.
func TestACancelDoesNotCutALargeWrite(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.CancelGrace, c.WriteTimeout, c.MaxQueue = patience, patience, 1 })
	pid := do(t, p, ask{Op: "pid"}.raw())
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	large := ask{Text: strings.Repeat("x", 8<<20)}.raw()
	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(100*time.Millisecond, cancel)
	time.AfterFunc(800*time.Millisecond, func() { _ = syscall.Kill(n, syscall.SIGCONT) })
	q, err := p.Submit(ctx, large)
	if err != nil {
		t.Skipf("the machine stood still: %v", err)
	}
	if _, err := q.Result(); !errors.Is(err, procpool.ErrCancelled) {
		t.Errorf("it ended with %v", err)
	}
	if again := do(t, p, ask{Op: "pid"}.raw()); again != pid {
		t.Errorf("the worker was %s and is %s", pid, again)
	}
	if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCancelsOfLargeQueriesCostNoWorker cancels queries of 50 MB, each at another moment of its
// way to a worker that is idle and reads.
func TestCancelsOfLargeQueriesCostNoWorker(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) {
		c.CancelGrace, c.WriteTimeout, c.QueryTimeout, c.MaxQueue, c.MaxFrame = patience, patience, patience, 10, 64<<20
	})
	pid := do(t, p, ask{Op: "pid"}.raw())
	large := make([]byte, 50<<20)
	cancelled := 0
	for i := range 8 {
		ctx, cancel := context.WithCancel(within(t))
		time.AfterFunc(time.Duration(i)*10*time.Millisecond, cancel)
		_, _, err := p.DoBytes(ctx, ask{}.raw(), large)
		if errors.Is(err, procpool.ErrCancelled) {
			cancelled++
		} else if err != nil && !errors.Is(err, context.Canceled) { // it may end before or after the cancel
			t.Errorf("%d: %v", i, err)
		}
	}
	if cancelled == 0 {
		t.Skip("the machine stood still: no query was under way when it was cancelled")
	}
	if again := do(t, p, ask{Op: "pid"}.raw()); again != pid {
		t.Errorf("the worker was %s and is %s", pid, again)
	}
	if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
		t.Errorf("%+v", s)
	}
}
