package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
)

// count adds one to a value of the state: one key, or one of a thousand.
func count(keys byte) native.Func {
	return func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		key := "n"
		if keys > 1 {
			key = fmt.Sprint("n", m.ID[len(m.ID)-min(3, len(m.ID)-5):])
		}
		v, _, err := s.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		var n uint64
		if len(v) == 8 {
			n = binary.BigEndian.Uint64(v)
		}
		return nil, s.Put(ctx, key, binary.BigEndian.AppendUint64(nil, n+1))
	}
}

// BenchmarkState measures a handler that reads and writes a value for each message,
// beside one that does nothing, and beside a consumer that publishes for each message
// and waits for the answer. "cold" has a thousand values in the server and none in memory
// when it begins. With sync the server writes to the disk before it answers.
func BenchmarkState(b *testing.B) {
	for _, sync := range []broker.Sync{broker.SyncInterval, broker.SyncAlways} {
		cfg := broker.Config{Sync: sync}
		run := func(name string, f func(b *testing.B, bd *bed)) {
			b.Run(fmt.Sprintf("sync=%s/peer=%s", sync, name), func(b *testing.B) {
				f(b, newBedOf(b, cfg))
				rate(b)
			})
		}
		for _, code := range []string{"none", "count", "counts", "echo"} {
			run("host-"+code, func(b *testing.B, bd *bed) {
				bd.hosted(b, host.Spec{MIMEType: native.MIMEType, Code: []byte(code), OutputTopic: "out.x"}, b.N)
			})
		}
		run("host-cold", func(b *testing.B, bd *bed) {
			bd.hostedAfter(b, host.Spec{MIMEType: native.MIMEType, Code: []byte("counts")}, 1000, b.N)
		})
		run("raw-publish", func(b *testing.B, bd *bed) {
			bd.raw(b, jetstream.ConsumerConfig{MaxAckPending: 256}, b.N, func() error {
				_, err := bd.js.Publish(context.Background(), "out.x", []byte("12345678"))
				return err
			})
		})
	}
}
