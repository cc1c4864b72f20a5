package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// crowd is how many entities BenchmarkMany moves with one call.
const crowd = 1000

// BenchmarkMany moves a thousand entities with one call, and the next call moves them
// back. An operation is the move of one entity. "raw" is 64 writers, each with its share
// of the same updates, and "raw-async" is one loop of asynchronous publishes.
func BenchmarkMany(b *testing.B) {
	ctx := context.Background()
	id := func(n int) string { return fmt.Sprintf("m%d", n) }
	phase := func(round int) string { return []string{"capturing", "flying"}[round%2] }
	ours := func(opts ...workflow.RegisterOption) func(*testing.B, jetstream.JetStream) (func(string) error, func(from, to, round int) error) {
		return func(b *testing.B, js jetstream.JetStream) (func(string) error, func(from, to, round int) error) {
			m := managerOf(b, js, opts...)
			return func(id string) error { return opsOf(m).create(ctx, id) }, func(from, to, round int) error {
				moves := make([]workflow.Move, 0, to-from)
				for n := from; n < to; n++ {
					moves = append(moves, workflow.Move{EntityID: id(n), To: phase(round), Source: workflow.TransitionSourceRule})
				}
				for _, moved := range m.TransitionMany(ctx, survey, moves) {
					if moved.Err != nil {
						return moved.Err
					}
				}
				return nil
			}
		}
	}
	for name, open := range map[string]func(*testing.B, jetstream.JetStream) (func(string) error, func(from, to, round int) error){
		"raw-async": rawAsync, "lifecycle-go": ours(), "lifecycle-go-without-view": ours(workflow.WithoutView()),
	} {
		b.Run("peer="+name, func(b *testing.B) {
			js, _ := serve(b, broker.SyncInterval)
			create, move := open(b, js)
			for n := range crowd {
				if err := create(id(n)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			report := cpu.Measure(b)
			b.ResetTimer()
			for done := 0; done < b.N; done += crowd {
				if err := move(0, min(crowd, b.N-done), done/crowd); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			report()
		})
	}
	b.Run("peer=raw", func(b *testing.B) {
		js, url := serve(b, broker.SyncInterval)
		ops := raw(b, js, url)
		for n := range crowd {
			if err := ops.create(ctx, id(n)); err != nil {
				b.Fatal(err)
			}
		}
		const writers = 64
		turns := make([]int, writers)
		spread(b, writers, func(w, _ int) error {
			n := turns[w]*writers + w // entities w, w+64, …, again and again
			turns[w]++
			return ops.transition(ctx, id(n%(crowd/writers*writers)), phase(n/crowd))
		})
	})
}

// rawAsync stores the same record in the same bucket with asynchronous publishes, and
// knows the revisions.
func rawAsync(b *testing.B, js jetstream.JetStream) (func(string) error, func(from, to, round int) error) {
	ctx := context.Background()
	kv, err := js.KeyValue(ctx, "MISSIONS")
	if err != nil {
		b.Fatal(err)
	}
	revisions := make(map[string]uint64)
	create := func(id string) error {
		data, _ := json.Marshal(&mission{ID: id, State: "flying", Area: area})
		rev, err := kv.Create(ctx, id, data)
		revisions[id] = rev
		return err
	}
	return create, func(from, to, round int) error {
		acks := make([]jetstream.PubAckFuture, to)
		for n := from; n < to; n++ {
			id := fmt.Sprintf("m%d", n)
			data, _ := json.Marshal(&mission{ID: id, State: []string{"capturing", "flying"}[round%2], Area: area})
			msg := &nats.Msg{Subject: "$KV.MISSIONS." + id, Data: data, Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(revisions[id], 10)}}}
			if acks[n], err = js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
				return err
			}
		}
		for n := from; n < to; n++ {
			select {
			case ack := <-acks[n].Ok():
				revisions[fmt.Sprintf("m%d", n)] = ack.Sequence
			case err := <-acks[n].Err():
				return err
			}
		}
		return nil
	}
}
