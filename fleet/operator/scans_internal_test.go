package operator

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// slowJournal takes a second for each scan, and notes how many run at one time.
type slowJournal struct {
	chatty
	running, most atomic.Int64
}

func (j *slowJournal) Watch(ctx context.Context, to Sink[*operatorv1.Process]) error {
	to.Sync()
	<-ctx.Done()
	return ctx.Err()
}

func (j *slowJournal) Events(context.Context, presence.EventQuery) ([]*operatorv1.Event, uint64, error) {
	n := j.running.Add(1)
	defer j.running.Add(-1)
	for most := j.most.Load(); n > most && !j.most.CompareAndSwap(most, n); most = j.most.Load() {
	}
	time.Sleep(time.Second)
	return nil, 0, nil
}

// Scans of one caller run a few at one time, and delay no other caller.
func TestScansOfACallerWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		area := &slowJournal{}
		s, err := New(Config{Processes: area})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		list := func(name string) error {
			ctx := WithPrincipal(t.Context(), Principal{Name: name, Role: RoleViewer})
			_, err := processService{s: s}.ListEvents(ctx, &operatorv1.ListEventsRequest{})
			return err
		}
		var eve sync.WaitGroup
		for range 40 {
			eve.Go(func() {
				if err := list("eve"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := area.most.Load(); n != maxScans {
			t.Errorf("%d scans of one caller at one time", n)
		}
		begun := time.Now()
		if err := list("ada"); err != nil || time.Since(begun) > time.Second {
			t.Errorf("another caller: %v, %v", time.Since(begun), err)
		}
		eve.Wait()
		if n := len(s.scanning.by); n != 0 {
			t.Errorf("%d callers are remembered", n)
		}
	})
}
