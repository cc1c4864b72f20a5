//go:build unix

package procpool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

const unreadEnv = "PROCPOOL_TEST_UNREAD"

func init() {
	if os.Getenv(unreadEnv) != "" {
		leaveReplyUnread()
		os.Exit(0)
	}
}

// leaveReplyUnread is a worker that makes a call, answers its query when the reply begins
// to arrive, and reads no more.
func leaveReplyUnread() {
	conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
	if err != nil {
		panic(err)
	}
	out := wire.NewWriter(conn, 0)
	if err := out.Ready(wire.Offer{}); err != nil {
		panic(err)
	}
	line, err := wire.NewReader(conn, 0).Next()
	if err != nil {
		panic(err)
	}
	var query wire.Envelope
	if err := wire.Decode(line, &query); err != nil {
		panic(err)
	}
	if err := out.Call(query.RequestID, "1", "large", json.RawMessage("null")); err != nil {
		panic(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		panic(err)
	}
	if err := out.Complete(query.RequestID, json.RawMessage(`"done"`), nil); err != nil {
		panic(err)
	}
	time.Sleep(time.Hour)
}

// The deadline of a query holds also when its worker still has to read a reply to a call
// of the query before.
func TestDeadlineBehindAReplyThatIsNotRead(t *testing.T) {
	large := append(append([]byte{'"'}, bytes.Repeat([]byte{'x'}, 8<<20)...), '"')
	p := startPool(t, func() *exec.Cmd {
		cmd := self("")
		cmd.Env = append(cmd.Env, unreadEnv+"=1")
		return cmd
	}, func(c *procpool.Config) {
		c.WriteTimeout, c.ShutdownGrace = time.Hour, time.Millisecond
		c.Calls = func(context.Context, procpool.Call) (json.RawMessage, error) { return large, nil }
	})
	if got := do(t, p, ask{}.raw()); got != `"done"` {
		t.Fatalf("got %s", got)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := p.Do(context.Background(), ask{}.raw(), procpool.Timeout(100*time.Millisecond))
		ended <- err
	}()
	select {
	case err := <-ended:
		var late *procpool.DeadlineError
		if !errors.As(err, &late) {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience / 4):
		t.Error("it goes on after its deadline")
		_, _ = p.Evict("", true)
	}
}
