package operator

import (
	"context"
	"strconv"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func (w workerService) ReadWorkerLogs(
	ctx context.Context, req *operatorv1.ReadWorkerLogsRequest,
) (*operatorv1.ReadWorkerLogsResponse, error) {
	c := w.request("ReadWorkerLogs", req.GetId())
	page := c.paging(req)
	before := page.number(&c.violations)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ReadWorkerLogsResponse, error) {
		lines, err := w.s.cfg.Workers.Logs(ctx, req.GetId(), int64(before), page.size+1)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ReadWorkerLogsResponse{Lines: lines}
		if len(lines) > page.size {
			answer.Lines = lines[1:]
			answer.NextPageToken = page.next(strconv.FormatInt(answer.GetLines()[0].GetNumber(), 10))
		}
		return answer, nil
	})
}

func (w workerService) FollowWorkerLogs(
	ctx context.Context, req *operatorv1.FollowWorkerLogsRequest, stream *connect.ServerStream[operatorv1.FollowWorkerLogsResponse],
) error {
	return w.follow(ctx, req, stream.Send)
}

// maxTail is how many lines a log begins with at most.
const maxTail = 1000

// follow serves FollowWorkerLogs; send sends one message. The audit has the begin: what ends
// a stream later is not an attempt that failed.
func (w workerService) follow(
	ctx context.Context, req *operatorv1.FollowWorkerLogsRequest, send func(*operatorv1.FollowWorkerLogsResponse) error,
) error {
	c := w.request("FollowWorkerLogs", req.GetId())
	tail := int(req.GetTail())
	switch {
	case tail < -1 || tail > maxTail:
		c.add("tail", "is %d, want 1 to %d, -1 for none, or 0 for 10", tail, maxTail)
	case tail == 0:
		tail = 10
	}
	var lines []*operatorv1.WorkerLogLine
	err := w.s.begin(ctx, c)
	if err == nil {
		lines, err = w.s.cfg.Workers.Logs(ctx, req.GetId(), 0, max(tail, 1))
	}
	err = w.s.failure(ctx, c.action, err)
	w.s.audit.record(ctx, c.entry(ctx, err))
	if err != nil {
		return err
	}
	after := int64(0)
	if len(lines) > 0 {
		after = lines[len(lines)-1].GetNumber()
	}
	if tail < 0 {
		lines = nil
	}
	notify := func(kind operatorv1.WatchResponse_Kind, l *operatorv1.WorkerLogLine) error {
		if err := send(&operatorv1.FollowWorkerLogsResponse{Kind: kind, Line: l}); err != nil {
			return sendFailed(err)
		}
		return nil
	}
	return w.s.failure(ctx, c.action, w.sendLines(ctx, c, lines, after, notify))
}

// sendLines sends lines, and then each one behind after.
func (w workerService) sendLines(ctx context.Context, c *request, lines []*operatorv1.WorkerLogLine, after int64,
	notify func(operatorv1.WatchResponse_Kind, *operatorv1.WorkerLogLine) error,
) error {
	over, leave, err := w.s.bounded(ctx, c.who)
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range lines {
		if err := notify(operatorv1.WatchResponse_KIND_PUT, l); err != nil {
			return err
		}
	}
	if err := notify(operatorv1.WatchResponse_KIND_SYNCED, nil); err != nil {
		return err
	}
	for {
		beat, stop := context.WithTimeout(over, heartbeat)
		err := w.s.cfg.Workers.FollowLogs(beat, c.object, after, func(l *operatorv1.WorkerLogLine) error {
			after = l.GetNumber()
			return notify(operatorv1.WatchResponse_KIND_PUT, l)
		})
		silent := beat.Err() != nil
		stop()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case over.Err() != nil:
			return errWatchOver()
		case err != nil && !silent:
			return err
		}
		if err := notify(operatorv1.WatchResponse_KIND_HEARTBEAT, nil); err != nil {
			return err
		}
	}
}
