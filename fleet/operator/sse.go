package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// serveEvents serves the watches as server-sent events. Each has at most one parameter.
func (s *Server) serveEvents(mux *http.ServeMux) {
	serveWatch(mux, "GET /watch/workflows/{type}", "id", "ID", workflowService{s}.watch,
		func(r *http.Request, id string) (*operatorv1.WatchRequest, error) {
			return &operatorv1.WatchRequest{Type: r.PathValue("type"), Id: id}, nil
		})
	serveWatch(mux, "GET /watch/processes", "id", "ID", processService{s}.watch,
		func(_ *http.Request, id string) (*operatorv1.WatchProcessesRequest, error) {
			return &operatorv1.WatchProcessesRequest{Id: id}, nil
		})
	serveWatch(mux, "GET /watch/workers/{id}/logs", "tail", "N", workerService{s}.follow,
		func(r *http.Request, tail string) (*operatorv1.FollowWorkerLogsRequest, error) {
			n, err := strconv.ParseInt(cmp.Or(tail, "0"), 10, 32)
			if err != nil {
				return nil, malformed("tail", "tail is %q, want a number", clip(tail, 64))
			}
			return &operatorv1.FollowWorkerLogsRequest{Id: r.PathValue("id"), Tail: int32(n)}, nil
		})
}

// event is a message of a watch.
type event interface {
	proto.Message
	GetKind() operatorv1.WatchResponse_Kind
}

// serveWatch serves one watch. It has one parameter, whose value is described by form.
func serveWatch[R any, E event](
	mux *http.ServeMux, pattern, parameter, form string,
	watch func(ctx context.Context, req R, send func(E) error) error,
	request func(r *http.Request, value string) (R, error),
) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		value, err := only(r, parameter, parameter+"="+form)
		if err != nil {
			refuse(w, r, err)
			return
		}
		req, err := request(r, value)
		if err != nil {
			refuse(w, r, err)
			return
		}
		sse(w, r, func(send func(string, proto.Message) error) error {
			return watch(r.Context(), req, func(m E) error { return send(eventNames[m.GetKind()], m) })
		})
	})
}

// only reads the only parameter that a watch has. A misspelt one is an error.
func only(r *http.Request, name, form string) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", malformed("", "the query cannot be read: want %s or none", form)
	}
	for got, values := range query {
		if got != name || len(values) > 1 {
			return "", malformed(clip(got, maxName), "parameter %q: want %s once, or none", clip(got, 64), form)
		}
	}
	return query.Get(name), nil
}

var eventNames = map[operatorv1.WatchResponse_Kind]string{
	operatorv1.WatchResponse_KIND_PUT:       "put",
	operatorv1.WatchResponse_KIND_DELETED:   "deleted",
	operatorv1.WatchResponse_KIND_SYNCED:    "synced",
	operatorv1.WatchResponse_KIND_HEARTBEAT: "heartbeat",
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
	data, jsonErr := json.Marshal(map[string]string{
		"code":    connect.CodeOf(err).String(),
		"reason":  client.Reason(err),
		"message": message(err),
	})
	if jsonErr == nil {
		_ = write("error", data) // fails when the caller has gone
	}
}
