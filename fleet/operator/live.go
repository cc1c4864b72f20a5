package operator

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
)

// Times of live pages.
const (
	lookAgain = 3 * time.Second        // a page of an area that does not report changes looks again
	gather    = 400 * time.Millisecond // changes within this time are one
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
		if err := s.permitted(ctx, c); err != nil {
			return err
		}
		if _, err := s.cfg.Workflows.Definition(ctx, name); err != nil {
			return err
		}
		return onChange(ctx, s, who, s.flows.flow(name).brief.Follow("", nil), notify)
	case topic == "processes" && s.processes != nil:
		// What a process announces all the time is no change. The page of one process shows
		// it, and looks again now and then.
		r, one := s.processes.Follow(name, who.seesProcess), name != ""
		return onChange(ctx, s, who, r, func(news bool) error { return notify(news || one) })
	case topic == "workflows" && s.cfg.Workflows != nil, topic == "workers" && s.cfg.Workers != nil, topic == "audit":
		return s.lookAgain(ctx, who, notify)
	}
	return Errorf(connect.CodeNotFound, ReasonNotFound, "topic", "there is nothing to watch under %q", clip(topic, 64))
}

// onChange notifies a page of what r reads. The synced item counts as a change, because
// something may have changed between the page and its watch.
func onChange[T any](
	ctx context.Context, s *Server, who Principal, r *feed.Reader[T], notify func(news bool) error,
) error {
	return batches(ctx, s, who, r, func(items []stream.Item[T]) error {
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

// lookAgain notifies a page again and again.
func (s *Server) lookAgain(ctx context.Context, who Principal, notify func(news bool) error) error {
	over, leave, err := s.bounded(ctx, who)
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
		case <-over.Done():
			return errWatchOver()
		case <-look.C:
		}
	}
}
