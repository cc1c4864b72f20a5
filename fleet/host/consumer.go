package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// consumer returns the durable consumer of a slot. One that is missing, because
// somebody removed it, is made anew and begins with what is published from then
// on.
func (h *Host) consumer(ctx context.Context, slot, stream string) (jetstream.Consumer, error) {
	c, err := h.js.Consumer(ctx, stream, slot)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		h.log.Warn("hosted worker: its consumer is gone and is made anew", "slot", slot)
		if err := h.subscribe(ctx, slot, stream); err != nil {
			return nil, err
		}
		c, err = h.js.Consumer(ctx, stream, slot)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", slot, stream, err)
	}
	// It may be of a host that was configured otherwise: this one's words to the
	// server come as often as its own AckWait needs them.
	now := c.CachedInfo().Config
	if want := h.pending(slot); now.AckWait != h.cfg.AckWait || now.MaxAckPending != want {
		now.AckWait, now.MaxAckPending = h.cfg.AckWait, want
		if c, err = h.js.UpdateConsumer(ctx, stream, now); err != nil {
			return nil, fmt.Errorf("consumer %s of stream %s: %w", slot, stream, err)
		}
	}
	return c, nil
}

// pending is how many messages of a slot may be unacknowledged.
func (h *Host) pending(slot string) int {
	if strings.HasPrefix(slot, "g-") {
		return 1
	}
	return 2 * h.cfg.Prefetch
}

// subscribe makes the consumer of a slot, or has it take the topics of all who
// are in the slot.
func (h *Host) subscribe(ctx context.Context, slot, stream string) error {
	all, err := h.List(ctx)
	if err != nil && all == nil {
		return err
	}
	all = slices.DeleteFunc(all, func(r *Record) bool {
		return r.slot() != slot || r.State == PhaseDeleting || r.State == PhaseDeleted
	})
	for _, r := range all {
		if r.Stream != stream {
			return fmt.Errorf("%w: the topics of a group must be in one stream: %s is in %s and %s in %s", ErrInvalid, r.Topic, r.Stream, slot, stream)
		}
	}
	return h.filter(ctx, slot, stream, topics(all))
}

// cover has the consumer of a slot take the topics of records beside those that it
// takes: whoever made one of them may have died before that, or have known less
// than another one who was at it too.
func (h *Host) cover(ctx context.Context, slot string, records []*Record) error {
	if len(records) == 0 {
		return nil
	}
	stream := records[0].Stream
	c, err := h.consumer(ctx, slot, stream)
	if err != nil {
		return err
	}
	cfg := c.CachedInfo().Config
	all := append(slices.Clone(cfg.FilterSubjects), topics(records)...)
	if cfg.FilterSubject != "" {
		all = append(all, cfg.FilterSubject)
	}
	return h.filter(ctx, slot, stream, distinct(all))
}

// group returns the others of rec's slot.
func (h *Host) group(ctx context.Context, rec *Record) ([]*Record, error) {
	all, err := h.List(ctx)
	if all == nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r *Record) bool { return r.slot() != rec.slot() || r.ID == rec.ID }), nil
}

// filter has the consumer of a slot take these topics.
func (h *Host) filter(ctx context.Context, slot, stream string, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	cfg := jetstream.ConsumerConfig{
		Durable:        slot,
		Description:    "hosted workers of " + h.cfg.Name,
		DeliverPolicy:  jetstream.DeliverNewPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        h.cfg.AckWait,
		MaxDeliver:     -1, // the retry budget is ours: the server's drops what a dying host had
		FilterSubjects: topics,
		MaxAckPending:  h.pending(slot),
		Replicas:       0, // as many as its stream, which is somebody else's, has
	}
	c, err := h.js.Consumer(ctx, stream, slot)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		_, err = h.js.CreateConsumer(ctx, stream, cfg)
		var refused *jetstream.APIError
		if errors.As(err, &refused) && refused.ErrorCode == workQueueDeliversAll {
			cfg.DeliverPolicy = jetstream.DeliverAllPolicy
			_, err = h.js.CreateConsumer(ctx, stream, cfg)
		}
		if errors.Is(err, jetstream.ErrConsumerExists) {
			return h.filter(ctx, slot, stream, topics) // another host was faster
		}
	case err == nil:
		now := c.CachedInfo().Config
		if slices.Equal(now.FilterSubjects, topics) || now.FilterSubject != "" && slices.Equal([]string{now.FilterSubject}, topics) {
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

// workQueueDeliversAll is the server's refusal of a consumer that would leave out
// what waits in a work queue.
const workQueueDeliversAll jetstream.ErrorCode = 10101

// topics returns the topics of records as the filters of a consumer.
func topics(records []*Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, r.Topic)
	}
	return distinct(all)
}

// distinct returns subjects, sorted, without those that another one covers: the
// server refuses filters that overlap.
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
