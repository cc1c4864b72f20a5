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

// stream serves a stream of a caller: next waits for what comes and sends it, and beat is called after
// each silence, for a heartbeat. It ends with an error: when the caller goes, the stream is too old,
// the credentials expire, the process begins to drain, or next or beat fails.
func (s *Server) stream(
	ctx context.Context, who Principal, silence time.Duration, next func(context.Context) error, beat func() error,
) error {
	streaming, leave, err := s.bounded(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	for err == nil {
		within, stop := context.WithTimeout(streaming, silence)
		err = next(within)
		isSilent := within.Err() != nil && errors.Is(err, context.DeadlineExceeded)
		stop()
		switch {
		case ctx.Err() != nil: // the caller has gone
			return ctx.Err()
		case streaming.Err() != nil:
			return errWatchOver()
		case isSilent:
			err = sendFailed(beat())
		}
	}
	return err
}

// follow sends what r reads, one item after the other, and closes r.
func follow[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T],
	send func(operatorv1.WatchResponse_Kind, string, T) error,
) error {
	defer r.Close()
	next := func(ctx context.Context) error {
		items, err := r.Next(ctx, batch)
		for _, it := range items {
			if err := send(kinds[it.Kind], it.Key, it.Value); err != nil {
				return sendFailed(err)
			}
		}
		return readFailed(err)
	}
	return s.stream(ctx, who, heartbeat, next, func() error {
		var none T
		return send(operatorv1.WatchResponse_KIND_HEARTBEAT, "", none)
	})
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
	streaming, cancel := context.WithDeadline(ctx, until)
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

func errWatchOver() error {
	return Errorf(connect.CodeUnavailable, ReasonStreamOver, "",
		"the watch has ended, because it is old or the server stops: watch again")
}

// readFailed returns the error for an error of a feed's reader.
func readFailed(err error) error {
	switch {
	case errors.Is(err, feed.ErrSlow):
		return Errorf(connect.CodeAborted, ReasonStreamOver, "",
			"this watch is too slow and would have missed a deletion: watch again")
	case errors.Is(err, context.Canceled): // the feed is closed
		return errWatchOver()
	}
	return err
}

// sendFailed returns the error for a failed send, nil for none: the caller hung up, or did not read
// for longer than a write may take.
func sendFailed(err error) error {
	if err == nil {
		return nil
	}
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
		if !s.may(ctx, "WorkflowService.GetDefinition", name) {
			return unseen(object{workflow: name})
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

// onChange notifies a page of the changes that r reads, and closes r. The synced item counts as a
// change, because something may have changed between the page and its watch.
func onChange[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T], notify func(news bool) error,
) error {
	defer r.Close()
	next := func(within context.Context) error {
		if _, err := r.Next(within, batch); err != nil {
			return readFailed(err)
		}
		if err := notify(true); err != nil {
			return sendFailed(err)
		}
		pause := time.NewTimer(gather)
		defer pause.Stop()
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		return nil
	}
	return s.stream(ctx, who, pageBeat, next, func() error { return notify(false) })
}

// lookAgain notifies a page at once and at regular times, as if its content had changed.
func (s *Server) lookAgain(ctx context.Context, who Principal, notify func(news bool) error) error {
	begun := false
	next := func(within context.Context) error {
		if !begun {
			begun = true
			return sendFailed(notify(true))
		}
		<-within.Done()
		return within.Err()
	}
	return s.stream(ctx, who, lookAgain, next, func() error { return notify(true) })
}
