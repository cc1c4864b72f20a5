package operator

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Times of watches.
const (
	heartbeat = 15 * time.Second // silence until a heartbeat
	feedRetry = time.Second      // pause after a source has failed
	batch     = 64               // changes taken from a feed at once
)

// watchFailed returns the function that a feed calls when its source has ended.
func (s *Server) watchFailed(what string) func(error) {
	var log repeatLog
	return func(err error) {
		log.warn(s.log, "operator: a watch has ended; starting it again", err,
			"watch", what, "fleet", s.cfg.Name, "addr", s.cfg.Addr)
	}
}

// kinds maps the kinds of a feed's items to those of the contract. A feed sends
// no gap.
var kinds = map[stream.Kind]operatorv1.WatchResponse_Kind{
	stream.Put:     operatorv1.WatchResponse_KIND_PUT,
	stream.Deleted: operatorv1.WatchResponse_KIND_DELETED,
	stream.Synced:  operatorv1.WatchResponse_KIND_SYNCED,
}

// follow sends what r reads, one item after the other.
func follow[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T],
	send func(operatorv1.WatchResponse_Kind, string, T) error,
) error {
	return batches(ctx, s, who, r, func(items []stream.Item[T]) error {
		if len(items) == 0 {
			var none T
			return send(operatorv1.WatchResponse_KIND_HEARTBEAT, "", none)
		}
		for _, it := range items {
			if err := send(kinds[it.Kind], it.Key, it.Value); err != nil {
				return err
			}
		}
		return nil
	})
}

// batches passes on what r reads, and an empty batch as a heartbeat. It ends when the
// caller goes, the stream is too old, the credentials expire, or the process begins to
// drain. It closes r.
func batches[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T], send func([]stream.Item[T]) error,
) error {
	defer r.Close()
	over, leave, err := s.bounded(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	for {
		beat, stop := context.WithTimeout(over, heartbeat)
		items, err := r.Next(beat, batch)
		stop()
		switch {
		case err == nil:
		case ctx.Err() != nil: // the caller has gone
			return ctx.Err()
		case errors.Is(err, feed.ErrSlow):
			return Errorf(connect.CodeAborted, ReasonStreamOver, "",
				"this watch is too slow and would have missed a deletion: watch again")
		case over.Err() != nil || errors.Is(err, context.Canceled):
			return errWatchOver()
		}
		if err := send(items); err != nil {
			return sendFailed(err)
		}
	}
}

// bounded takes a place for a stream of a caller. The context ends when the stream is too
// old, the credentials expire, or the process begins to drain.
func (s *Server) bounded(ctx context.Context, who Principal) (over context.Context, leave func(), err error) {
	if !s.streams.take(who.id(), 1) {
		return nil, nil, Errorf(connect.CodeResourceExhausted, ReasonTooManyStreams, "",
			"too many watches are open (at most %d, and %d for one caller): close some", s.cfg.MaxStreams, s.cfg.MaxStreamsEach)
	}
	until := time.Now().Add(s.cfg.MaxStreamAge)
	if !who.Until.IsZero() && who.Until.Before(until) {
		until = who.Until
	}
	over, cancel := context.WithDeadlineCause(ctx, until, errStreamOver)
	drained := make(chan struct{})
	draining := lifecycle.Stream(ctx)
	go func() {
		defer close(drained)
		select {
		case <-draining:
			cancel()
		case <-over.Done():
		}
	}()
	return over, func() {
		cancel()
		<-drained
		s.streams.give(who.id(), 1)
	}, nil
}

var errStreamOver = errors.New("the watch is old")

func errWatchOver() error {
	return Errorf(connect.CodeUnavailable, ReasonStreamOver, "",
		"the watch has ended, because it is old or the server stops: watch again")
}

// sendFailed returns the error for a failed send: the caller hung up, or did not read
// for longer than a write may take.
func sendFailed(err error) error {
	return Errorf(connect.CodeCanceled, ReasonStreamOver, "", "the caller does not read: %v", err)
}
