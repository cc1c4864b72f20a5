package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Times of watches.
const (
	heartbeat  = 15 * time.Second // silence until a heartbeat
	feedRetry  = time.Second      // pause after a source has failed
	feedLinger = 10 * time.Second // a feed runs on after its last watcher
	batch      = 64               // changes taken from a feed at once
)

// entityFeed returns the feed of a type, which all its watches share.
func (s *Server) entityFeed(typ string) *feed.Feed[*operatorv1.Entity] {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.entities[typ]
	if f == nil {
		f = feed.New(func(ctx context.Context, to Sink[*operatorv1.Entity]) error {
			return s.cfg.Workflows.Watch(ctx, typ, to)
		}, feedRetry, feedLinger, s.restarts("the workflow "+typ))
		if s.closed {
			f.Close()
		}
		s.entities[typ] = f
	}
	return f
}

// restarts returns the function that a feed calls when its source has ended.
func (s *Server) restarts(what string) func(error) {
	var log sparse
	return func(err error) {
		log.warn(s.log, "operator: a watch has ended; starting it again", err, "watch", what, "fleet", s.cfg.Name, "addr", s.cfg.Addr)
	}
}

// kinds maps the kinds of a feed's items to those of the contract. A feed sends
// no gap.
var kinds = map[stream.Kind]operatorv1.WatchResponse_Kind{
	stream.Put:     operatorv1.WatchResponse_KIND_PUT,
	stream.Deleted: operatorv1.WatchResponse_KIND_DELETED,
	stream.Synced:  operatorv1.WatchResponse_KIND_SYNCED,
}

// follow sends what r reads, one item after the other. To a caller who sees only parts of
// the fleet it sends what sees returns true for; nil is all.
func follow[T any](ctx context.Context, s *Server, who Principal, r *feed.Reader[T], sees func(T) bool, send func(operatorv1.WatchResponse_Kind, string, T) error) error {
	only := newSeen(who, sees)
	return batches(ctx, s, who, r, func(items []stream.Item[T]) error {
		items, silent := only.take(items)
		if silent {
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

// seen is the part of a watch that a caller sees.
type seen[T any] struct {
	sees func(T) bool // nil for all
	keys map[string]bool
	last time.Time // when something was sent
}

func newSeen[T any](who Principal, sees func(T) bool) *seen[T] {
	if !who.scoped() {
		sees = nil
	}
	return &seen[T]{sees: sees, keys: map[string]bool{}, last: time.Now()}
}

// take returns the items that the caller sees, and whether it is time for a heartbeat:
// what other callers see is no sign of life.
func (x *seen[T]) take(items []stream.Item[T]) (shown []stream.Item[T], silent bool) {
	if x.sees == nil || len(items) == 0 {
		return items, len(items) == 0
	}
	for _, it := range items {
		switch {
		case it.Kind == stream.Put && x.sees(it.Value):
			x.keys[it.Key] = true
		case it.Kind == stream.Put && x.keys[it.Key]: // it has left what the caller sees
			it.Kind = stream.Deleted
			delete(x.keys, it.Key)
		case it.Kind == stream.Put, it.Kind == stream.Deleted && !x.keys[it.Key]:
			continue
		case it.Kind == stream.Deleted:
			delete(x.keys, it.Key)
		}
		shown = append(shown, it)
	}
	if silent = len(shown) == 0 && time.Since(x.last) >= heartbeat; silent || len(shown) > 0 {
		x.last = time.Now()
	}
	return shown, silent
}

// batches passes on what r reads, and an empty batch as a heartbeat. It ends when the
// caller goes, the stream is too old, the credentials expire, or the process begins to
// drain. It closes r.
func batches[T any](ctx context.Context, s *Server, who Principal, r *feed.Reader[T], send func([]stream.Item[T]) error) error {
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
			return Errorf(connect.CodeAborted, ReasonStreamOver, "", "this watch is too slow and would have missed a deletion: watch again")
		case over.Err() != nil || errors.Is(err, context.Canceled):
			return Errorf(connect.CodeUnavailable, ReasonStreamOver, "", "the watch has ended, because it is old or the server stops: watch again")
		}
		if err := send(items); err != nil {
			return sendFailed(err)
		}
	}
}

// bounded takes a place for a stream of a caller. The context ends when the stream is too
// old, the credentials expire, or the process begins to drain.
func (s *Server) bounded(ctx context.Context, who Principal) (over context.Context, leave func(), err error) {
	free, err := s.streams.enter(who.Name)
	if err != nil {
		return nil, nil, err
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
		free()
	}, nil
}

var errStreamOver = errors.New("the watch is old")

// sendFailed returns the error for a failed send: the caller hung up, or did not read
// for longer than a write may take.
func sendFailed(err error) error {
	return Errorf(connect.CodeCanceled, ReasonStreamOver, "", "the caller does not read: %v", err)
}

// streamLimit bounds the number of watches, in total and per caller.
type streamLimit struct {
	most, mostEach int

	mu   sync.Mutex // guards the fields below
	all  int
	each map[string]int
}

func (l *streamLimit) enter(name string) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.most || l.each[name] >= l.mostEach {
		return nil, Errorf(connect.CodeResourceExhausted, ReasonTooManyStreams, "",
			"too many watches are open (at most %d, and %d for one caller): close some", l.most, l.mostEach)
	}
	l.all++
	l.each[name]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all--
		if l.each[name]--; l.each[name] == 0 {
			delete(l.each, name)
		}
	}, nil
}

// serveEvents serves the watches as server-sent events.
func (s *Server) serveEvents(mux *http.ServeMux) {
	s.serveLogs(mux)
	mux.HandleFunc("GET /watch/workflows/{type}", func(w http.ResponseWriter, r *http.Request) {
		id, err := only(r, "id", "id=ID")
		if err != nil {
			refuse(w, r, err)
			return
		}
		req := &operatorv1.WatchRequest{Type: r.PathValue("type"), Id: id}
		sse(w, r, func(send func(string, proto.Message) error) error {
			return workflowService{s}.watch(r.Context(), req, func(m *operatorv1.WatchResponse) error { return send(eventName(m.GetKind()), m) })
		})
	})
	mux.HandleFunc("GET /watch/processes", func(w http.ResponseWriter, r *http.Request) {
		id, err := only(r, "id", "id=ID")
		if err != nil {
			refuse(w, r, err)
			return
		}
		req := &operatorv1.WatchProcessesRequest{Id: id}
		sse(w, r, func(send func(string, proto.Message) error) error {
			return processService{s}.watch(r.Context(), req, func(m *operatorv1.WatchProcessesResponse) error { return send(eventName(m.GetKind()), m) })
		})
	})
}

// only reads the only parameter that a watch has. A misspelt one is an error.
func only(r *http.Request, name, form string) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", Errorf(connect.CodeInvalidArgument, ReasonMalformed, "", "the query cannot be read: want %s or none", form)
	}
	for got, values := range query {
		if got != name || len(values) > 1 {
			return "", Errorf(connect.CodeInvalidArgument, ReasonMalformed, clip(got, maxName), "parameter %q: want %s once, or none", clip(got, 64), form)
		}
	}
	return query.Get(name), nil
}

func eventName(k operatorv1.WatchResponse_Kind) string {
	return map[operatorv1.WatchResponse_Kind]string{
		operatorv1.WatchResponse_KIND_PUT: "put", operatorv1.WatchResponse_KIND_DELETED: "deleted",
		operatorv1.WatchResponse_KIND_SYNCED: "synced", operatorv1.WatchResponse_KIND_HEARTBEAT: "heartbeat",
	}[k]
}

// sse serves one watch as events whose data is the message as JSON. An error before
// the first event is an ordinary response; a later one is the event "error".
func sse(w http.ResponseWriter, r *http.Request, watch func(send func(event string, m proto.Message) error) error) {
	out := http.NewResponseController(w)
	begun := false
	write := func(event string, data []byte) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx buffers the events
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data); err != nil {
			return err
		}
		return out.Flush()
	}
	err := watch(func(event string, m proto.Message) error {
		data, err := protojson.Marshal(m)
		if err != nil {
			return err
		}
		return write(event, data)
	})
	if err == nil || r.Context().Err() != nil {
		return
	}
	if !begun {
		refuse(w, r, err)
		return
	}
	data, jsonErr := json.Marshal(map[string]string{"code": connect.CodeOf(err).String(), "reason": errorReason(err), "message": message(err)})
	if jsonErr == nil {
		_ = write("error", data) // fails when the caller has gone
	}
}
