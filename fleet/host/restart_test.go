package host_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// TestServerRestarts checks that the only server of a small fleet may restart under
// load: no message is lost, none becomes a dead letter, and state counts each one once.
func TestServerRestarts(t *testing.T) {
	srv := brokertest.StartCluster(t, 1)
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: srv.URL()}), 1)
	// A restart may take longer than this lease. The server delivers the messages
	// that were in flight when it stopped again after AckWait.
	r.tune = func(c *host.Config) {
		c.LeaseTTL, c.AckWait = 3*time.Second, 5*time.Second
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil)) // to show the log when the test fails
	}
	h := r.start("a")
	code := []byte(`
def handle(message):
    n = int(state.get("n") or "0") + 1
    state.put("n", str(n))
    state.put("m/" + message.text, "1")
    return message.text
`)
	for _, id := range []string{"w", "member"} {
		req := host.Spec{ID: id, Topic: "work." + id, OutputTopic: "out." + id, Code: code}
		if id == "member" {
			req.Group = "g"
		}
		create(t, h, req)
	}
	over := make(chan struct{})
	var load sync.WaitGroup
	sent := 0
	load.Go(func() {
		for ; ; sent++ {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
			}
			for _, id := range []string{"w", "member"} {
				for what := strconv.Itoa(sent); ; time.Sleep(20 * time.Millisecond) {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					_, err := r.js.Publish(ctx, "work."+id, []byte(what), jetstream.WithMsgID(id+what))
					cancel()
					if err == nil {
						break
					}
				}
			}
		}
	})
	for range 2 {
		before := len(r.outputs("out.w"))
		r.eventually("messages flow", func() bool { return len(r.outputs("out.w")) > before+20 })
		srv.StopAll()
		srv.StartAll()
		r.eventually("the server answers", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the request may go to the connection that has ended
			defer cancel()
			_, err := r.js.Stream(ctx, "WORK")
			return err == nil
		})
	}
	close(over)
	load.Wait()
	for _, id := range []string{"w", "member"} {
		rec, err := h.Get(t.Context(), id)
		must(t, err)
		states, err := r.js.Stream(t.Context(), "HOST_STATE")
		must(t, err)
		prefix := "$host.state.w-" + id + ".kv." + rec.UID + "."
		written := make(map[string]string)
		settled := func() bool {
			info, err := states.Info(t.Context(), jetstream.WithSubjectFilter(prefix+"m/*"))
			if err != nil {
				return false
			}
			for subject := range info.State.Subjects {
				written[strings.TrimPrefix(subject, prefix)] = "1"
			}
			return len(written) == sent
		}
		for most, deadline := 0, time.Now().Add(bound); !settled(); time.Sleep(50 * time.Millisecond) {
			if len(written) > most { // without any progress
				most, deadline = len(written), time.Now().Add(bound)
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d of %d messages have taken effect: %s", id, most, sent, r.whereabouts(id, sent, written))
			}
		}
		n, err := states.GetLastMsgForSubject(t.Context(), prefix+"n")
		must(t, err)
		if got, _ := strconv.Atoi(string(n.Data)); got != sent {
			t.Errorf("%s: the counter is %d after %d messages", id, got, sent)
		}
		r.letters(h, id, 0)
	}
}
