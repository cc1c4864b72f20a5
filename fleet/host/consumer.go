package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/worker"
)

// consumer returns the durable consumer of rec's slot, which takes these topics. It creates
// the consumer when there is none; a new one begins with the messages published after that.
// When keep is true, the consumer goes on to take the topics that it has. It makes none on a stream of
// the hosts: Create has looked, and the record may have been forged since. It returns the stream too.
func (h *Host) consumer(
	ctx context.Context, rec *Record, topics []string, keep bool,
) (jetstream.Consumer, jetstream.Stream, error) {
	of, err := h.streamOf(ctx, rec.Stream)
	if err != nil {
		return nil, nil, err
	}
	slot, stream := h.durable(rec), rec.Stream
	c, err := h.js.Consumer(ctx, stream, slot)
	switch {
	case err == nil && !h.isOurs(c):
		err = errForeignConsumer
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		c, err = h.createConsumer(ctx, rec, topics)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			return h.consumer(ctx, rec, topics, keep) // another host was faster
		}
	case err == nil:
		c, err = h.updateConsumer(ctx, rec, c, topics, keep)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("consumer %s of stream %s: %w", slot, stream, err)
	}
	return c, of, nil
}

// hostMark is in the metadata of everything that hosts create on the server, with their
// fleet's name. Hosts touch no consumer without it.
const hostMark = "lifecycle.host"

var errForeignConsumer = errors.New("another program has made it: delete it, or give the hosts another name")

// durable returns the name of the consumer of rec's slot. It has the fleet's name, because two
// fleets may share a stream.
func (h *Host) durable(rec *Record) string { return h.cfg.Name + "_" + rec.slot() }

// isOurs reports whether a host of this fleet has made a consumer.
func (h *Host) isOurs(c jetstream.Consumer) bool {
	return c.CachedInfo().Config.Metadata[hostMark] == h.cfg.Name
}

func (h *Host) createConsumer(ctx context.Context, rec *Record, topics []string) (jetstream.Consumer, error) {
	if rec.State != StateDeploying {
		h.log.Warn("hosted worker: its consumer is gone and is made anew", "slot", rec.slot())
	}
	cfg := jetstream.ConsumerConfig{
		Durable:        h.durable(rec),
		Metadata:       map[string]string{hostMark: h.cfg.Name},
		Description:    "hosted workers of " + h.cfg.Name,
		DeliverPolicy:  jetstream.DeliverNewPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        h.cfg.AckWait,
		MaxDeliver:     -1, // the host counts attempts; the server's limit would drop messages of a dying host
		FilterSubjects: topics,
		MaxAckPending:  h.pending(rec.slot()),
		Replicas:       0, // as many as its stream has; hosts do not own the stream
	}
	c, err := h.js.CreateConsumer(ctx, rec.Stream, cfg)
	if natserr.Is(err, natserr.WorkQueueDeliversAll) { // a consumer of a work queue must take the waiting messages too
		cfg.DeliverPolicy = jetstream.DeliverAllPolicy
		c, err = h.js.CreateConsumer(ctx, rec.Stream, cfg)
	}
	if natserr.Is(err, jetstream.JSErrCodeMaximumConsumersLimit) {
		err = fmt.Errorf("%w: set the stream's max_consumers to the number of workers or more; without it the server allows "+
			"1,000, or as many as the account has", err)
	}
	return c, err
}

// updateConsumer changes the topics of a consumer. A host with another configuration may have
// made it: this host sends heartbeats as often as its own AckWait needs them.
func (h *Host) updateConsumer(
	ctx context.Context, rec *Record, c jetstream.Consumer, topics []string, keep bool,
) (jetstream.Consumer, error) {
	cfg := c.CachedInfo().Config
	taken := cfg.FilterSubjects
	if cfg.FilterSubject != "" {
		taken = []string{cfg.FilterSubject}
	}
	if keep {
		topics = distinct(slices.Concat(taken, topics))
	}
	pending := h.pending(rec.slot())
	if slices.Equal(taken, topics) && cfg.AckWait == h.cfg.AckWait && cfg.MaxAckPending == pending {
		return c, nil
	}
	cfg.FilterSubject, cfg.FilterSubjects = "", topics
	cfg.AckWait, cfg.MaxAckPending = h.cfg.AckWait, pending
	return h.js.UpdateConsumer(ctx, rec.Stream, cfg)
}

// pending returns how many messages of a slot may be unacknowledged.
func (h *Host) pending(slot string) int {
	if isGroup(slot) {
		return 1
	}
	return 2 * h.cfg.Prefetch
}

// subscribe makes the consumer of rec's slot. If there is one, it adds rec's topic to the
// topics that the consumer takes.
func (h *Host) subscribe(ctx context.Context, rec *Record) error {
	// Another host may add a worker to the group at the same time, and neither may have seen the
	// other's record. Each host reads the group again after it has written the consumer, so the
	// last writer sees both workers.
	for known := []string(nil); ; {
		members := []*Record{rec}
		if rec.Group != "" {
			others, err := h.group(ctx, rec)
			if err != nil {
				return err
			}
			members = append(members, slices.DeleteFunc(others, func(r *Record) bool { return r.State.leaving() })...)
		}
		for _, r := range members {
			if r.Stream != rec.Stream {
				return fmt.Errorf("%w: the topics of a group must be in one stream: %s is in %s and %s in %s",
					ErrInvalid, r.Topic, r.Stream, rec.Topic, rec.Stream)
			}
		}
		wanted := topics(members)
		if slices.Equal(wanted, known) {
			return nil
		}
		if _, _, err := h.consumer(ctx, rec, wanted, true); err != nil || rec.Group == "" {
			return err
		}
		known = wanted
	}
}

// unsubscribe removes the consumer of rec's slot and returns when the server no
// longer finds it. In a cluster a lookup right after the deletion may still find
// the consumer, and a caller that wants to create it again would believe that it
// exists.
func (h *Host) unsubscribe(ctx context.Context, rec *Record) error {
	gone := func(err error) bool {
		return errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
	}
	c, err := h.js.Consumer(ctx, rec.Stream, h.durable(rec))
	if err == nil && !h.isOurs(c) {
		return nil
	}
	if err == nil {
		err = h.js.DeleteConsumer(ctx, rec.Stream, h.durable(rec))
	}
	wait := worker.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for looks := 1; err == nil; looks++ {
		var now jetstream.Consumer
		now, err = h.js.Consumer(ctx, rec.Stream, h.durable(rec))
		if err == nil && !now.CachedInfo().Created.Equal(c.CachedInfo().Created) {
			return nil // another host has created it again, for a new member of the group
		}
		if err == nil {
			err = wait.Sleep(ctx, looks)
		}
	}
	if gone(err) {
		return nil
	}
	return err
}

// group returns the other workers of rec's slot. It leaves out records that cannot
// be read.
func (h *Host) group(ctx context.Context, rec *Record) ([]*Record, error) {
	all, err := h.List(ctx)
	if all == nil && err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r *Record) bool { return r.slot() != rec.slot() || r.ID == rec.ID }), nil
}

// topics returns the topics of records as the filters of a consumer.
func topics(records []*Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, r.Topic)
	}
	return distinct(all)
}

// distinct returns subjects, sorted, and leaves out each one that another subject
// covers. The server refuses filters that overlap.
func distinct(subjects []string) []string {
	found := slices.Compact(slices.Sorted(slices.Values(subjects)))
	return slices.DeleteFunc(slices.Clone(found), func(t string) bool {
		return slices.ContainsFunc(found, func(other string) bool { return other != t && matches(other, t) })
	})
}
