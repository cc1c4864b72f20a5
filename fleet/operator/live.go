package operator

import (
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// pollEvery is the pause between two polls of an area that does not report changes.
// After a slow poll the pause is ten times its duration, so that an area is mostly
// free.
const pollEvery = 2 * time.Second

// live has the feeds for pages of areas that do not report changes, such as
// hosted workers. A feed polls only while a page is open, and once for all pages.
type live struct {
	workers     *feed.Feed[*operatorv1.Worker]
	definitions *feed.Feed[*operatorv1.Definition]
	audit       *feed.Feed[*operatorv1.AuditEntry]
}

func (s *Server) newLive() live {
	return live{
		workers: poll(s, "hosted workers", func(ctx context.Context) (map[string]*operatorv1.Worker, error) {
			list, err := s.cfg.Workers.List(ctx)
			return byKey(list, (*operatorv1.Worker).GetId), err
		}),
		definitions: poll(s, "workflows", func(ctx context.Context) (map[string]*operatorv1.Definition, error) {
			list, err := s.cfg.Workflows.Definitions(ctx)
			return byKey(list, (*operatorv1.Definition).GetType), err
		}),
		audit: poll(s, "the audit", func(ctx context.Context) (map[string]*operatorv1.AuditEntry, error) {
			// Every entry changes the newest one.
			list, _, err := s.cfg.AuditLog.List(ctx, AuditQuery{Limit: 1})
			return byKey(list, func(*operatorv1.AuditEntry) string { return "newest" }), err
		}),
	}
}

func (l live) close() {
	l.workers.Close()
	l.definitions.Close()
	l.audit.Close()
}

func byKey[T any](list []T, key func(T) string) map[string]T {
	m := make(map[string]T, len(list))
	for _, x := range list {
		m[key(x)] = x
	}
	return m
}

// poll returns a feed of an area that only has a list.
func poll[T proto.Message](s *Server, what string, list func(context.Context) (map[string]T, error)) *feed.Feed[T] {
	source := func(ctx context.Context, to Sink[T]) error {
		known := map[string]T{}
		for first := true; ; first = false {
			begin := time.Now()
			now, err := look(ctx, s, what, list)
			if err != nil {
				return err
			}
			for key, x := range now {
				// Clone: the area may change its own message later.
				if old, ok := known[key]; !ok || !proto.Equal(old, x) {
					known[key] = proto.CloneOf(x)
					to.Put(key, known[key])
				}
			}
			for key := range known {
				if _, ok := now[key]; !ok {
					delete(known, key)
					to.Delete(key)
				}
			}
			if first {
				to.Sync()
			}
			pause := time.NewTimer(max(pollEvery, 10*time.Since(begin)))
			select {
			case <-ctx.Done():
				pause.Stop()
				return ctx.Err()
			case <-pause.C:
			}
		}
	}
	return feed.New(source, feedRetry, feedLinger, s.restarts(what))
}

// look lists once, like a call: with a timeout, and a panic becomes an error.
func look[T any](ctx context.Context, s *Server, what string, list func(context.Context) (map[string]T, error)) (map[string]T, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return guarded(ctx, s, "looking at "+what, Principal{}, func(ctx context.Context, _ Principal) (map[string]T, error) { return list(ctx) })
}

// changed calls tell(true) when the content of a page has changed, and
// tell(false) now and then while it has not, until ctx ends. Changes during a
// call of tell are combined into one.
func (s *Server) changed(ctx context.Context, topic, name string, tell func(news bool) error) error {
	who, err := s.authorize(ctx, "AccessService.WhoAmI")
	if err != nil {
		return err
	}
	away := strings.Join(s.away(), " ")
	plain := tell
	tell = func(news bool) error { // an outage changes every page
		now := strings.Join(s.away(), " ")
		news, away = news || now != away, now
		return plain(news)
	}
	switch {
	case topic == "workflow" && s.cfg.Workflows != nil:
		if err := s.within(ctx, who, "WorkflowService.GetDefinition", &intent{scope: scopeOne, of: name}); err != nil {
			return err
		}
		if _, err := s.cfg.Workflows.Definition(ctx, name); err != nil {
			return err
		}
		if s.flows != nil { // which watches all workflows in brief
			return batches(ctx, s, who, s.briefFeed(name).Follow(""), onChange[brief](ctx, who, nil, tell))
		}
		return batches(ctx, s, who, s.entityFeed(name).Read(""), onChange[*operatorv1.Entity](ctx, who, nil, tell))
	case topic == "workflows" && s.cfg.Workflows != nil:
		return batches(ctx, s, who, s.live.definitions.Read(name), onChange(ctx, who, who.seesDefinition, tell))
	case topic == "workers" && s.cfg.Workers != nil:
		return batches(ctx, s, who, s.live.workers.Read(name), onChange(ctx, who, who.seesWorker, tell))
	case topic == "processes" && s.processes != nil:
		// What a process announces all the time is no change. The page of one process shows
		// it, and looks again now and then.
		read := s.processes.Follow
		if who.scoped() { // it is told what has left what it sees
			read = s.processes.Read
		}
		return batches(ctx, s, who, read(name), onChange(ctx, who, who.seesProcess, func(news bool) error { return tell(news || name != "") }))
	case topic == "audit":
		return batches(ctx, s, who, s.live.audit.Read(""), onChange[*operatorv1.AuditEntry](ctx, who, nil, tell))
	}
	return Errorf(connect.CodeNotFound, ReasonNotFound, "topic", "there is nothing to watch under %q", clip(topic, 64))
}

// onChange skips the values that the page shows already, and combines changes
// within a moment into one. The synced item counts as a change, because something
// may have changed between the page and its watch. What the caller does not see is no
// change; sees is that of follow.
func onChange[T any](ctx context.Context, who Principal, sees func(T) bool, tell func(news bool) error) func([]stream.Item[T]) error {
	synced := false
	only := newSeen(who, sees)
	return func(items []stream.Item[T]) error {
		items, silent := only.take(items)
		if len(items) == 0 && !silent {
			return nil
		}
		if !synced {
			synced = slices.ContainsFunc(items, func(it stream.Item[T]) bool { return it.Kind == stream.Synced })
			if !synced {
				return nil
			}
		}
		if err := tell(len(items) > 0); err != nil || len(items) == 0 {
			return err
		}
		pause := time.NewTimer(400 * time.Millisecond)
		defer pause.Stop()
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		return nil
	}
}
