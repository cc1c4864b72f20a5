package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/worker"
)

// consumer returns the durable consumer of a slot, whose members are records. It
// creates a consumer that was removed; the new one begins with the messages
// published after that.
func (h *Host) consumer(ctx context.Context, records []*Record) (jetstream.Consumer, error) {
	slot, stream := records[0].slot(), records[0].Stream
	c, err := h.js.Consumer(ctx, stream, slot)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		h.log.Warn("hosted worker: its consumer is gone and is made anew", "slot", slot)
		for _, rec := range records {
			if err := h.subscribe(ctx, rec); err != nil {
				return nil, err
			}
		}
		c, err = h.js.Consumer(ctx, stream, slot)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", slot, stream, err)
	}
	// A host with another configuration may have made the consumer. This host
	// sends heartbeats as often as its own AckWait needs them.
	now := c.CachedInfo().Config
	if want := h.pending(slot); now.AckWait != h.cfg.AckWait || now.MaxAckPending != want {
		now.AckWait, now.MaxAckPending = h.cfg.AckWait, want
		if c, err = h.js.UpdateConsumer(ctx, stream, now); err != nil {
			return nil, fmt.Errorf("consumer %s of stream %s: %w", slot, stream, err)
		}
	}
	return c, nil
}

// pending returns how many messages of a slot may be unacknowledged.
func (h *Host) pending(slot string) int {
	if strings.HasPrefix(slot, "g-") {
		return 1
	}
	return 2 * h.cfg.Prefetch
}

// subscribe makes the consumer of rec's slot. If there is one, it adds rec's topic
// to the topics that the consumer takes.
func (h *Host) subscribe(ctx context.Context, rec *Record) error {
	if rec.Group == "" {
		return h.filter(ctx, rec, []string{rec.Topic}, true)
	}
	// Another host may add a worker to the group at the same time, and neither may
	// have seen the other's record. Each host reads the group again after it has
	// written the consumer, so the last writer sees both workers.
	for known := []string(nil); ; {
		all, err := h.group(ctx, rec)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(r *Record) bool { return r.State == StateDeleting || r.State == StateDeleted })
		for _, r := range all {
			if r.Stream != rec.Stream {
				return fmt.Errorf("%w: the topics of a group must be in one stream: %s is in %s and %s in %s", ErrInvalid, r.Topic, r.Stream, rec.Topic, rec.Stream)
			}
		}
		wanted := topics(append(all, rec))
		if slices.Equal(wanted, known) {
			return nil
		}
		if err := h.filter(ctx, rec, wanted, true); err != nil {
			return err
		}
		known = wanted
	}
}

// cover adds the topics of records to those that the slot's consumer takes. The
// host that created one of the records may have died before it added the topic.
func (h *Host) cover(ctx context.Context, records []*Record) error {
	if len(records) == 0 {
		return nil
	}
	if _, err := h.consumer(ctx, records); err != nil {
		return err
	}
	return h.filter(ctx, records[0], topics(records), true)
}

// unsubscribe removes the consumer of rec's slot and returns when the server no
// longer finds it. In a cluster a lookup right after the deletion may still find
// the consumer, and a caller that wants to create it again would believe that it
// exists.
func (h *Host) unsubscribe(ctx context.Context, rec *Record) error {
	gone := func(err error) bool {
		return errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
	}
	c, err := h.js.Consumer(ctx, rec.Stream, rec.slot())
	if err == nil {
		err = h.js.DeleteConsumer(ctx, rec.Stream, rec.slot())
	}
	wait := worker.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for looks := 1; err == nil; looks++ {
		var now jetstream.Consumer
		now, err = h.js.Consumer(ctx, rec.Stream, rec.slot())
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

// filter sets the topics of the consumer of rec's slot, and creates the consumer
// if it is missing. When keep is true, filter keeps the topics that the
// consumer takes already.
func (h *Host) filter(ctx context.Context, rec *Record, topics []string, keep bool) error {
	slot, stream := rec.slot(), rec.Stream
	cfg := jetstream.ConsumerConfig{
		Durable:        slot,
		Description:    "hosted workers of " + h.cfg.Name,
		DeliverPolicy:  jetstream.DeliverNewPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        h.cfg.AckWait,
		MaxDeliver:     -1, // the host counts attempts; the server's limit would drop messages of a dying host
		FilterSubjects: topics,
		MaxAckPending:  h.pending(slot),
		Replicas:       0, // as many as its stream has; hosts do not own the stream
	}
	c, err := h.js.Consumer(ctx, stream, slot)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		err = h.addConsumer(ctx, stream, cfg)
		if natserr.Is(err, natserr.WorkQueueDeliversAll) { // a consumer of a work queue must take the waiting messages too
			cfg.DeliverPolicy = jetstream.DeliverAllPolicy
			err = h.addConsumer(ctx, stream, cfg)
		}
		if errors.Is(err, jetstream.ErrConsumerExists) {
			return h.filter(ctx, rec, topics, keep) // another host was faster
		}
	case err == nil:
		now := c.CachedInfo().Config
		taken := now.FilterSubjects
		if now.FilterSubject != "" {
			taken = []string{now.FilterSubject}
		}
		if keep {
			topics = distinct(slices.Concat(taken, topics))
		}
		if slices.Equal(taken, topics) {
			return nil
		}
		now.FilterSubject, now.FilterSubjects = "", topics
		_, err = h.js.UpdateConsumer(ctx, stream, now)
	}
	if err != nil {
		return fmt.Errorf("consumer %s of stream %s: %w", slot, stream, err)
	}
	return nil
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

// validPattern reports whether topic can be subscribed to.
func validPattern(topic string) bool {
	tokens := strings.Split(topic, ".")
	for i, t := range tokens {
		wild := t == "*" || t == ">" && i == len(tokens)-1
		if !wild && (t == "" || strings.ContainsAny(t, "*>") || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r == 0x7f })) {
			return false
		}
	}
	return len(topic) <= 512
}

// matches reports whether subject matches pattern, by the rules of NATS.
func matches(pattern, subject string) bool {
	for {
		p, restP, moreP := strings.Cut(pattern, ".")
		t, restS, moreS := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return t != ""
		case p != "*" && p != t:
			return false
		case !moreP || !moreS:
			return moreP == moreS
		}
		pattern, subject = restP, restS
	}
}
