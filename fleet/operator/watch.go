package operator

import (
	"context"
	"errors"
	"strings"
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

// kinds maps the kinds of a feed's items to the kinds of the API. A feed sends
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
	return batches(ctx, s, who, r, heartbeat, func(items []stream.Item[T]) error {
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

// batches passes on what r reads, and an empty batch after each silence as a heartbeat. It ends when the
// caller goes, the stream is too old, the credentials expire, or the process begins to
// drain. It closes r.
func batches[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T], silence time.Duration, send func([]stream.Item[T]) error,
) error {
	defer r.Close()
	streaming, leave, err := s.bounded(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	for {
		beat, stop := context.WithTimeout(streaming, silence)
		items, err := r.Next(beat, batch)
		stop()
		switch {
		case err == nil:
		case ctx.Err() != nil: // the caller has gone
			return ctx.Err()
		case errors.Is(err, feed.ErrSlow):
			return Errorf(connect.CodeAborted, ReasonStreamOver, "",
				"this watch is too slow and would have missed a deletion: watch again")
		case streaming.Err() != nil || errors.Is(err, context.Canceled):
			return errWatchOver()
		}
		if err := send(items); err != nil {
			return sendFailed(err)
		}
	}
}

// bounded takes a place for a stream of a caller. The context ends when the stream is too
// old, the credentials expire, or the process begins to drain.
func (s *Server) bounded(ctx context.Context, who Principal) (streaming context.Context, leave func(), err error) {
	if !s.streams.take(who.id(), 1) {
		return nil, nil, Errorf(connect.CodeResourceExhausted, ReasonTooManyStreams, "",
			"too many watches are open (at most %d, and %d for one caller): close some", s.cfg.MaxStreams, s.cfg.MaxStreamsEach)
	}
	until := time.Now().Add(s.cfg.MaxStreamAge)
	if !who.Until.IsZero() && who.Until.Before(until) {
		until = who.Until
	}
	streaming, cancel := context.WithDeadlineCause(ctx, until, errStreamOver)
	drained := make(chan struct{})
	draining := lifecycle.Stream(ctx)
	go func() {
		defer close(drained)
		select {
		case <-draining:
			cancel()
		case <-streaming.Done():
		}
	}()
	return streaming, func() {
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

// Times of live pages.
const (
	pageBeat  = 5 * time.Second        // silence until a heartbeat: live.js waits for two and a half of them
	lookAgain = 3 * time.Second        // when a page looks again whose area does not report changes
	gather    = 400 * time.Millisecond // changes within this time are notified as one
)

// changed calls notify(true) when the content of a page may have changed, and
// notify(false) as a heartbeat, until ctx ends.
func (s *Server) changed(ctx context.Context, topic, name string, notify func(news bool) error) error {
	who, err := s.authorize(ctx, "AccessService.WhoAmI")
	if err != nil {
		return err
	}
	away := strings.Join(s.away(), " ")
	plain := notify
	notify = func(news bool) error { // an outage changes every page
		now := strings.Join(s.away(), " ")
		news, away = news || now != away, now
		return plain(news)
	}
	switch {
	case topic == "workflow" && s.cfg.Workflows != nil:
		c := &request{action: "WorkflowService.GetDefinition", scope: scopeOne, object: name, who: who}
		if err := s.resolve(ctx, c); err != nil {
			return err
		}
		if err := s.permitted(c); err != nil {
			return err
		}
		if _, err := s.cfg.Workflows.Definition(ctx, name); err != nil {
			return err
		}
		return onChange(ctx, s, who, s.flows.flow(name).changes.Follow("", nil), notify)
	case topic == "processes" && s.processes != nil:
		// Values that a process announces all the time do not count as a change. The page of one
		// process shows them, so it looks again with each heartbeat.
		// The page of all shows what is wrong, which also time changes.
		r, isOnePage, isNew := s.processes.Follow(name, who.seesProcess), name != "", s.isNewDiagnosis()
		return onChange(ctx, s, who, r, func(news bool) error { return notify(isNew() || news || isOnePage) })
	case topic == "workflows" && s.cfg.Workflows != nil, topic == "workers" && s.cfg.Workers != nil, topic == "audit":
		return s.lookAgain(ctx, who, notify)
	}
	return Errorf(connect.CodeNotFound, ReasonNotFound, "topic", "there is nothing to watch under %q", clip(topic, 64))
}

// onChange notifies a page of the changes that r reads. The synced item counts as a change,
// because something may have changed between the page and its watch.
func onChange[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T], notify func(news bool) error,
) error {
	return batches(ctx, s, who, r, pageBeat, func(items []stream.Item[T]) error {
		if err := notify(len(items) > 0); err != nil || len(items) == 0 {
			return err
		}
		pause := time.NewTimer(gather)
		defer pause.Stop()
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		return nil
	})
}

// lookAgain notifies a page at regular times, as if its content had changed.
func (s *Server) lookAgain(ctx context.Context, who Principal, notify func(news bool) error) error {
	streaming, leave, err := s.bounded(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if err := notify(true); err != nil {
			return sendFailed(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-streaming.Done():
			return errWatchOver()
		case <-look.C:
		}
	}
}
