package host_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
)

// goroutines returns how many goroutines of this process run code of the host, or wait
// for messages of its subscriptions.
func goroutines(t *testing.T) (n int, stacks string) {
	var all bytes.Buffer
	must(t, pprof.Lookup("goroutine").WriteTo(&all, 2))
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "/fleet/host.(*") || strings.Contains(stack, ".waitForMsgs(") {
			n++
			stacks += stack + "\n\n"
		}
	}
	return n, stacks
}

// A worker that has nothing to do has three goroutines, also when it had something to do
// before: for its record, for its messages, and for its handler.
func TestAnIdleWorkerCostsThreeGoroutines(t *testing.T) {
	const workers, others = 20, 15
	r := newRig(t)
	r.native("echo", func(_ context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		return text(string(m.Data)), s.Put(context.Background(), "key", m.Data)
	})
	h := r.start("a")
	for i := range workers {
		create(t, h, host.Spec{ID: fmt.Sprint("w", i), MIMEType: native.MIMEType, Topic: fmt.Sprint("work.", i), OutputTopic: fmt.Sprint("out.", i), Code: []byte("echo")})
		r.publish(fmt.Sprint("work.", i), "x")
	}
	for i := range workers {
		r.wantOutputs(fmt.Sprint("out.", i), "x")
	}
	var stacks string
	defer func() {
		if t.Failed() {
			t.Log(stacks)
		}
	}()
	r.eventually("the workers are idle", func() bool {
		var n int
		n, stacks = goroutines(t)
		return n <= 3*workers+others
	})
}
