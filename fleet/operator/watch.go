package operator

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	foreign "github.com/pleme-io/lifecycle-go/internal/call"
)

// Times of watches.
const (
	heartbeat  = 15 * time.Second // between two heartbeats
	askedAgain = 5 * time.Second  // between two looks whether the caller may go on
	batch      = 64               // changes taken from a feed at once
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

// serveStream serves a stream of a caller: run sends what comes, and serveStream itself a heartbeat at regular
// times. It ends with an error: when the caller has too many streams, when it goes, the stream is too
// old, the credentials expire, a request of the caller would be refused or have another role, the process
// begins to drain, or run fails.
func serveStream[M any](
	ctx context.Context, s *Server, who Principal, beat M, send func(M) error,
	run func(ctx context.Context, put func(M) error) error,
) error {
	if !s.streams.take(who.id()) {
		return Errorf(connect.CodeResourceExhausted, ReasonTooManyStreams, "",
			"too many watches are open (at most %d, and %d for one caller): close some", s.cfg.MaxStreams, s.cfg.MaxStreamsEach)
	}
	defer s.streams.give(who.id())
	until := time.Now().Add(s.cfg.MaxStreamAge)
	if !who.Until.IsZero() && who.Until.Before(until) {
		until = who.Until
	}
	sending := make(chan struct{}, 1) // one message at a time; a mutex would stop the clock of synctest
	put := func(m M) error {
		sending <- struct{}{}
		defer func() { <-sending }()
		if err := send(m); err != nil { // the caller hung up, or did not read for longer than a write may take
			return Errorf(connect.CodeCanceled, ReasonStreamOver, "", "a message of the watch cannot be sent: %v", err)
		}
		return nil
	}
	var beating sync.WaitGroup
	defer beating.Wait()
	aging, grown := context.WithDeadline(ctx, until)
	defer grown()
	streaming, end := context.WithCancelCause(aging)
	defer end(nil)
	draining := lifecycle.Stream(ctx)
	beating.Go(func() {
		defer end(nil)
		beats, asks := time.NewTicker(heartbeat), time.NewTicker(askedAgain)
		defer beats.Stop()
		defer asks.Stop()
		// A file or a provider that does not answer holds up neither heartbeats nor the end.
		answers := make(chan error, 1)
		isAsking := false
		for {
			select {
			case <-streaming.Done():
				return
			case <-draining:
				return
			case <-beats.C:
				if put(beat) != nil {
					return
				}
			case <-asks.C:
				if !isAsking {
					isAsking = true
					ask := func() error { return stillMay(streaming, who) }
					foreign.Go("recognise the caller of a stream again", ask, func(err error) { answers <- err })
				}
			case err := <-answers:
				if isAsking = false; err != nil {
					end(err)
					return
				}
			}
		}
	})
	err := run(streaming, put)
	var refused *Error
	switch {
	case ctx.Err() != nil: // the caller has gone
		return ctx.Err()
	case errors.As(context.Cause(streaming), &refused):
		return refused
	case streaming.Err() != nil:
		return errWatchOver()
	}
	return err
}

// stillMay returns an error when a request of the caller would be refused now, or would have another role.
func stillMay(ctx context.Context, who Principal) error {
	again, ok := ctx.Value(againKey{}).(func(context.Context) (Principal, error))
	if !ok { // the caller is not one that guard let in
		return nil
	}
	now, err := again(ctx)
	if err == nil && (now.id() != who.id() || now.Role != who.Role || !reflect.DeepEqual(now.Grants, who.Grants)) {
		err = Errorf(connect.CodeUnavailable, ReasonStreamOver, "",
			"the watch has ended, because the role of its caller has changed: watch again")
	}
	return err
}

// follow sends what r reads, one item after the other, and closes r.
func follow[T, M any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T],
	message func(operatorv1.WatchResponse_Kind, string, T) M, send func(M) error,
) error {
	defer r.Close()
	var none T
	beat := message(operatorv1.WatchResponse_KIND_HEARTBEAT, "", none)
	return serveStream(ctx, s, who, beat, send, func(ctx context.Context, put func(M) error) error {
		for {
			items, err := r.Next(ctx, batch)
			if err != nil {
				return readFailed(err)
			}
			for _, it := range items {
				if err := put(message(kinds[it.Kind], it.Key, it.Value)); err != nil {
					return err
				}
			}
		}
	})
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
