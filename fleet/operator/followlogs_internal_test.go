package operator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// logged is a worker whose log has no lines. It counts its followers.
type logged struct {
	Workers
	followers int
	fails     error
}

func (l *logged) FollowLogs(ctx context.Context, _ string, _ int64, _ func(*operatorv1.WorkerLogLine) error) error {
	l.followers++
	if l.fails != nil {
		return l.fails
	}
	<-ctx.Done()
	return ctx.Err()
}

// A stream of a log follows the worker that its caller was authorized for: heartbeats do not look
// up the id again, under which another tenant may have made a worker since.
func TestStreamOfALogFollowsOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		area := &logged{}
		s, err := New(Config{Workers: area})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		ctx, stop := context.WithTimeout(t.Context(), 10*heartbeat+time.Second)
		defer stop()
		c := &request{action: "WorkerService.FollowWorkerLogs", object: "w", who: Principal{Name: "ada", Role: RoleOperator}}
		beats := 0
		err = workerService{s}.sendLines(ctx, c, nil, 0, func(m *operatorv1.FollowWorkerLogsResponse) error {
			if m.GetKind() == operatorv1.WatchResponse_KIND_HEARTBEAT {
				beats++
			}
			return nil
		})
		if err == nil || beats != 10 || area.followers != 1 {
			t.Errorf("%d heartbeats, %d followers: %v", beats, area.followers, err)
		}
	})
}

// The server ends the stream when the source of the lines fails. It does not take a DeadlineExceeded of
// the source for a source that has sent nothing.
func TestLogThatCannotBeFollowed(t *testing.T) {
	for _, fails := range []error{context.DeadlineExceeded, context.Canceled} {
		s, err := New(Config{Workers: &logged{fails: fails}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		c := &request{action: "WorkerService.FollowWorkerLogs", object: "w", who: Principal{Name: "ada", Role: RoleOperator}}
		err = workerService{s}.sendLines(t.Context(), c, nil, 0, func(*operatorv1.FollowWorkerLogsResponse) error { return nil })
		if !errors.Is(err, fails) {
			t.Errorf("a source that fails with %v ends the stream with %v", fails, err)
		}
	}
}
