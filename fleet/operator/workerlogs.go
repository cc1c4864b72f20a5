package operator

import (
	"context"
	"net/http"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func (w workerService) ReadWorkerLogs(ctx context.Context, req *operatorv1.ReadWorkerLogsRequest) (*operatorv1.ReadWorkerLogsResponse, error) {
	v := workerID(req.GetId())
	size := v.size("page_size", req.GetPageSize())
	list := "log of " + req.GetId()
	before, err := sequence(v.page(req.GetPageToken(), list))
	if err != nil {
		v.add("page_token", "is not a next_page_token of this server")
	}
	return onWorker(ctx, w, "ReadWorkerLogs", req.GetId(), "", v, func(ctx context.Context, area Workers, _ string) (*operatorv1.ReadWorkerLogsResponse, error) {
		lines, err := area.Logs(ctx, req.GetId(), int64(before), size+1)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ReadWorkerLogsResponse{Lines: lines}
		if len(lines) > size {
			answer.Lines = lines[1:]
			answer.NextPageToken = pageToken{strconv.FormatInt(answer.GetLines()[0].GetNumber(), 10), list}.String()
		}
		return answer, nil
	})
}

func (w workerService) FollowWorkerLogs(ctx context.Context, req *operatorv1.FollowWorkerLogsRequest, stream *connect.ServerStream[operatorv1.FollowWorkerLogsResponse]) error {
	return w.follow(ctx, req, stream.Send)
}

// maxTail is how many lines a log begins with at most.
const maxTail = 1000

// follow serves FollowWorkerLogs; send sends one message.
func (w workerService) follow(ctx context.Context, req *operatorv1.FollowWorkerLogsRequest, send func(*operatorv1.FollowWorkerLogsResponse) error) error {
	const action = "WorkerService.FollowWorkerLogs"
	v := workerID(req.GetId())
	tail := int(req.GetTail())
	switch {
	case tail < -1 || tail > maxTail:
		v.add("tail", "is %d, want 1 to %d, -1 for none, or 0 for 10", tail, maxTail)
	case tail == 0:
		tail = 10
	}
	who, err := w.s.authorize(ctx, action)
	var begun error // of the request; what ends a stream later is not an attempt that failed
	if begun = err; begun == nil {
		begun = v.err()
	}
	var area Workers
	if begun == nil {
		area, begun = w.area()
	}
	var lines []*operatorv1.WorkerLogLine
	if begun == nil {
		begun = w.s.within(ctx, who, action, &intent{scope: scopeOne, of: req.GetId()})
	}
	if begun == nil {
		lines, begun = area.Logs(ctx, req.GetId(), 0, max(tail, 1))
	}
	begun = wire(ctx, w.s.log, action, w.s.deps.explain(begun))
	w.s.audit.record(ctx, entry(ctx, who, action, intent{target: "worker/" + req.GetId()}, begun))
	if begun != nil {
		return begun
	}
	after := int64(0)
	if len(lines) > 0 {
		after = lines[len(lines)-1].GetNumber()
	}
	if tail < 0 {
		lines = nil
	}
	return wire(ctx, w.s.log, action, w.s.deps.explain(w.sendLines(ctx, who, area, req.GetId(), lines, after, send)))
}

// sendLines sends lines, and then each one behind after.
func (w workerService) sendLines(ctx context.Context, who Principal, area Workers, id string, lines []*operatorv1.WorkerLogLine, after int64, send func(*operatorv1.FollowWorkerLogsResponse) error) error {
	over, leave, err := w.s.bounded(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	tell := func(kind operatorv1.WatchResponse_Kind, l *operatorv1.WorkerLogLine) error {
		if err := send(&operatorv1.FollowWorkerLogsResponse{Kind: kind, Line: l}); err != nil {
			return sendFailed(err)
		}
		return nil
	}
	for _, l := range lines {
		if err := tell(operatorv1.WatchResponse_KIND_PUT, l); err != nil {
			return err
		}
	}
	if err := tell(operatorv1.WatchResponse_KIND_SYNCED, nil); err != nil {
		return err
	}
	for {
		beat, stop := context.WithTimeout(over, heartbeat)
		err := area.FollowLogs(beat, id, after, func(l *operatorv1.WorkerLogLine) error {
			after = l.GetNumber()
			return tell(operatorv1.WatchResponse_KIND_PUT, l)
		})
		silent := beat.Err() != nil
		stop()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case over.Err() != nil:
			return Errorf(connect.CodeUnavailable, ReasonStreamOver, "", "the watch has ended, because it is old or the server stops: watch again")
		case err != nil && !silent:
			return err
		}
		if err := tell(operatorv1.WatchResponse_KIND_HEARTBEAT, nil); err != nil {
			return err
		}
	}
}

// serveLogs serves FollowWorkerLogs as server-sent events.
func (s *Server) serveLogs(mux *http.ServeMux) {
	mux.HandleFunc("GET /watch/workers/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		req := &operatorv1.FollowWorkerLogsRequest{Id: r.PathValue("id")}
		tail, err := only(r, "tail", "tail=N")
		if err == nil && tail != "" {
			n, wrong := strconv.ParseInt(tail, 10, 32)
			if wrong != nil {
				err = Errorf(connect.CodeInvalidArgument, ReasonMalformed, "tail", "tail is %q, want a number", clip(tail, 64))
			}
			req.Tail = int32(n)
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		sse(w, r, func(send func(string, proto.Message) error) error {
			return workerService{s}.follow(r.Context(), req, func(m *operatorv1.FollowWorkerLogsResponse) error { return send(eventName(m.GetKind()), m) })
		})
	})
}
