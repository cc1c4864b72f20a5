package cli

import (
	"context"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// journal is a journal in memory, oldest first.
type journal struct {
	list []*operatorv1.Event
}

func (j *journal) add(n int, disk time.Time) {
	for range n {
		seq := uint64(len(j.list) + 1)
		j.list = append(j.list, &operatorv1.Event{Seq: seq, At: timestamppb.New(disk.Add(time.Duration(seq)))})
	}
}

func (j *journal) ListEvents(_ context.Context, req *operatorv1.ListEventsRequest) (*operatorv1.ListEventsResponse, error) {
	end := len(j.list)
	if t := req.GetPageToken(); t != "" {
		end, _ = strconv.Atoi(t)
	}
	answer := new(operatorv1.ListEventsResponse)
	for end > 0 && len(answer.GetEvents()) < int(req.GetPageSize()) {
		end--
		answer.Events = append(answer.Events, j.list[end])
	}
	if end > 0 {
		answer.NextPageToken = strconv.Itoa(end)
	}
	return answer, nil
}

// A watch of events or of the audit shows each entry once, also when more come between two looks
// than a page has, and goes on when the journal begins anew on an empty disk.
func TestWatchOfEventsMissesNone(t *testing.T) {
	j := &journal{}
	first, second := time.Unix(1e9, 0), time.Unix(2e9, 0)
	newest := NewestFirst(j.ListEvents, func(e *operatorv1.Event) string { return e.GetAt().AsTime().String() })
	look := func(want int, from uint64) {
		t.Helper()
		answer, err := newest(t.Context(), 100, new(operatorv1.ListEventsRequest))
		if err != nil {
			t.Fatal(err)
		}
		list := answer.GetEvents()
		if len(list) != want {
			t.Fatalf("%d events, want %d from %d on", len(list), want, from)
		}
		for i, e := range list {
			if e.GetSeq() != from+uint64(i) {
				t.Fatalf("event %d at the place of %d", e.GetSeq(), from+uint64(i))
			}
		}
	}
	j.add(150, first)
	look(100, 51)
	look(0, 0)
	j.add(3001, first)
	look(3001, 151)
	look(0, 0)
	j.list = nil
	j.add(7, second)
	look(7, 1)
	j.add(2, second)
	look(2, 8)
	j.list = nil
	j.add(9, time.Unix(3e9, 0)) // as many as before
	look(9, 1)
	j.list = nil // and empty
	look(0, 0)
	j.add(150, time.Unix(4e9, 0))
	look(150, 1)
}
