package canary_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
)

// TestTheServersClockDecides checks a bucket of a server whose clock is an hour ahead of
// this process's, and one whose clock is an hour behind.
func TestTheServersClockDecides(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc := brokertest.Embedded(t, broker.Config{}).Conn()
	for name, c := range map[string]struct {
		ahead time.Duration // of the server's clock
		ago   time.Duration // the last write
		wrote bool
	}{
		"ahead, a write a minute ago":  {time.Hour, time.Minute, true},
		"ahead, a write just now":      {time.Hour, time.Second, false},
		"behind, a write a minute ago": {-time.Hour, time.Minute, true},
		"behind, a write just now":     {-time.Hour, time.Second, false},
	} {
		now := time.Now().Add(c.ahead)
		answer, err := json.Marshal(map[string]any{
			"type":    "io.nats.jetstream.api.v1.stream_info_response",
			"config":  map[string]any{"name": "KV_B", "subjects": []string{"$KV.B.>"}, "max_msgs_per_subject": 1, "allow_rollup_hdrs": true},
			"state":   map[string]any{"messages": 1, "last_seq": 1, "last_ts": now.Add(-c.ago)},
			"created": now.Add(-time.Hour), "ts": now,
		})
		must(t, err)
		api := "CLOCK" + nc.NewInbox()[len("_INBOX."):]
		info, err := nc.Subscribe(api+".STREAM.INFO.KV_B", func(msg *nats.Msg) { _ = msg.Respond(answer) })
		must(t, err)
		wrote := make(chan struct{}, 1)
		put, err := nc.Subscribe(api+".$KV.B.>", func(msg *nats.Msg) {
			wrote <- struct{}{}
			_ = msg.Respond([]byte(`{"stream":"KV_B","seq":2}`))
		})
		must(t, err)
		js, err := jetstream.NewWithAPIPrefix(nc, api)
		must(t, err)
		must(t, canary.Check(ctx, js, "B", 10*time.Second))
		if got := len(wrote) == 1; got != c.wrote {
			t.Errorf("%s: wrote a marker: %v", name, got)
		}
		must(t, info.Unsubscribe())
		must(t, put.Unsubscribe())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
