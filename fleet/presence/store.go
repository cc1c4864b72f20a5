package presence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stream is a stream of the JetStream that the fleet is in, also of another program. A bucket B is the
// stream KV_B.
type Stream struct {
	Name        string
	Made        time.Time // when the server created it
	OnDisk      bool
	Messages    uint64
	Bytes       uint64
	MaxMessages int64 // 0 for no limit
	MaxBytes    int64 // 0 for no limit
	Refuses     bool  // a full stream refuses writes; otherwise its oldest messages go
	Consumers   []Consumer
}

// Consumer is a durable consumer of a stream.
type Consumer struct {
	Name    string
	Pending uint64 // messages that it has not delivered
	InHand  int    // messages that it has delivered and that are not acknowledged (num_ack_pending)
	Again   int    // of InHand: messages that it has delivered more than once (num_redelivered)
	Floor   uint64 // all messages up to this one are acknowledged (ack_floor), or delivered when none is needed
	Paused  bool
	Host    string // the name of the hosts of workers that have made it, "" for none
}

// canary is the stream of CheckWrites.
func (f *Fleet) canary() string { return f.cfg.Bucket + "_CANARY" }

// Streams returns all streams of the JetStream that the fleet is in, with their durable
// consumers, but not the one of [Fleet.CheckWrites]. It needs the permission to list them.
func (f *Fleet) Streams(ctx context.Context) ([]Stream, error) {
	var list []Stream
	lister := f.js.ListStreams(ctx)
	for info := range lister.Info() {
		c := info.Config
		if c.Name == f.canary() {
			continue
		}
		s := Stream{
			Name:        c.Name,
			Made:        info.Created,
			OnDisk:      c.Storage == jetstream.FileStorage,
			Messages:    info.State.Msgs,
			Bytes:       info.State.Bytes,
			MaxMessages: max(0, c.MaxMsgs),
			MaxBytes:    max(0, c.MaxBytes),
			Refuses:     c.Discard == jetstream.DiscardNew,
		}
		if info.State.Consumers > 0 {
			var err error
			if s.Consumers, err = f.consumers(ctx, c.Name); err != nil {
				return nil, err
			}
		}
		list = append(list, s)
	}
	if err := lister.Err(); err != nil {
		return nil, fmt.Errorf("presence: list streams: %w", err)
	}
	return list, nil
}

func (f *Fleet) consumers(ctx context.Context, name string) (list []Consumer, err error) {
	stream, err := f.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // deleted a moment ago
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("presence: stream %s: %w", name, err)
	}
	lister := stream.ListConsumers(ctx)
	for info := range lister.Info() {
		if info.Config.Durable == "" {
			continue
		}
		c := Consumer{
			Name:    info.Name,
			Pending: info.NumPending,
			InHand:  info.NumAckPending,
			Again:   info.NumRedelivered,
			Floor:   info.AckFloor.Consumer,
			Paused:  info.Paused,
			Host:    info.Config.Metadata["lifecycle.host"],
		}
		if info.Config.AckPolicy == jetstream.AckNonePolicy {
			c.Floor = info.Delivered.Consumer
		}
		list = append(list, c)
	}
	if err := lister.Err(); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("presence: list consumers of %s: %w", name, err)
	}
	return list, nil
}

// canarySize is more than fits into the last page of a file on a full disk.
const canarySize = 8 << 10

// CheckWrites stores a small record and returns nil when NATS has it: a server whose disk is full
// answers reads and takes no writes. The record takes the place of the one before, in a stream of
// its own: the bucket's name and "_CANARY", which CheckWrites creates when it is missing.
func (f *Fleet) CheckWrites(ctx context.Context) error {
	name, subject := f.canary(), f.cfg.Prefix+".canary"
	store := func() error {
		_, err := f.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: make([]byte, canarySize)}, jetstream.WithExpectStream(name))
		return err
	}
	err := store()
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		_, err = f.js.CreateStream(ctx, jetstream.StreamConfig{
			Name:        name,
			Subjects:    []string{subject},
			Description: "one record, which operators' servers write to find out whether NATS takes writes",
			MaxMsgs:     1,
			Storage:     jetstream.FileStorage,
		})
		if err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			err = store()
		}
	}
	if err != nil {
		return fmt.Errorf("presence: store a record in %s: %w", name, err)
	}
	return nil
}
