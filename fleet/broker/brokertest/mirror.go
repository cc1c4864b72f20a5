package brokertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
)

// mirror keeps a mirror of a bucket of the hub in the region. When the test ends, the
// mirror must have what the bucket has: the last write of each key, with its revision,
// time and record.
func (c *Cluster) mirror(tb testing.TB, hub *broker.Broker, bucket string) {
	tb.Helper()
	nc, err := nats.Connect(c.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	cfg := jetstream.StreamConfig{
		Name: "KV_" + bucket, Storage: jetstream.FileStorage, MaxMsgsPerSubject: -1, AllowDirect: true,
		Mirror: &jetstream.StreamSource{Name: "KV_" + bucket, Domain: "hub"},
	}
	Await(tb, "the mirror of "+bucket, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := js.CreateStream(ctx, cfg) // it may exist: then it is the same
		return err == nil
	})
	tb.Cleanup(func() {
		if tb.Failed() {
			return
		}
		var why error
		defer func() {
			if tb.Failed() {
				tb.Log(why)
			}
		}()
		Await(tb, "the mirror to have what the bucket has", func() bool {
			why = sameLast(hub.JetStream(), js, "KV_"+bucket)
			return why == nil
		})
	})
}

// sameLast compares the last messages of each subject that stream a has with those of
// its mirror b. The mirror may have more.
func sameLast(a, b jetstream.JetStream, stream string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	origin, err := a.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // the test has deleted it
	}
	if err != nil {
		return err
	}
	copied, err := b.Stream(ctx, stream)
	if err != nil {
		return err
	}
	info, err := origin.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return err
	}
	if last := copied.CachedInfo().State.LastSeq; last < info.State.LastSeq {
		return fmt.Errorf("the mirror is at %d and the stream at %d", last, info.State.LastSeq)
	}
	for subject := range info.State.Subjects {
		mine, err := origin.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			return err
		}
		theirs, err := copied.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			return fmt.Errorf("%s in the mirror: %w", subject, err)
		}
		if mine.Sequence != theirs.Sequence || !mine.Time.Equal(theirs.Time) || string(mine.Data) != string(theirs.Data) {
			return fmt.Errorf("the mirror has %+v and the stream %+v", theirs, mine)
		}
	}
	return nil
}
